"""The facts of each round about whole submissions: benchmarks, runs per score, runs that may fail.

data/rounds.json has the source of every number.
"""

import json
import re
from functools import cache
from pathlib import Path

from compliance.log.rules import benchmark_section

_DATA = Path(__file__).parents[1] / "data" / "rounds.json"
_DEFAULT_RUNS = 5  # if neither the round's table nor the benchmark's rules give a number
# mlperf_logging/package_checker/package_checker.py (check_training_result_files), the same in every round.
_MAY_FAIL = {"unet3d": 4}


@cache
def _facts() -> dict:
    return json.loads(_DATA.read_text(encoding="utf-8"))


def number(ruleset: str) -> tuple[int, int]:
    """Returns (5, 1) for "5.1.0"; (0, 0) for anything that is not a round."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", ruleset or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def benchmarks(ruleset: str) -> tuple[str, ...]:
    """Returns the benchmarks of a round's table, in table order; () for an unknown round."""
    return tuple(_facts()["benchmarks"].get(ruleset, ()))


def required_runs(benchmark: str, ruleset: str = "0.7.0") -> int:
    """Returns how many runs make a score. The benchmark's own rules override the table of all rounds."""
    table = _facts()["runs"].get(benchmark, _DEFAULT_RUNS)
    return benchmark_section(ruleset, benchmark).get("runs", table)


def may_fail(benchmark: str) -> int:
    """Returns how many runs of a folder may miss the target or break a rule: the olympic mean drops them as slowest."""
    return _MAY_FAIL.get(benchmark, 1)


def last_round(benchmark: str, ruleset: str = "") -> str:
    """Returns the last round that had a benchmark; "" for one that the newest round has, or that no round had.

    `ruleset` is the round of the runs: `ssd` is SSD-ResNet34 up to 1.1 and RetinaNet from 2.0 on.
    """
    tables = _facts()["benchmarks"]
    had = [name for name in sorted(tables, key=number) if benchmark in tables[name]]
    if benchmark == "ssd" and number(ruleset) < (2, 0) and ruleset:
        had = [name for name in had if number(name) < (2, 0)]
    return "" if not had or benchmark in tables[max(tables, key=number)] else had[-1]


def retirement(benchmark: str, ruleset: str = "") -> str:
    """Returns what a submitter must know of a retired benchmark, in one line; "" for one that is not retired.

    A division for retired benchmarks was proposed (mlcommons/training_policies #579) and declined for v6.0.
    """
    last = last_round(benchmark, ruleset)
    if not last:
        return ""
    short = last.removesuffix(".0")
    return (
        f"{benchmark} is retired: v{short} was its last round. Later rounds refuse its runs. "
        f"Compare them with that round: timetotrain check --ruleset {last}, timetotrain report --ruleset {last}"
    )
