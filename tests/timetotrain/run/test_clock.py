"""Tests that no benchmark opens a file of its data before the clock starts, as the kernel sees it.

The checks before the clock run here, with our notes and without. A whole run, network, compilation and all, is in
`make e2e`.
"""

import pathlib
import shutil
from collections.abc import Iterator

import pytest
import tensorflow as tf

import gnmt.tiny
import llama31_8b.tiny
import mnist.tiny
import ptb.tiny
import resnet.tiny
import transformer.tiny
import tsm_kinetics.tiny
from common.config import benchmarks
from common.data import tfrecords
from common.detection import drawing
from common.errors import UserError
from tests.before_the_clock import NOTES, Watch, is_note, observe
from tests.benchmarks import check_all

PICTURES = drawing.Pictures(
    train_images=24, eval_images=5, train_files=2, eval_files=1, most=3, radius=(0.2, 0.38), empty=0.0
)
PAIR = {"train_pairs": 300, "eval_pairs": 10, "shards": 2}
TEXT = llama31_8b.tiny.Tiny(train_tokens=64 * 40 + 1, eval_tokens=64 * 10 + 1)
# {benchmark: what generates its data}.
MAKERS = {
    "mnist": lambda folder: mnist.tiny.generate(folder),
    "ptb": lambda folder: ptb.tiny.generate(folder),
    "llama31_8b": lambda folder: llama31_8b.tiny.generate(folder, TEXT),
    "resnet": lambda folder: resnet.tiny.generate(
        folder, resnet.tiny.Tiny(train_images=40, eval_images=10, train_files=4, eval_files=2)
    ),
    "ssd": lambda folder: drawing.generate(folder, PICTURES, "ssd"),
    "maskrcnn": lambda folder: drawing.generate(folder, PICTURES, "maskrcnn"),
    "gnmt": lambda folder: gnmt.tiny.generate(folder, gnmt.tiny.Tiny(**PAIR)),
    "transformer": lambda folder: transformer.tiny.generate(folder, transformer.tiny.Tiny(**PAIR)),
    "tsm_kinetics": lambda folder: tsm_kinetics.tiny.generate(
        folder, tsm_kinetics.tiny.Tiny(train_videos=16, eval_videos=6, train_files=2, eval_files=2)
    ),
}
# Settings of cpu-tiny that fit such data, and make its network small, in a run.
DETECTED = {"num_train_examples": 24, "num_eval_examples": 5, "global_batch_size": 4, "eval_batch_size": 4}
FIELDS = {
    "mnist": {},
    "ptb": {},
    "llama31_8b": {"num_train_examples": 40, "num_eval_examples": 10},
    "resnet": {
        "num_train_examples": 40,
        "num_eval_examples": 10,
        "global_batch_size": 8,
        "eval_batch_size": 8,
    },
    "ssd": DETECTED | {"width": 2, "image_size": 72},
    "maskrcnn": DETECTED | {"backbone_width": 8},
    "gnmt": {"num_eval_examples": 10, "width": 8, "global_batch_size": 8, "eval_batch_size": 8},
    "transformer": {"num_eval_examples": 10, "width": 8, "heads": 2, "schedule.width": 8}
    | {"global_batch_size": 8, "eval_batch_size": 8},
    "tsm_kinetics": {"num_train_examples": 16, "num_eval_examples": 6, "global_batch_size": 4}
    | {"eval_batch_size": 4},
}


@pytest.fixture(scope="module", params=MAKERS)
def generated(request, tmp_path_factory) -> tuple[str, pathlib.Path, dict[str, str]]:
    """(benchmark, folder of its data, {path of a field: value} of cpu-tiny for them)."""
    benchmark = request.param
    if benchmark == "gnmt":
        pytest.importorskip("sacremoses", reason="sacremoses absent")
    if benchmark == "transformer":
        pytest.importorskip("official", reason="tf-models-official absent")
    folder = tmp_path_factory.mktemp(benchmark)
    counts = MAKERS[benchmark](folder)
    fields = {name: str(value) for name, value in FIELDS[benchmark].items()}
    if benchmark in ("gnmt", "transformer"):
        fields |= {"vocabulary_size": str(counts["vocabulary"])}
        fields |= {"num_train_examples": str(counts["pairs" if benchmark == "gnmt" else "packed"])}
    return benchmark, folder, fields


