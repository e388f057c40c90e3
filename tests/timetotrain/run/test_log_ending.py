"""Tests how the end of a run is read from its log."""

import pathlib

import pytest

from tests.benchmarks import line
from timetotrain.run import log_ending

ROOT = pathlib.Path(__file__).resolve().parents[3]
MISSED = {"status": "aborted", "reason": "the target was not reached in 10 steps"}


def log(folder: pathlib.Path, *values: object, **stop: str) -> pathlib.Path:
    """Writes a log of a minute with these evaluations; without `stop` it has no run_stop."""
    lines = [line("run_start"), *(line("eval_accuracy", v, 1) for v in values)]
    lines += [line("run_stop", None, 60000, **stop)] if stop else []
    path = folder / "result_0.txt"
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    ("values", "status", "reason", "whole", "diverged", "quality"),
    [
        ((0.5, 0.9), "success", "", True, False, 0.9),
        ((0.5, 0.7), "aborted", "the target was not reached in 10 steps", True, False, 0.7),
        ((0.5,), "aborted", "loss is nan at step 5; lower the learning rate", True, True, None),
        ((0.5, float("nan")), "aborted", "the target was not reached in 10 steps", True, True, None),
        ((), "aborted", "the target was not reached in 10 steps", True, False, None),
        ((0.5,), "aborted", "gradients are not finite at a loss scale of 1 either", True, True, None),
        ((0.5, 0.7), "aborted", "nothing was gained in 5 evaluations", True, False, 0.7),
        ((0.5,), "aborted", "SIGTERM", False, False, 0.5),
        ((0.5,), "aborted", "IndexError: out of range", False, False, 0.5),
    ],
)
def test_endings(tmp_path, values, status, reason, whole, diverged, quality) -> None:
    path = log(tmp_path, *values, status=status, reason=reason)
    end = log_ending.read(path)
    assert (end.whole, end.diverged, end.quality, end.minutes) == (whole, diverged, quality, 1.0)
    assert log_ending.is_whole(path) is whole and end.reached is (status == "success")


def test_a_log_that_stops_short_has_no_ending(tmp_path) -> None:
    assert log_ending.read(log(tmp_path, 0.5)) is None
    assert log_ending.read(tmp_path / "nothing.txt") is None and not log_ending.is_whole(
        tmp_path / "nothing.txt"
    )


def test_a_log_of_mask_rcnn_has_both_its_qualities() -> None:
    path = ROOT / "lab/studies" / "nuclei" / "maskrcnn_result_0.txt"
    end = log_ending.read(path)
    assert log_ending.is_whole(path) and not end.reached and not end.diverged
    assert end.minutes == pytest.approx(11.25, abs=0.01) and len(end.evaluations) == 4
    assert end.evaluations[0] == {"BBOX": 0.3426686429996537, "SEGM": 0.38452893825360196}
    assert end.quality == end.evaluations[-1]


@pytest.mark.parametrize("bad", [float("nan"), None, "x", [0.5]])
def test_a_part_that_is_no_number_is_a_divergence_and_no_traceback(tmp_path, bad) -> None:
    for value in (bad, {"BBOX": 0.5, "SEGM": bad}):
        path = log(tmp_path, value, **MISSED)
        end = log_ending.read(path)
        assert end.diverged and end.quality is None and log_ending.is_whole(path) and end.minutes == 1.0
