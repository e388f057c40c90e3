"""Tests reading words, streams of words, and the generated language."""

import dataclasses
import functools
import pathlib
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.run_length import RunLength
from common.distributed.replicas.base import Shard
from common.errors import UserError
from ptb import input as pipeline
from ptb import text, tiny
from ptb.config import Config, Data
from ptb.presets import PRESETS
from tests import datasets

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = Config(
    num_train_examples=131, num_eval_examples=53, global_batch_size=4, eval_batch_size=4, num_steps=5
)
WORDS = np.arange(131, dtype=np.int32)


def stack(dataset, key: str, batches: int) -> np.ndarray:
    return np.stack([b[key].numpy() for b in dataset.take(batches)])


def test_reading_ends_every_line_with_eos_and_numbers_words_by_frequency(tmp_path) -> None:
    (tmp_path / "a.txt").write_text(" the cat <unk> \n the dog \n", encoding="utf-8-sig")
    words = text.read(tmp_path / "a.txt")
    assert words == ["the", "cat", "<unk>", "<eos>", "the", "dog", "<eos>"]
    numbers = text.vocabulary(words)
    assert numbers == {"<eos>": 0, "the": 1, "<unk>": 2, "cat": 3, "dog": 4}
    assert text.numbers(words, numbers, "a").tolist() == [1, 3, 2, 0, 1, 4, 0]