@pytest.fixture
def copied(generated, tmp_path) -> tuple[str, pathlib.Path, dict[str, str]]:
    """As `generated`, of a folder that the test may change."""
    benchmark, folder, fields = generated
    return benchmark, pathlib.Path(shutil.copytree(folder, tmp_path / "data")), fields


def task(benchmark: str, folder: pathlib.Path, fields: dict[str, str]):
    from common.config import overrides

    presets = benchmarks.module(benchmark, "presets")
    config = overrides.configure(
        presets.PRESETS, presets.Config, "cpu-tiny", list(fields.items()), None, None, []
    )
    return benchmarks.module(benchmark, "task").Task(config, str(folder))


def touched(watch: Watch, folder: pathlib.Path) -> set[str]:
    """Names of the files that were opened or read since the last call, without indices of a text."""
    paths = set()
    while names := {path.relative_to(folder).as_posix() for path in watch.accesses(0.1)}:
        paths |= names
    return {name for name in paths if name in NOTES or not is_note(name)}


@pytest.fixture
def watch(copied) -> Iterator[Watch]:
    observer = Watch(copied[1])
    yield observer
    observer.close()


def test_the_check_before_the_clock_opens_our_notes_alone_and_the_one_on_it_the_data(copied, watch):
    one = task(*copied)
    one.check_input()
    assert touched(watch, copied[1]) <= NOTES
    one.check_data()
    # Its notes tell all that the check needs.
    assert touched(watch, copied[1]) - NOTES or copied[0] == "resnet"


def test_without_notes_the_check_before_the_clock_opens_no_file_at_all(copied, watch, capsys):
    for path in [*copied[1].glob("*.json"), *copied[1].glob("*.index.npz")]:
        if not path.name.startswith("instances"):
            path.unlink()
    one = task(*copied)
    one.check_input()
    assert touched(watch, copied[1]) == set()
    warnings = capsys.readouterr().err
    counted = copied[0] in ("resnet", "ssd", "maskrcnn", "transformer")
    assert ("on the clock" in warnings and "before: python -m" in warnings) == counted
    one.check_data()
    assert touched(watch, copied[1])


def test_a_file_cut_short_is_refused_before_the_clock_by_its_size(copied, watch):
    shards = sorted(copied[1].glob("train-*-of-*"))
    if not shards:
        pytest.skip("no records, no note of them")
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[: len(content) // 2])
    touched(watch, copied[1])
    with pytest.raises(UserError, match=f"{shards[0].name}: has .* bytes, records.json beside it says"):
        task(*copied).check_input()
    assert touched(watch, copied[1]) <= NOTES


def test_a_missing_file_is_one_line_before_the_clock(copied, watch):
    benchmark, folder, _ = copied
    names = [path.name for path in folder.iterdir() if path.is_file() and path.name not in NOTES]
    unused = {"instances_train2017.json", "train.index.npz", "val.index.npz", "classes.txt", "left_out.txt"}
    if benchmark == "ptb":
        unused |= {"ptb.valid.txt"}
    for name in sorted(set(names) - unused):
        (folder / name).rename(folder.parent / "away")
        touched(watch, folder)
        with pytest.raises(UserError) as error:
            task(*copied).check_input()
        assert "\n" not in str(error.value)
        assert touched(watch, folder) <= NOTES
        (folder.parent / "away").rename(folder / name)
    check_all(task(*copied))


def test_the_watch_sees_what_python_and_tensorflow_read_and_no_listing(tmp_path):
    path = tmp_path / tfrecords.shard_name("train", 0, 1)
    tfrecords.write(path, [b"record"])
    (tmp_path / "text").write_text("text")
    watch = Watch(tmp_path)
    assert tfrecords.list_files(tmp_path, "train-*", "") == [str(path)] and path.stat().st_size
    assert touched(watch, tmp_path) == set()
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == [b"record"]
    assert touched(watch, tmp_path) == {path.name}
    assert (tmp_path / "text").read_text() == "text"
    assert touched(watch, tmp_path) == {"text"}
    watch.close()


@pytest.mark.e2e
def test_a_run_opens_no_file_of_its_data_before_run_start(generated, tmp_path):
    benchmark, folder, fields = generated
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    observer = observe(benchmark, folder, tmp_path, *flags)
    output = (tmp_path / "output.txt").read_text()
    assert observer.started and observer.after, output
    assert observer.data_before() == set(), output
