"""Tests packing, conversion, batches, the task's loss and quality, and the generated language pair."""

import dataclasses
import errno
import itertools
import os
import pathlib
import pickle
import shutil

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from common.data import tfrecords
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.text import bleu, conversion, pair, subwords, translation
from tests.benchmarks import check_all
from tests.translation import (
    assert_a_lost_sentence_is_refused,
    conversion_flags,
    evaluations,
    gathered,
    texts,
)
from transformer import convert, packing, tiny
from transformer import input as pipeline
from transformer.config import Decode
from transformer.model import INPUTS
from transformer.presets import PRESETS
from transformer.task import Task, smoothed_cross_entropy

pytest.importorskip("official.nlp.metrics.bleu", reason="tf-models-official absent")
TINY = tiny.Tiny(train_pairs=300, eval_pairs=10, vocabulary_size=300)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(folder of the data, their configuration)."""
    folder = tmp_path_factory.mktemp("pair")
    counts = tiny.generate(folder, TINY)
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], num_train_examples=counts["packed"], num_eval_examples=counts["eval"],
        vocabulary_size=counts["vocabulary"], global_batch_size=4, eval_batch_size=4, layers=1, width=16,
        hidden=32, heads=2, decode=Decode(source_length=70, extra_length=0),
    )  # fmt: skip
    return folder, config


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=60), st.integers(9, 30))
def test_packing_keeps_every_pair_once(lengths, length):
    pairs = [([i + 2] * a, [i + 2] * b) for i, (a, b) in enumerate(lengths)]
    rows = list(packing.pack(pairs, length))
    assert sorted(p for row in rows for p in row.pairs) == sorted(pairs)
    for row in rows:
        features = row.features()
        for side in ("inputs", "targets"):
            tokens, numbers = features[side], features[f"{side}_segmentation"]
            assert 0 < len(tokens) == len(numbers) == len(features[f"{side}_position"]) <= length
            assert numbers == sorted(numbers)
        sources = [
            [t for t, n in zip(features["inputs"], features["inputs_segmentation"]) if n == i]
            for i in range(1, len(row.pairs) + 1)
        ]
        assert sources == [source for source, _ in row.pairs]


def test_packing_wastes_little():
    rng = np.random.default_rng(0)
    pairs = [
        ([2] * n, [2] * max(1, n + d)) for n, d in zip(rng.integers(2, 40, 2000), rng.integers(-3, 4, 2000))
    ]
    rows = list(packing.pack(pairs, 256))
    assert sum(len(t) for _, t in pairs) / (256 * len(rows)) > 0.9


def test_a_pair_too_long_for_a_row_is_one_line():
    with pytest.raises(UserError, match="pair 2 has 1 and 6 tokens, a packed sequence takes 5"):
        list(packing.pack([([2], [2]), ([2], [2] * 6)], 5))


def test_batches_hold_every_sentence_of_an_epoch_once(data):
    folder, config = data
    config = dataclasses.replace(config, global_batch_size=2)
    words = pipeline.Subwords(folder / config.data.vocabulary)
    expected = sorted((s, t) for s, t, _ in pair.Grammar(TINY).pairs("train"))
    rows = []
    batches = itertools.islice(
        pipeline.train_input(config, folder, Shard(), 1).as_numpy_iterator(), config.num_train_examples
    )
    for batch in batches:
        assert all(batch[name].shape == (1, config.packed_length) for name in INPUTS)
        for number in range(1, batch["inputs_segment"].max() + 1):
            sides = [
                words.decode(batch[side][0][batch[f"{side}_segment"][0] == number])
                for side in ("inputs", "targets")
            ]
            rows.append(tuple(sides))
        np.testing.assert_array_equal(batch["targets"] > 0, batch["targets_segment"] > 0)
    assert sorted(rows) == expected


def test_a_stream_entered_at_any_step_equals_the_whole_one_from_there(data):
    folder, config = data
    whole = list(itertools.islice(pipeline.train_input(config, folder, Shard(), 4).as_numpy_iterator(), 30))
    late = next(pipeline.train_input(config, folder, Shard(), 4, 29).as_numpy_iterator())
    for name in INPUTS:
        np.testing.assert_array_equal(late[name], whole[29][name])


def test_evaluation_counts_every_sentence_once_on_any_number_of_replicas(data):
    folder, config = data
    assert len(list(evaluations(pipeline.eval_input, config, folder))) == 1 + 2 + 3


def test_synthetic_batches_look_like_real_ones(data):
    folder, config = data
    spec = pipeline.synthetic(config, 4).element_spec
    assert spec == pipeline.train_input(config, folder, Shard(), 4).element_spec
    assert spec == pipeline.eval_input(config, folder, Shard(), 4).element_spec


def test_quality_is_bleu_of_the_real_sentences(data):
    folder, config = data
    task = pickle.loads(pickle.dumps(Task(config, folder)))  # The worker process gets the task by pickle.
    words = pipeline.Subwords(folder / config.data.vocabulary)
    texts = translation.read_references(config, folder)
    hypotheses = [texts[0].upper(), *texts[1:5], *texts[6:], texts[5]]
    arrays = gathered([words.encode(text) for text in hypotheses], 400)
    assert task.translations(arrays) == hypotheses
    quality = task.quality({}, arrays)
    assert quality.value == pytest.approx(bleu.t2t(texts, hypotheses) / 100) and quality.reached
    assert quality.details["sacrebleu"] < quality.details["bleu"]  # sacreBLEU is case-sensitive.
    old = Task(dataclasses.replace(config, ruleset="0.6.0", quality_target=25.0), folder).quality({}, arrays)
    assert old.value == pytest.approx(100 * quality.value)
    assert_a_lost_sentence_is_refused(task, arrays)


def test_smoothing_is_the_transformer_s_definition():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=[2, 3, 7]), rng.integers(0, 7, [2, 3])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = np.where(np.eye(7)[labels] > 0, 0.9, 0.1 / 6)
    expected = -(targets * log_p).sum(-1) + (targets * np.log(targets)).sum(-1)
    np.testing.assert_allclose(smoothed_cross_entropy(tf.constant(logits), labels, 0.1), expected, rtol=1e-10)
    plain = smoothed_cross_entropy(tf.constant(logits), labels, 0.0)
    np.testing.assert_allclose(plain, -np.take_along_axis(log_p, labels[..., None], -1)[..., 0], rtol=1e-10)


def test_a_word_for_word_translation_stays_below_the_target():
    grammar = pair.Grammar(tiny.TINY)
    sentences = grammar.pairs("eval")
    targets = [target for _, target, _ in sentences]
    assert bleu.t2t(targets, [gloss for _, _, gloss in sentences]) < 10
    # Even with every ending right: the target's words, found by their stems, in the source's order.
    ordered = []
    for _, target, gloss in sentences:
        words = target.rstrip(".").split()
        place = {stem.rstrip(".,"): i for i, stem in enumerate(gloss.split())}

        def at(word, place=place):
            return min((i for stem, i in place.items() if word[:4] == stem[:4]), default=len(place))

        ordered.append(" ".join(sorted(words, key=at)) + ".")
    assert bleu.t2t(targets, ordered) < 25


def test_some_names_of_the_evaluation_are_unknown():
    grammar = pair.Grammar(tiny.TINY)
    names = [
        {w.strip(".,") for s, _, _ in grammar.pairs(split) for w in s.split() if w[0].isupper()}
        for split in ("train", "eval")
    ]
    assert len(names[1] - names[0]) > len(names[1]) / 6


def run(folder, train, evaluation, *more, vocabulary=("--vocabulary_size", "40")):
    return convert.main(conversion_flags(folder / "out", train, evaluation, *vocabulary, *more))


SOURCE = b"".join(b"the cat number %d sat\n" % i for i in range(60))
TARGET = b"".join(b"sass nummer %d katze\n" % i for i in range(60))


def test_converting_any_parallel_text(tmp_path, capsys):
    train, held_out = texts(tmp_path, "t", SOURCE, TARGET), texts(tmp_path, "e", b"the cat\n", b"katze\n")
    assert run(tmp_path, train, held_out, "--packed_length", "64", "--max_length", "30") == 0
    out = capsys.readouterr().out
    packed = sum(tfrecords.count(p) for p in (tmp_path / "out").glob("train-*"))
    assert f"--config.num_train_examples={packed} --config.num_eval_examples=1" in out and "pairs 60" in out
    assert (tmp_path / "out" / "eval.reference").read_text() == "katze\n"
    assert (
        run(tmp_path, train, held_out) == 2
        and "already holds files such as train-00000-of-00002" in capsys.readouterr().err
    )


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut_copy(source, target):
    pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes()[:9])
    full()


@pytest.mark.parametrize("lost", ["cleaned text", "vocabulary", "copied vocabulary", "note"])
def test_a_full_disk_is_one_line_and_leaves_no_shard(tmp_path, capsys, monkeypatch, lost):
    """Whichever file does not fit, no file remains that a later conversion or run would read as complete."""
    train, held_out = texts(tmp_path, "t", SOURCE, TARGET), texts(tmp_path, "e", b"the cat\n", b"katze\n")
    vocabulary = subwords.build(tmp_path / "given", train, 40).path
    flags = ["--vocabulary", str(vocabulary)] if lost == "copied vocabulary" else ["--vocabulary_size", "40"]
    before, out = pathlib.Path.write_text, tmp_path / "out"

    def write_text(path, text, **options):
        if ("convert.json" if lost == "note" else "vocab.subwords") in path.name:
            before(path, text[:9], **options)
            full()
        return before(path, text, **options)

    with monkeypatch.context() as patch:
        if lost == "cleaned text":
            patch.setattr(convert, "open", full, raising=False)
        elif lost == "copied vocabulary":
            patch.setattr(shutil, "copyfile", cut_copy)
        else:
            patch.setattr(pathlib.Path, "write_text", write_text)
        assert run(tmp_path, train, held_out, vocabulary=flags) == 2
    error, name = capsys.readouterr().err, "convert.json" if lost == "note" else "vocab.subwords"
    assert f"cannot write {out / name}: No space left on device; free some space" in error
    assert error.count("\n") == 1
    names = {path.name for path in out.iterdir()}
    assert names == ({"vocab.subwords", "eval.source", "eval.reference"} if lost == "note" else set())
    assert run(tmp_path, train, held_out, vocabulary=flags) == 0


def test_two_workers_write_what_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "CHUNK", 7)
    train, held_out = texts(tmp_path, "t", SOURCE, TARGET), texts(tmp_path, "e", b"the cat\n", b"katze\n")
    contents = []
    for workers in ("1", "2"):
        assert run(tmp_path, train, held_out, "--workers", workers) == 0
        contents.append([p.read_bytes() for p in sorted((tmp_path / "out").glob("train-*"))])
        shutil.rmtree(tmp_path / "out")
    assert contents[0] == contents[1]


def test_evaluation_text_is_never_cleaned(tmp_path, capsys):
    train, held_out = texts(tmp_path, "t", SOURCE, TARGET), texts(tmp_path, "e", b"a\n\n", b"b\nc\n")
    assert run(tmp_path, train, held_out, "--drop_bad") == 2
    assert "e.src: line 2 is empty" in capsys.readouterr().err


def test_bad_training_text_is_dropped_on_request_and_counted(tmp_path, capsys):
    train = texts(tmp_path, "t", SOURCE + b"\nx\n" + b"cat " * 90 + b"\n", TARGET + b"y\n\xff\nkatze\n")
    held_out = texts(tmp_path, "e", b"the cat\n", b"katze\n")
    assert run(tmp_path, train, held_out) == 2
    assert "t.src: line 61 is empty" in capsys.readouterr().err
    assert run(tmp_path, train, held_out, "--drop_bad") == 0
    out = capsys.readouterr().out
    assert "pairs 60" in out and "empty 1, too_long 1, not_utf8 1" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_train_examples": 5},
            r"train-0000\d-of-0000\d: .* records, config.num_train_examples is 5; was it",
        ),
        (
            {"max_sequence_length": 59},
            "convert.json: the text was cut to 60 tokens, config.max_sequence_length is 59",
        ),
        (
            {"packed_length": 256},
            "was cut to 128 tokens, config.packed_length is 256; give --config.packed_length=128",
        ),
        ({"num_eval_examples": 5}, "has 10 lines, config.num_eval_examples is 5"),
        ({"vocabulary_size": 5}, "tokens, config.vocabulary_size is 5"),
        (
            {"decode": Decode(source_length=5, extra_length=5)},
            r"eval.source: line 1 has \d+ tokens, more than",
        ),
    ],
)
def test_data_that_does_not_fit_is_one_line(data, change, message):
    folder, config = data
    with pytest.raises(UserError, match=message):
        check_all(Task(dataclasses.replace(config, **change), folder))


@pytest.mark.parametrize("note", ["", "[3]", '{"pairs"'])
def test_a_damaged_note_is_refused(data, tmp_path, note):
    folder, config = data
    for path in folder.iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "convert.json").write_text(note)
    with pytest.raises(UserError, match="convert.json: no note of a conversion"):
        Task(config, tmp_path).check_input()
    (tmp_path / "convert.json").unlink()  # Data from another source have no note.
    check_all(Task(config, tmp_path))


def test_a_missing_folder_is_one_line(data, tmp_path):
    with pytest.raises(UserError, match="no file matches 'train-\\*'; set DATA_DIR"):
        Task(data[1], tmp_path).check_input()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"inputs": [9999]}, "record 1: a side is or has a token outside 0 .. config.vocabulary_size - 1"),
        ({"inputs": [-1]}, "record 1: a side is or has a token outside 0 .. config.vocabulary_size - 1"),
        ({"inputs": [3], "inputs_position": [-1]}, "has a sentence longer than config.max_sequence_length"),
        ({"inputs": [3], "inputs_position": [60]}, "has a sentence longer than config.max_sequence_length"),
        (
            {"inputs": [3], "inputs_segmentation": [0]},
            "record 1: a side is or has a segment number outside 1 .. config.packed_length",
        ),
        ({"inputs": [2] * 129}, "record 1: a side is or has a longer than config.packed_length"),
        ({"inputs_position": [0, 1, 2]}, "record 1: its features are not of one length"),
    ],
)
def test_a_bad_record_is_named(data, tmp_path, features, message):
    _, config = data
    row = packing.Row()
    row.add(([5, 1], [6, 1]))
    good = row.features()
    bad = good | features
    if len(features.get("inputs", [])) > 2:
        bad |= {name: [1] * 129 for name in ("inputs_segmentation", "inputs_position")}
    elif "inputs" in features:
        bad |= {"inputs_segmentation": [1], "inputs_position": [1]} | features

    conversion.deal(tmp_path, [good, bad], 1, "packed sequences")
    task = Task(config, tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        for _ in itertools.islice(task.train_input(Shard(), 1, 0), 3):
            pass
    assert message in str(task.diagnose(caught.value))
