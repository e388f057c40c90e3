"""Every benchmark on every accelerator in fourteen sizes: what forecasts say, and how minutes go along sizes.

    python -m lab.bench.forecast_sweep

Calls what `timetotrain forecast` calls, in this process. Counts answers, refusals by reason, pairs of neighbouring
sizes that get slower or faster than their number by 8 %, and answers whose money has no interval. Peer: the scores
themselves, whose pairs of neighbouring sizes of one accelerator and round are counted alike.
"""

from __future__ import annotations

import collections
import sys

from common.files import ROOT
from lab.bench.harness.scripts import head, write
from systems.forecast import accelerators, law, memory, scores

SIZES = [1 << i for i in range(14)]
BEYOND = 1.08
OUTPUT = ROOT / "lab/bench/results/forecast_sweep.json"


def sweep() -> dict[str, int]:
    """The counts."""
    found: collections.Counter[str] = collections.Counter()
    for benchmark in scores.benchmarks():
        for name in accelerators.known_names():
            chip = accelerators.table()[name] | {"name": name}
            estimates = law.estimates(benchmark, chip, SIZES)
            told = []
            for one in estimates:
                fit = memory.fit(benchmark, chip, one.accelerators)
                reason = "memory" if fit and not fit.fits else one.reason
                found["calls"] += 1
                found["answers" if not reason else "refused"] += 1
                told += [] if reason else [(one.accelerators, one.minutes)]
            pairs(told, found)
    return dict(found)


def pairs(told: list[tuple[int, float]], found: collections.Counter[str]) -> None:
    """Counts pairs of neighbouring sizes that get slower, or faster by more than BEYOND times their ratio."""
    for (few, long), (many, short) in zip(told, told[1:]):
        found["pairs"] += 1
        found["slower"] += short > long * 1.0001
        found["superlinear"] += long / short > BEYOND * many / few


def published() -> dict[str, int]:
    """The same counts of published scores: the fastest of each size, of one accelerator and round."""
    found: collections.Counter[str] = collections.Counter()
    groups: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in scores.rows():
        sizes = groups.setdefault((row.benchmark, row.chip, row.round), {})
        sizes[row.accelerators] = min(row.minutes, sizes.get(row.accelerators, row.minutes))
    for sizes in groups.values():
        pairs(sorted(sizes.items()), found)
    return dict(found)


def main() -> int:
    """Prints and writes the counts; returns 0."""
    rows = {"forecasts": sweep(), "published": published()}
    print(rows)
    write(head("numpy") | {"rows": rows}, OUTPUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
