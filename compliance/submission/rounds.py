"""The facts of each round that a whole submission is held to: benchmarks, runs of a score, runs that may fail.

The source of every number is in data/rounds.json.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from compliance.log.rules import metric

_DATA = Path(__file__).parents[1] / "data" / "rounds.json"
_DEFAULT_RUNS = 5  # where neither the round's table nor the benchmark's rules give a number
# mlperf_logging/package_checker/package_checker.py (check_training_result_files), equal in every round.
_MAY_FAIL = {"unet3d": 4}


@cache
def _facts() -> dict:
    return json.loads(_DATA.read_text(encoding="utf-8"))


def number(ruleset: str) -> tuple[int, int]:
    """(5, 1) of "5.1.0"; (0, 0) of anything that is no round."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", ruleset or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def benchmarks(ruleset: str) -> tuple[str, ...]:
    """The benchmarks of a round's table, in its order; () for an unknown round."""
    return tuple(_facts()["benchmarks"].get(ruleset, ()))


def required_runs(benchmark: str, ruleset: str = "0.7.0") -> int:
    """How many runs make a score. The benchmark's own rules go before the table of all rounds."""
    table = _facts()["runs"].get(benchmark, _DEFAULT_RUNS)
    return metric(ruleset, benchmark).get("runs", table)


def may_fail(benchmark: str) -> int:
    """How many runs of a folder may miss the target or break a rule: the olympic mean drops them as slowest."""
    return _MAY_FAIL.get(benchmark, 1)
