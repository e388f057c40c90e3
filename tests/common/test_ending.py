"""What a log says of how its run ended."""

from __future__ import annotations

import json
import pathlib

import pytest

from common import ending


def log(folder: pathlib.Path, *values: float, **stop: str) -> pathlib.Path:
    """A log of a minute with these evaluations; without `stop` it has no run_stop."""
    lines = [("run_start", None, 0, {}), *(("eval_accuracy", v, 1, {}) for v in values)]
    lines += [("run_stop", None, 60000, stop)] if stop else []
    path = folder / "result_0.txt"
    with open(path, "w") as file:
        for key, value, at, metadata in lines:
            record = {
                "namespace": "",
                "time_ms": at,
                "event_type": "POINT_IN_TIME",
                "key": key,
                "value": value,
            }
            file.write(
                ":::MLLOG " + json.dumps({**record, "metadata": {"file": "", "lineno": 1, **metadata}}) + "\n"
            )
    return path


@pytest.mark.parametrize(
    ("values", "status", "reason", "whole", "diverged", "quality"),
    [
        ((0.5, 0.9), "success", "", True, False, 0.9),
        ((0.5, 0.7), "aborted", "the target was not reached in 10 steps", True, False, 0.7),
        ((0.5,), "aborted", "loss is nan at step 5; lower the learning rate", True, True, None),
        ((0.5, float("nan")), "aborted", "the target was not reached in 10 steps", True, True, None),
        ((), "aborted", "the target was not reached in 10 steps", True, False, None),
        ((0.5,), "aborted", "SIGTERM", False, False, 0.5),
        ((0.5,), "aborted", "IndexError: out of range", False, False, 0.5),
    ],
)
def test_endings(tmp_path, values, status, reason, whole, diverged, quality) -> None:
    path = log(tmp_path, *values, status=status, reason=reason)
    end = ending.read(path)
    assert (end.whole, end.diverged, end.quality, end.minutes) == (whole, diverged, quality, 1.0)
    assert ending.is_whole(path) is whole and end.reached is (status == "success")


def test_a_log_that_stops_short_has_no_ending(tmp_path) -> None:
    assert ending.read(log(tmp_path, 0.5)) is None
    assert ending.read(tmp_path / "nothing.txt") is None and not ending.is_whole(tmp_path / "nothing.txt")