def test_a_word_outside_the_vocabulary_is_named_with_its_line() -> None:
    with pytest.raises(UserError, match="b.txt: line 2: word 'fox' is not in the training text"):
        text.numbers(["the", text.EOS, "the", "fox", text.EOS], {"the": 0, text.EOS: 1}, "b.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is not there"), (b"", "no word in it"), (b"caf\xe9 au lait \n", "byte 3 is not UTF-8")],
)
def test_what_is_no_text_is_named(tmp_path, content, message) -> None:
    if content is not None:
        (tmp_path / "c.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        text.read(tmp_path / "c.txt")


def test_a_stream_is_contiguous_text_and_targets_are_the_next_words() -> None:
    steps = CONFIG.train_steps_per_epoch
    assert steps == (131 // 4 - 1) // 5 == 6
    data = pipeline.train_input(CONFIG, WORDS, Shard(), 4, 0)
    words, targets = stack(data, "words", steps), stack(data, "targets", steps)
    for stream in range(4):
        np.testing.assert_array_equal(words[:, stream].ravel(), np.arange(30) + 32 * stream)
    np.testing.assert_array_equal(targets, words + 1)


def test_the_state_starts_anew_with_each_epoch() -> None:
    keep = stack(pipeline.train_input(CONFIG, WORDS, Shard(), 4, 0), "keep", 14)
    assert [k.tolist() for k in keep] == [[float(step % 6 > 0)] * 4 for step in range(14)]


def test_a_stream_entered_at_any_step_goes_on_as_the_whole_one() -> None:
    whole = pipeline.train_input(CONFIG, WORDS, Shard(), 4, 0)
    for start in (1, 6, 8):
        rest = pipeline.train_input(CONFIG, WORDS, Shard(), 4, start)
        for key in ("words", "keep", "stream"):
            np.testing.assert_array_equal(stack(rest, key, 5), stack(whole, key, start + 5)[start:])


def test_replicas_hold_consecutive_streams_for_ever() -> None:
    whole = stack(pipeline.train_input(CONFIG, WORDS, Shard(), 4, 0), "words", 8)
    processes = [stack(pipeline.train_input(CONFIG, WORDS, Shard(i, 2), 2, 0), "words", 8) for i in range(2)]
    np.testing.assert_array_equal(np.concatenate(processes, 1), whole)
    devices = pipeline.train_input(CONFIG, WORDS, Shard(), 1, 3)
    np.testing.assert_array_equal(stack(devices, "words", 20).reshape(5, 4, 5), whole[3:])
    assert set(stack(devices, "stream", 20).ravel()) == {0}


@settings(max_examples=12)
@given(
    words=st.integers(2, 300),
    streams=st.sampled_from([1, 2, 3, 8]),
    width=st.integers(1, 9),
    count=st.sampled_from([1, 2]),
)
def test_an_evaluation_predicts_every_word_but_the_first_once(words, streams, width, count) -> None:
    config = dataclasses.replace(
        CONFIG, num_eval_examples=words, eval_batch_size=streams * count, num_steps=width
    )
    actual, batches = [], []
    for i in range(count):
        padded_batches = list(
            pipeline.eval_input(config, np.arange(words, dtype=np.int32), Shard(i, count), streams)
        )
        batches.append(len(padded_batches))
        for b in padded_batches:
            real = b["weight"].numpy() > 0
            actual += b["targets"].numpy()[real].tolist()
            assert (b["targets"].numpy()[real] == b["words"].numpy()[real] + 1).all()
    assert sorted(actual) == list(range(1, words))
    assert batches == [RunLength.of(config).eval_steps] * count


def test_epochs_are_whole_numbers_of_steps() -> None:
    """TensorFlow's ptb_word_lm.py has 2,323 steps of 20 streams per epoch; decays fall on whole steps."""
    run_length = RunLength.of(PRESETS["cpu-20"])
    assert (run_length.steps_per_epoch, run_length.train_steps, run_length.steps_per_block) == (
        2323,
        13 * 2323,
        2323,
    )
    for name, config in PRESETS.items():
        run_length = RunLength.of(config)
        assert run_length.steps_per_epoch == config.train_steps_per_epoch, name
        assert [b.last_epoch for b in run_length.intervals()] == list(range(1, 14)), name


def test_the_synthetic_batch_has_the_form_of_the_real_ones() -> None:
    spec = pipeline.synthetic(CONFIG, 4).element_spec
    assert pipeline.train_input(CONFIG, WORDS, Shard(), 4, 0).element_spec == spec
    assert pipeline.eval_input(CONFIG, WORDS[:53], Shard(), 4).element_spec == spec


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("language")
    tiny.generate(folder)
    return folder


def test_the_generated_language_is_as_large_as_its_preset_says(data_dir, tmp_path) -> None:
    config = PRESETS["cpu-tiny"]
    train, _ = pipeline.load(config, data_dir)
    assert len(train) == config.num_train_examples and set(train) == set(range(config.vocabulary_size))
    for split in ("test", "valid"):
        split_config = dataclasses.replace(config, data=Data(eval_split=split))
        assert len(pipeline.load(split_config, data_dir)[1]) == config.num_eval_examples
    tiny.generate(tmp_path)
    for name in tiny.FILES.values():
        assert (tmp_path / name).read_bytes() == (data_dir / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_train_examples": 9}, "40000 words, 9 expected; set --config.num_train_examples=40000"),
        ({"vocabulary_size": 30}, "31 different words, 30 expected; set --config.vocabulary_size=31"),
    ],
)
def test_text_that_is_not_the_configuration_s_is_refused(data_dir, changes, message) -> None:
    with pytest.raises(UserError, match=message):
        pipeline.load(dataclasses.replace(PRESETS["cpu-tiny"], **changes), data_dir)


def test_a_text_of_one_word_predicts_none() -> None:
    with pytest.raises(UserError, match="config.num_eval_examples=1: must be at least 2"):
        dataclasses.replace(PRESETS["cpu-tiny"], num_eval_examples=1).validate()


def test_foreign_text_is_never_overwritten(tmp_path, capsys) -> None:
    (tmp_path / "ptb.train.txt").write_text("no it was n't black monday \n")
    assert tiny.main([str(tmp_path)]) == 2
    assert "not made by this program" in capsys.readouterr().err
    assert "black monday" in (tmp_path / "ptb.train.txt").read_text()


def test_the_script_unpacks_and_verifies_what_it_downloads(tmp_path) -> None:
    folder = tmp_path / "simple-examples" / "data"
    folder.mkdir(parents=True)
    for name in tiny.FILES.values():
        (folder / name).write_text("not the Penn Treebank \n")
    with tarfile.open(tmp_path / "simple-examples.tgz", "w:gz") as tar:
        tar.add(tmp_path / "simple-examples", "./simple-examples")

    script = functools.partial(datasets.script, "ptb/init_datasets.sh", DATA_DIR=str(tmp_path / "data"))
    done = script(PTB_URL=(tmp_path / "nowhere").as_uri())
    assert done.returncode == 2 and "cannot download" in done.stderr
    done = script(PTB_URL=tmp_path.as_uri())
    assert done.returncode == 2 and "ptb.train.txt: SHA-256 is" in done.stderr
