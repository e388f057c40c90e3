"""Tests cpu-tiny of five benchmarks through run_and_time.sh: target, log, equal seeds; networks with a fault miss."""

import pathlib
from collections.abc import Mapping

import pytest

from compliance.api import check
from tests.benchmarks import (
    assert_reaches_its_target,
    log_name,
    missed,
    missed_with,
    records,
    runner,
    untimed_misses,
)

E2E = pytest.mark.e2e
TARGETS = {"gnmt": 0.24, "maskrcnn": {"BBOX": 0.377, "SEGM": 0.339}, "ssd": 0.23, "transformer": 0.25}
# (benchmark, fault of tests/faulty.py, bound that none of at least three evaluations reaches).
FAULTS = [
    ("gnmt", "attend", 0.24),
    ("gnmt", "shift_targets", 0.24),
    # The preset has five epochs; after a sixth the box head compensates for the fault (0.381).
    ("maskrcnn", "anchor_shift", {"BBOX": 0.377}),
    ("maskrcnn", "train_mask_head", {"SEGM": 0.1}),
    ("ssd", "anchor_shift", 0.15),
    ("transformer", "positions", 0.25),
    ("transformer", "attend_source", 0.25),
    ("transformer", "shift_targets", 0.25),
]
_FOUR_STEPS = ("train_steps=4", "steps_per_block=4")
# Settings of runs that miss their target.
SHORT = {
    "gnmt": (*_FOUR_STEPS, "width=16", "bucket_limits=36", "decode.target_length=4"),
    "transformer": (*_FOUR_STEPS, "layers=1", "decode.extra_length=0", "eval_batch_size=200"),
    "tsm_kinetics": ("train_epochs=1", "epochs_per_block=0.5"),
}
# Settings of a run of four steps, bound of the quality, keys of the evaluation's details.
DETECTORS = {
    "ssd": ("width=4", 0.23, {"AP50", "AP75", "AP_small"}),
    "maskrcnn": ("backbone_width=4", 0.2, {"BBOX_AP50", "SEGM_AP75"}),
}


def parts(quality: float | Mapping[str, float]) -> Mapping[str, float]:
    return quality if isinstance(quality, Mapping) else {"": quality}


@E2E
@pytest.mark.parametrize("benchmark", TARGETS)
def test_reaches_its_target_with_a_log_that_passes(benchmark, data_dir, tmp_path) -> None:
    run, log = runner(benchmark, timeout=3600), log_name(benchmark)
    printed, last = assert_reaches_its_target(run, log, data_dir / benchmark, tmp_path)
    reached = parts(last["eval_accuracy"]["value"])
    assert all(target <= reached[name] < 1 for name, target in parts(TARGETS[benchmark]).items())
    assert "verdict  passes" in printed


def test_tsm_reaches_its_target_and_damaged_data_are_named(data_dir, tmp_path) -> None:
    """On real mp4 files."""
    run, data = runner("tsm_kinetics"), data_dir / "tsm_kinetics"
    done = run(data, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / log_name("tsm_kinetics")
    assert [f.message for f in check([log]).findings if f.severity == "error"] == []
    last = {record["key"]: record["value"] for record in records(log)}
    assert last["eval_accuracy"] >= 0.74 and (last["train_samples"], last["eval_samples"]) == (640, 203)
    shard = data / "train-00003-of-00004"
    whole = shard.read_bytes()
    try:
        shard.write_bytes(whole[:100_000] + b"\0" * 50_000 + whole[150_000:])
        done = run(data, tmp_path / "damaged")
    finally:
        shard.write_bytes(whole)
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr
    assert f"{shard.name}: record" in done.stderr and "is damaged" in done.stderr


@E2E
@pytest.mark.parametrize(("benchmark", "fault", "bound"), FAULTS)
def test_a_network_with_a_fault_misses_the_target(benchmark, fault, bound, data_dir, tmp_path) -> None:
    actual = missed_with(benchmark, fault, data_dir / benchmark, tmp_path)
    assert len(actual) >= 3
    for name, most in parts(bound).items():
        assert max(parts(value)[name] for value in actual) < most


@E2E
def test_single_frames_miss_the_target(data_dir, tmp_path) -> None:
    """They hold no information: TSN, which averages them, stays near the chance of 25 %."""
    run, data = runner("tsm_kinetics", timeout=3600), data_dir / "tsm_kinetics"
    actual = missed(run, log_name("tsm_kinetics"), data, tmp_path, "--config.model=tsn")
    assert len(actual) >= 3 and max(actual) < 0.45


@pytest.mark.parametrize(
    "benchmark", [pytest.param(name, marks=() if name == "transformer" else E2E) for name in SHORT]
)
def test_equal_seeds_give_equal_logs(benchmark, data_dir, tmp_path) -> None:
    """The runs miss their target: they say so, and their logs break no other rule."""
    run, stock = runner(benchmark, timeout=1800), benchmark in TARGETS
    flags = [f"--config.{setting}" for setting in SHORT[benchmark]]
    at = log_name(benchmark), data_dir / benchmark, tmp_path
    other = {"c": 4} if benchmark == "tsm_kinetics" else {}
    logs = untimed_misses(run, *at, {"a": 3, "b": 3, **other}, *flags, stock=stock)
    assert logs["a"] == logs["b"] != logs.get("c")


@pytest.mark.parametrize("benchmark", ["ssd", pytest.param("maskrcnn", marks=E2E)])
def test_a_short_run_evaluates_every_image_once(benchmark: str, data_dir: pathlib.Path, tmp_path) -> None:
    """Runs the whole path, with evaluation in its workers: 4 steps, aborted below the target."""
    width, most, details = DETECTORS[benchmark]
    settings = (
        "train_steps=4",
        width,
        *["eval_workers=2"] * (benchmark == "maskrcnn"),
    )
    flags = [f"--config.{setting}" for setting in settings]
    missed(runner(benchmark, timeout=3600), log_name(benchmark), data_dir / benchmark, tmp_path, *flags)
    (record,) = (r for r in records(tmp_path / log_name(benchmark)) if r["key"] == "eval_accuracy")
    assert all(0 <= value < most for value in parts(record["value"]).values())
    assert details <= set(record["metadata"])
