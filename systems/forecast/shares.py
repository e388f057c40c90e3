"""The shares of a training step, from the TPU compiler's report on a preset's program.

A kind's share is its part of the scheduler's cycles (systems/compile); the exchange's follows from the program's
remaining collectives and the torus's links (torus.py), which the compiler starts and ends one after the other. The
shares are the compiler's estimate: no seconds are printed, since the law alone gives a run's time.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from systems.compile import series
from systems.compile.store import RESULTS
from systems.compile.targets import target
from systems.forecast import accelerators
from systems.forecast.torus import Torus

EXCHANGE = "exchange between chips"
# Fraction of the links' and memory's rate that collectives reach: an assumption.
LINK_SHARE = 0.8
# Tokens of a WMT sentence on average, with GNMT's end symbol.
_GNMT_LENGTH = 34
_ACCELERATORS = {
    "tpu-v2": "TPU v3", "tpu-v3": "TPU v3", "tpu-v4": "TPU v4", "tpu-v4-megacore": "TPU v4",
    "tpu-v5e": "TPU v5e", "tpu-v5p": "TPU v5p", "tpu-v6e": "TPU v6e",
}  # fmt: skip


@functools.cache
def of_preset(benchmark: str, system: str) -> dict[str, float] | None:
    """The share of a step by kind of operation, largest first; None if no whole step is compiled for a TPU."""
    record = series.record_of(benchmark, system, RESULTS)
    if not record or record["kind"] not in _ACCELERATORS:
        return None
    kind, reports = record["kind"], series.reports(record, RESULTS)
    clock = target(kind, 1).megahertz
    train = [reports[name] for name in sorted(reports) if name.startswith("train")]
    if not clock or not train or not all("cycles" in report for report in train):
        return None
    seconds: Counter[str] = Counter()
    for weight, report in _weighted(record.get("lengths", ()), train):
        for name, cycles in report["cycles"]["by_kind"].items():
            seconds[name] += weight * cycles / (clock * 1e6)
        seconds[EXCHANGE] += weight * exchange(report, kind, record["replicas"])
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.most_common()}


def exchange(report: Mapping[str, Any], kind: str, replicas: int) -> float:
    """Seconds of a program's collectives on the links of its slice."""
    torus = Torus.of(report["topology"], kind, accelerators.table()[_ACCELERATORS[kind]], LINK_SHARE)
    return sum(torus.seconds(row, replicas) for row in report["collectives"])


def _weighted(
    lengths: Sequence[int], reports: Sequence[Mapping[str, Any]]
) -> list[tuple[float, Mapping[str, Any]]]:
    """Each program's part of the steps.

    Mask R-CNN's two orientations have equal parts. Of GNMT's buckets, in order of length, only the two around the mean
    sentence length count.
    """
    if len(lengths) != len(reports) or len(reports) < 2:
        return [(1 / len(reports), report) for report in reports]
    above = next((i for i, length in enumerate(lengths) if length >= _GNMT_LENGTH), len(lengths) - 1)
    below = max(0, above - 1)
    wide = lengths[above] - lengths[below]
    part = min(1.0, (_GNMT_LENGTH - lengths[below]) / wide) if wide else 1.0
    return [(part, reports[above]), (1 - part, reports[below])] if wide else [(1.0, reports[above])]
