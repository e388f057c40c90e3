"""Tests the batches (a function of seed and step, over any shards, opened on the clock only), and init_datasets.sh."""

import dataclasses
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.base import Shard
from common.errors import UserError
from llama31_8b import indexed, order
from llama31_8b import input as pipeline
from llama31_8b.config import Config
from llama31_8b.presets import PRESETS
from tests import datasets
from tests.before_the_clock import Watch
from tests.llama31_8b import texts

ORDERS = ("reference", "one_epoch")


@pytest.fixture(params=ORDERS)
def text(request, tmp_path) -> tuple[Config, pathlib.Path]:
    config = texts.write(tmp_path)
    return dataclasses.replace(config, order=request.param), tmp_path


def first_batches(data: tf.data.Dataset, count: int) -> list[np.ndarray]:
    return [batch["tokens"] for batch in data.take(count).as_numpy_iterator()]


def test_a_step_has_its_windows_of_the_stream(text):
    config, folder = text
    read = np.concatenate(first_batches(pipeline.train_input(config, folder, Shard(), 4, 0), 3))
    documents = texts.documents(folder, "train")
    samples = round(config.train_steps * config.global_batch_size)
    stream = order.train_order(
        np.array([len(d) for d in documents], np.int32), 8, config.order, samples, config.seed
    )
    for number, window in enumerate(read):
        pieces = [documents[d][first : first + count] for d, first, count in stream.pieces(number)]
        np.testing.assert_array_equal(window, np.concatenate(pieces))


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_shards_and_micro_batches_share_the_same_steps(shards, text):
    config, folder = text
    whole = first_batches(pipeline.train_input(config, folder, Shard(), 4, 0), 5)
    for size in {1, 4 // shards}:
        parts = [pipeline.train_input(config, folder, Shard(i, shards), size, 0) for i in range(shards)]
        per_step = 4 // shards // size
        read = [np.split(np.concatenate(first_batches(part, 5 * per_step)), 5) for part in parts]
        for step, batch in enumerate(whole):
            np.testing.assert_array_equal(batch, np.concatenate([part[step] for part in read]))


def test_a_resumed_run_reads_what_an_uninterrupted_one_would(text):
    config, folder = text
    whole = first_batches(pipeline.train_input(config, folder, Shard(), 4, 0), 30)
    rest = first_batches(pipeline.train_input(config, folder, Shard(), 4, 25), 5)
    np.testing.assert_array_equal(whole[25:], rest)


def test_the_seed_decides_the_order(text):
    config, folder = text
    other = dataclasses.replace(config, seed=1)
    first = [
        first_batches(pipeline.train_input(one, folder, Shard(), 4, 0), 4) for one in (config, other, config)
    ]
    assert np.array_equal(first[0], first[2]) and not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_an_evaluation_fills_whole_batches_and_each_shard_does_equal_work(shards, text):
    config, folder = text
    batches = [
        list(pipeline.eval_input(config, folder, Shard(i, shards), 4 // shards).as_numpy_iterator())
        for i in range(shards)
    ]
    assert {len(one) for one in batches} == {2}
    rows = [row for one in batches for batch in one for row in batch["tokens"][batch["weight"] > 0].tolist()]
    single = pipeline.load(config, folder, False)
    assert sorted(rows) == sorted(single.window(n).tolist() for n in range(8))  # 5 windows, in whole batches.


def test_rows_beyond_the_text_have_weight_0(text):
    config, folder = text
    windows = len(pipeline.load(dataclasses.replace(config, order="one_epoch"), folder, False).order)
    config = dataclasses.replace(config, order="one_epoch", num_eval_examples=windows, eval_batch_size=64)
    (batch,) = pipeline.eval_input(config, folder, Shard(), 64).as_numpy_iterator()
    np.testing.assert_array_equal(batch["weight"], [1.0] * windows + [0.0] * (64 - windows))
    assert not batch["tokens"][windows:].any()


def test_evaluations_read_the_same_windows(text):
    config, folder = text
    data = pipeline.eval_input(config, folder, Shard(), 4)
    np.testing.assert_array_equal(first_batches(data, 2), first_batches(data, 2))


def test_synthetic_batches_have_the_element_specs(text):
    config, folder = text
    assert (
        pipeline.synthetic(config, 4).element_spec
        == pipeline.train_input(config, folder, Shard(), 4, 0).element_spec
    )
    evaluated = pipeline.eval_input(config, folder, Shard(), 4).element_spec
    assert pipeline.synthetic(config, 4, training=False).element_spec == evaluated


def test_the_indices_alone_are_opened_before_the_clock(text):
    config, folder = text
    watch = Watch(folder)

    def touched() -> set[str]:
        paths = set()
        while names := {path.name for path in watch.accesses(0.1)}:
            paths |= names
        return paths

    pipeline.check_files(config, folder)
    assert touched() == {"train.idx", "valid.idx"}
    data = pipeline.train_input(config, folder, Shard(), 4, 0)
    pipeline.eval_input(config, folder, Shard(), 4)
    assert touched() == set()
    pipeline.check(config, folder)
    assert touched() == {"train.bin", "valid.bin"}
    first_batches(data, 1)
    watch.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_train_examples": 9}, r"windows of 8 tokens, 9 expected; set --config.num_train_examples=\d+"),
        (
            {"num_eval_examples": 99},
            "fewer than config.num_eval_examples=99; set --config.num_eval_examples=",
        ),
        ({"sequence_length": 4000}, r"\d+ tokens, but config.sequence_length=4000 needs 4001"),
    ],
)
def test_a_text_of_another_size_is_refused_before_the_clock(change, message, text):
    config, folder = text
    with pytest.raises(UserError, match=message) as error:
        pipeline.check_files(dataclasses.replace(config, **change), folder)
    assert "\n" not in str(error.value)


def test_tokens_above_the_vocabulary_are_refused_on_the_clock(text):
    config, folder = text
    config = dataclasses.replace(config, vocab_size=2)
    pipeline.check_files(config, folder)
    with pytest.raises(UserError, match=r"train.bin: token \d+ is not in the vocabulary of 2; set --config"):
        pipeline.check(config, folder)


def test_a_later_bad_token_ends_a_step_and_is_diagnosed(text):
    config, folder = text
    path = folder / "train.bin"
    tokens = np.fromfile(path, np.uint16)
    tokens[:] = 60
    path.write_bytes(tokens.tobytes())
    assert pipeline.diagnose(config, folder) is None
    data = pipeline.train_input(config, folder, Shard(), 4, 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="token 60"):
        first_batches(data, 1)
    message = r"train.bin: token 60 is not in the vocabulary of 50"
    assert (fault := pipeline.diagnose(config, folder)) and message in str(fault)


def test_files_that_were_replaced_are_read_anew(text):
    config, folder = text
    before = pipeline.load(config, folder, True)
    assert pipeline.load(config, folder, True) is before
    indexed.write(folder / "train", [np.arange(30)], np.dtype(np.uint16))
    config = dataclasses.replace(config, num_train_examples=3)
    assert len(pipeline.load(config, folder, True).reader.read([(0, 0, 30)])) == 30


def test_an_order_is_made_of_the_windows_of_a_whole_run(monkeypatch, tmp_path) -> None:
    """400 steps with an evaluation after each 50, and NeMo's one more, of 8 batches of 32."""
    monkeypatch.setattr(pipeline, "_loaded", lambda *arguments: arguments[-1])
    config = PRESETS["cpu-tiny"]
    assert pipeline.load(config, tmp_path, False) == (400 // 50 + 1) * 8 * 32
    assert pipeline.load(config, tmp_path, True) == 400 * config.global_batch_size


# {name: bytes} of the published files (llama31_8b/init_datasets.sh).
FILES = {
    "c4-train.en_6_text_document.bin": 83_976_774_280,
    "c4-train.en_6_text_document.idx": 912_172_262,
    "c4-validation-91205-samples.en_text_document.bin": 166_568_364,
    "c4-validation-91205-samples.en_text_document.idx": 1_824_142,
    "tokenizer.json": 9_085_658,
}


@pytest.fixture
def fill(tmp_path):
    """Returns call(text of the downloader), which runs the script; the sizes are sparse files."""
    script = tmp_path / "downloader.sh"

    def call(text: str, **variables: str) -> subprocess.CompletedProcess:
        script.write_text('set -e\nmkdir -p "$2/inner"\necho "$3" >>"$CALLS"\n' + text)
        paths = {
            "DATA_DIR": str(tmp_path / "data"),
            "DOWNLOADER": str(script),
            "CALLS": str(tmp_path / "calls"),
        }
        uris = {"DATA_URI": "data.uri", "TOKENIZER_URI": "tokens.uri"}
        return datasets.script("llama31_8b/init_datasets.sh", **{**paths, **uris, **variables})

    return call


def truncations(*names: str) -> str:
    return "".join(f'truncate -s {FILES[name]} "$2/inner/{name}"\n' for name in names)


TEXT, TOKENIZER = list(FILES)[:4], ["tokenizer.json"]
BOTH = f"if [ $3 = data.uri ]; then {truncations(*TEXT)} else {truncations(*TOKENIZER)} fi\n"


def test_files_are_placed_and_not_downloaded_twice(fill, tmp_path):
    assert fill(BOTH).returncode == 0
    assert {n: (tmp_path / "data" / n).stat().st_size for n in FILES} == FILES
    assert (tmp_path / "calls").read_text().split() == ["data.uri", "tokens.uri"]
    assert fill("exit 1\n").returncode == 0
    assert not (tmp_path / "data" / "download" / "tokenizer").exists()


def test_an_absent_or_short_file_is_one_line(fill, tmp_path):
    done = fill(BOTH + 'truncate -s 5 "$2"/inner/*.idx || true\n')
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "c4-train.en_6_text_document.idx is absent or not of the published size" in done.stderr
    assert "DATA_DIR is not set" in fill("", DATA_DIR="").stderr


def test_a_failed_download_is_said(fill):
    done = fill("exit 3\n")
    assert done.returncode == 2 and "the downloader failed at data.uri; run this again" in done.stderr
