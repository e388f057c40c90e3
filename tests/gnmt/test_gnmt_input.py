"""Tests conversion, buckets, batches, the task's loss and quality, and the generated language pair."""

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.text import bleu, bpe, conversion, pair, translation
from gnmt import convert, corpus, tiny
from gnmt import input as pipeline
from gnmt.config import Decode
from gnmt.presets import PRESETS
from gnmt.task import Task, smoothed_cross_entropy
from tests.benchmarks import check_all, one_batch_a_step
from tests.translation import (
    assert_a_lost_sentence_is_refused,
    conversion_flags,
    evaluations,
    gathered,
    texts,
)

pytest.importorskip("subword_nmt", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")
TINY = tiny.Tiny(train_pairs=300, eval_pairs=10, merges=400, max_length=70)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(folder of the data, their configuration)."""
    folder = tmp_path_factory.mktemp("pair")
    counts = tiny.generate(folder, TINY)
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], num_train_examples=counts["pairs"], num_eval_examples=counts["eval"],
        vocabulary_size=counts["vocabulary"], max_sequence_length=70, bucket_limits=(16, 24, 32, 70),
        global_batch_size=16, eval_batch_size=4, width=8, decode=Decode(source_length=70, target_length=8),
    )  # fmt: skip
    return folder, config


ALONE = Shard()


def epoch(config, folder, shard=ALONE, batch_size=16, start=0, epochs=1):
    """The batches of whole epochs from step `start` on."""
    steps = -(-config.num_train_examples // config.global_batch_size) * epochs
    count = (steps - start) * (config.global_batch_size // shard.count // batch_size)
    stream = pipeline.train_input(config, folder, shard, batch_size, start).as_numpy_iterator()
    return list(itertools.islice(stream, count))


def test_a_target_s_length_counts_its_beginning():
    """The decoder starts with BOS, which a target's record lacks and a source's has."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], max_sequence_length=4)
    sizes = {"source": np.array([4, 2, 5]), "target": np.array([3, 4, 1])}
    arrays = {f"{name}_sizes": of for name, of in sizes.items()}
    arrays |= {name: np.ones(of.sum(), int) for name, of in sizes.items()}
    assert corpus._fitting_pairs(config, arrays).number.tolist() == [0]


def test_bleu_ignores_case_and_splits_all_punctuation():
    score = Task(PRESETS["cpu-tiny"], None).bleu(["Ab b c d «e»"], ["ab B C D « e »"])
    assert score == pytest.approx(100)


def test_an_epoch_holds_every_pair_once_as_it_was_written(data):
    folder, config = data
    words = pipeline.encoding(config, folder)
    expected = sorted((s, t) for s, t, _ in pair.Grammar(TINY).pairs("train"))
    for _ in range(2):
        sentences, numbers = [], []
        for batch in epoch(config, folder):
            assert batch["source"].shape == batch["target"].shape and batch["source"].shape[0] == 16
            assert batch["source"].shape[1] in config.bucket_limits
            for i in np.flatnonzero(batch["weight"]):
                source = batch["source"][i, : batch["source_length"][i]]
                target = batch["target"][i, : batch["target_length"][i]]
                assert source[0] == bpe.BOS and source[-1] == target[-1] == bpe.EOS
                sentences.append((words.decode(source[1:], "en"), words.decode(target, "en")))
                numbers.append(batch["index"][i])
            assert not batch["source_length"][batch["weight"] == 0].any()
            assert (batch["index"][batch["weight"] == 0] == -1).all()
        assert sorted(sentences) == expected and sorted(numbers) == list(range(300))


@pytest.mark.parametrize(("count", "size"), [(1, 4), (2, 8), (2, 2), (4, 4)])
def test_replicas_have_one_bucket_in_a_step_and_the_global_batch_together(data, count, size):
    folder, config = data
    whole = epoch(config, folder)
    parts = [epoch(config, folder, Shard(i, count), size) for i in range(count)]
    per_step = 16 // count // size
    for step, batch in enumerate(whole):
        replica_batches = [b for part in parts for b in part[step * per_step : (step + 1) * per_step]]
        for name, values in batch.items():
            np.testing.assert_array_equal(np.concatenate([b[name] for b in replica_batches]), values)


def test_batches_hold_the_rows_that_numpy_gathers(data):
    folder, config = data
    pairs = corpus.load(config, folder)
    lengths, examples = (
        np.array([70, 16, 24]),
        np.array([[5, 0, -1, 299], [-1, 7, 7, -1], [1, 2, 3, 4]], np.int32),
    )
    lengths[1:] = [
        max(pairs.lengths[row[row >= 0]].max(), limit) for row, limit in zip(examples[1:], (16, 24))
    ]
    batches = pipeline.planned(pairs, lengths, examples, 2).as_numpy_iterator()
    parts = [(length, part) for length, row in zip(lengths, examples) for part in row.reshape(2, 2)]
    for batch, (length, part) in zip(batches, parts, strict=True):
        for name in ("source", "target"):
            side = getattr(pairs, name)
            sentences = [side.sentence(number) if number >= 0 else [] for number in part]
            rows = [np.pad(tokens, (0, length - len(tokens))) for tokens in sentences]
            np.testing.assert_array_equal(batch[name], rows)
            np.testing.assert_array_equal(batch[f"{name}_length"], [len(tokens) for tokens in sentences])
        np.testing.assert_array_equal(batch["index"], np.where(part < 0, -1, pairs.number[part]))
        np.testing.assert_array_equal(batch["weight"], part >= 0)


@pytest.mark.parametrize("start", [1, 18, 19, 30])
def test_a_stream_entered_at_any_step_equals_the_whole_one_from_there(data, start):
    folder, config = data
    late = epoch(config, folder, start=start, epochs=2)
    for one, two in zip(epoch(config, folder, epochs=2)[start:], late, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_buckets_pad_little(data):
    folder, config = data
    shares = {}
    for limits in (config.bucket_limits, config.bucket_limits[-1:]):
        batches = epoch(dataclasses.replace(config, bucket_limits=limits), folder)
        real = sum(b["source_length"].sum() for b in batches)
        shares[len(limits)] = 1 - real / sum(b["source"].size for b in batches)
    assert shares[4] < 0.75 * shares[1]


def test_evaluation_counts_every_sentence_once_on_any_number_of_replicas(data):
    folder, config = data
    for mine in evaluations(pipeline.eval_input, config, folder):
        lengths = [n for b in mine for n in b["source_length"]]
        assert lengths == sorted(lengths, reverse=True)


def test_an_evaluation_is_padded_with_its_shortest_sentence(data):
    """A search ends with its slowest sentence, so padding must not be slower than the shortest real sentence."""
    folder, config = data
    actual = []
    for i in range(3):
        for batch in pipeline.eval_input(
            one_batch_a_step(config, 4, 3), folder, Shard(i, 3), 4
        ).as_numpy_iterator():
            actual += [dict(zip(batch, row)) for row in zip(*batch.values())]
    real = [row for row in actual if row["weight"]]
    fillers = [row for row in actual if not row["weight"]]
    shortest = min(real, key=lambda row: row["source_length"])["source_length"]
    assert len(real) == 10 and len(fillers) == 2 and shortest > 2
    for filler in fillers:
        assert filler["index"] == -1 and filler["source_length"] == shortest
        assert any(np.array_equal(filler["source"], row["source"]) for row in real)


def test_synthetic_batches_look_like_real_ones_and_have_every_length(data):
    folder, config = data
    task = Task(config, folder)
    assert task.synthetic_input(4).element_spec == task.train_input(Shard(), 4, 0).element_spec
    assert task.synthetic_eval_input(4).element_spec == task.eval_input(Shard(), 4).element_spec
    lengths = [b["source"].shape[1] for b in task.synthetic_input(4).take(8).as_numpy_iterator()]
    assert lengths == [*config.bucket_limits] * 2
    assert [s["source"][0] for s in task.batch_shapes] == [*config.bucket_limits]


def test_quality_is_bleu_of_the_real_sentences(data):
    folder, config = data
    task = pickle.loads(pickle.dumps(Task(config, folder)))  # The worker process gets the task by pickle.
    words = pipeline.encoding(config, folder)
    texts = translation.read_references(config, folder)
    # A small vocabulary may lack the characters of a rare name.
    again = [words.decode(words.encode(text, "en"), "en") for text in texts]
    hypotheses = [*again[:5], *again[6:], again[5]]
    arrays = gathered([[*words.encode(text, "en"), bpe.EOS] for text in hypotheses], 100)
    assert task.translations(arrays) == hypotheses
    quality = task.quality({}, arrays)
    expected = bleu.sacre(texts, hypotheses, lowercase=True, tokenize="intl")
    assert quality.value == pytest.approx(expected / 100) and quality.reached
    old = Task(dataclasses.replace(config, ruleset="0.6.0", quality_target=24.0), folder).quality({}, arrays)
    assert old.value == pytest.approx(expected)
    assert_a_lost_sentence_is_refused(task, arrays)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("over", "label", "other"), [("all", 1 - 6 / 7, 1 / 7), ("others", 0, 1 / 6)])
def test_smoothing_over_all_classes_and_over_the_others(smoothing, over, label, other):
    """`label` and `other` are the shares of the smoothing that the label and each other class get."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=[5, 3, 7]), rng.integers(0, 7, [5, 3])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = np.full([5, 3, 7], smoothing * other)
    np.put_along_axis(targets, labels[..., None], 1 - smoothing + smoothing * label, -1)
    np.testing.assert_allclose(targets.sum(-1), 1)
    losses = smoothed_cross_entropy(tf.constant(logits), labels, smoothing, over)
    np.testing.assert_allclose(losses, -(targets * log_p).sum(-1), rtol=1e-10)


def test_the_loss_s_smoothing_is_the_configuration_s(data):
    folder, config = data
    rng = np.random.default_rng(0)
    batch = epoch(config, folder)[0]
    logits = tf.constant(rng.normal(size=[batch["target"].shape[1], 16, config.vocabulary_size]))
    totals = {}
    for over in ("all", "others"):
        task = Task(dataclasses.replace(config, smoothing_over=over), folder)
        (term,) = task.loss(lambda inputs, training: logits, batch).values()
        losses = smoothed_cross_entropy(logits, batch["target"].T, config.label_smoothing, over).numpy()
        real = np.arange(len(losses))[:, None] < batch["target_length"]
        totals[over] = float(term.total)
        assert totals[over] == pytest.approx((losses * real * batch["weight"]).sum(), rel=1e-10)
    assert totals["others"] != totals["all"]


def test_a_word_for_word_translation_stays_below_the_target():
    sentences = pair.Grammar(tiny.TINY).pairs("eval")
    targets = [target for _, target, _ in sentences]
    glosses = [gloss for _, _, gloss in sentences]
    assert bleu.sacre(targets, glosses, lowercase=True, tokenize="intl") < 10


def run(folder, train, evaluation, *more, out="out"):
    return convert.main(conversion_flags(folder / out, train, evaluation, "--merges", "20", *more))


SOURCE = b"".join(b"the cat, number %d, sat\n" % i for i in range(60))
TARGET = b"".join(b"es sass die nummer %d.\n" % i for i in range(60))


@pytest.fixture
def held_out(tmp_path):
    return texts(tmp_path, "e", b"the cat\n", b"katze\n")


def test_converting_any_parallel_text(tmp_path, held_out, capsys):
    train = texts(tmp_path, "t", SOURCE, TARGET)
    assert run(tmp_path, train, held_out) == 0
    out = capsys.readouterr().out
    size = len(bpe.read_vocabulary(tmp_path / "out" / "vocab.bpe"))
    assert f"--config.num_eval_examples=1 --config.vocabulary_size={size}" in out
    assert "--config.num_train_examples=60" in out and "pairs 60" in out
    assert (tmp_path / "out" / "eval.reference").read_text() == "katze\n"
    assert (
        run(tmp_path, train, held_out) == 2
        and "already holds files such as train-00000-of-00002" in capsys.readouterr().err
    )


def test_given_merges_and_vocabulary_are_used_unchanged(tmp_path, held_out, capsys):
    train = texts(tmp_path, "t", SOURCE, TARGET)
    assert run(tmp_path, train, held_out) == 0
    paths = [tmp_path / "out" / name for name in ("bpe.codes", "vocab.bpe")]
    flags = ["--codes", str(paths[0]), "--vocabulary", str(paths[1])]
    assert run(tmp_path, train, held_out, *flags, out="again") == 0
    for path in (tmp_path / "out").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert run(tmp_path, train, held_out, *flags[:2], out="third") == 2
    assert "--codes and --vocabulary belong together" in capsys.readouterr().err


def test_two_workers_write_what_one_writes(tmp_path, held_out, monkeypatch):
    monkeypatch.setattr(conversion, "CHUNK", 7)
    train = texts(tmp_path, "t", SOURCE, TARGET)
    for workers in ("1", "2"):
        assert run(tmp_path, train, held_out, "--workers", workers, out=workers) == 0
    for path in (tmp_path / "1").iterdir():
        assert (tmp_path / "2" / path.name).read_bytes() == path.read_bytes()


def test_bad_training_text_is_dropped_on_request_and_counted(tmp_path, held_out, capsys):
    # Too long in Moses's tokens, in the ratio of lengths, and in encoded tokens.
    long = b"\nx\n" + b"cat " * 90 + b"\n" + b"the " * 10 + b"\n" + b"bdfghjklmpqrvwxyz" * 5 + b"\n"
    train = texts(tmp_path, "t", SOURCE + long, TARGET + b"y\n\xff\nkatze\nes\nes\n")
    assert run(tmp_path, train, held_out) == 2
    assert "t.src: line 61 is empty" in capsys.readouterr().err
    assert run(tmp_path, train, held_out, "--drop_bad") == 0
    out = capsys.readouterr().out
    assert "pairs 60" in out and "empty 1, too_long 3, not_utf8 1" in out


def test_evaluation_text_is_never_cleaned(tmp_path, capsys):
    train, bad = texts(tmp_path, "t", SOURCE, TARGET), texts(tmp_path, "e", b"a\n\n", b"b\nc\n")
    assert run(tmp_path, train, bad, "--drop_bad") == 2
    assert "e.src: line 2 is empty" in capsys.readouterr().err
    bad = texts(tmp_path, "e", b"a\nb\n", b"b\n")
    assert run(tmp_path, train, bad, "--drop_bad") == 2
    assert "e.ref ends after line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_train_examples": 5}, r"holds 300 pairs .* is 5; give --config.num_train_examples=300"),
        (
            {"max_sequence_length": 16, "bucket_limits": (16,)},
            r"pairs of up to 16 tokens \(and \d+ longer ones, left out\)",
        ),
        ({"num_eval_examples": 5}, "has 10 lines, config.num_eval_examples is 5"),
        ({"vocabulary_size": 5}, "tokens, config.vocabulary_size is 5"),
        (
            {"decode": Decode(source_length=5, target_length=5)},
            r"eval.source: line 1 has \d+ tokens, more than config.decode.source_length=5",
        ),
    ],
)
def test_data_that_does_not_fit_is_one_line(data, change, message):
    folder, config = data
    with pytest.raises(UserError, match=message):
        check_all(Task(dataclasses.replace(config, **change), folder))


def test_data_that_fits_passes(data):
    folder, config = data
    check_all(Task(config, folder))


def test_a_missing_folder_is_one_line(data, tmp_path):
    with pytest.raises(UserError, match="init_datasets.sh makes it"):
        Task(data[1], tmp_path).check_input()
    with pytest.raises(UserError, match=r"no file matches 'train-\*'; set DATA_DIR"):
        corpus.load(data[1], tmp_path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (([1, 9999, 2], [5, 2]), "record 1: its source has a token beyond config.vocabulary_size"),
        (([1, 5, 2], [5, -1, 2]), "record 1: its target has a token beyond config.vocabulary_size"),
        (([5, 2], [5, 2]), "record 1: its source has not both ends"),
        (([1, 5, 2], [5]), "record 1: its target has no end"),
        (([1, 5, 2], []), "record 1: its target has no end"),
    ],
)
def test_a_bad_record_is_named(data, tmp_path, bad, message):
    rows = [{"source": source, "target": target} for source, target in (([1, 5, 2], [6, 2]), bad)]
    conversion.deal(tmp_path, rows, 1, "pairs")
    with pytest.raises(UserError, match=message):
        corpus.load(data[1], tmp_path)


def test_what_is_no_record_is_named(data, tmp_path):
    path = tmp_path / "train-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"nonsense")
    with pytest.raises(UserError, match="record 0: not a tf.train.Example with the features of a sentence"):
        corpus.load(data[1], tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="record 0 is damaged"):
        corpus.load(data[1], tmp_path)
