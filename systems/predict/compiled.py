"""Converts the TPU compiler's report on a preset's steps into seconds per training step.

    seconds = cycles * scheduler's cycles / clock + exchange

The cycles are the compiler's own estimate for its program (systems/compile): they include products, memory traffic,
the weight update and copies. torus.py models the exchange from the program's remaining collectives. Nothing overlaps
with arithmetic here, since the compiler starts and ends collectives one after the other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from systems.compile import series
from systems.compile.store import RESULTS
from systems.compile.targets import target
from systems.predict.formulas import GNMT_LENGTH
from systems.predict.hardware import Machine
from systems.predict.torus import Torus

_HERTZ = 1e6


@dataclasses.dataclass(frozen=True)
class Scale:
    """Constants of compiled programs.

    Attributes:
      cycles: ratio of a step's seconds to the scheduler's estimate: one factor for all benchmarks.
      benchmarks: a benchmark's own factor, used instead; it accounts for the published program's difference from ours.
      v4: additional factor on a TPU v4.
      link: fraction of the links' and memory's rate that collectives reach.
      turnaround: seconds that an evaluation costs besides its arithmetic.
    """

    cycles: float
    link: float
    turnaround: float
    benchmarks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    v4: float = 1.0

    def of(self, benchmark: str, kind: str) -> float:
        """The factor for a benchmark's cycles on a device kind."""
        return self.benchmarks.get(benchmark, self.cycles) * (self.v4 if kind.startswith("tpu-v4") else 1.0)


@dataclasses.dataclass(frozen=True)
class Program:
    """A preset's compiled steps.

    Attributes:
      name: "BENCHMARK SYSTEM" of the preset.
      kind: the device kind, e.g. "tpu-v3".
      replicas: number of replicas in the program.
      megahertz: clock rate for converting cycles.
      train: (share of steps, compiler's report) per training program: one program per static batch shape.
      evaluate: the same for evaluation programs; empty if none is compiled, or one has loops of unknown length.
    """

    name: str
    kind: str
    replicas: int
    megahertz: float
    train: tuple[tuple[float, Mapping[str, Any]], ...]
    evaluate: tuple[tuple[float, Mapping[str, Any]], ...]

    @property
    def benchmark(self) -> str:
        return self.name.partition(" ")[0]

    def kinds(self) -> dict[str, float]:
        """Seconds of a training step from the scheduler's cycles, by kind of operation."""
        found: Counter[str] = Counter()
        for share, report in self.train:
            for kind, cycles in report["cycles"]["by_kind"].items():
                found[kind] += share * cycles / (self.megahertz * _HERTZ)
        return dict(found.most_common())

    def exchange(self, machine: Machine, link: float) -> dict[str, float]:
        """Seconds of a training step's collectives: "gradient_sum" (over all), "batch_norm" (groups), "halo"."""
        found = dict.fromkeys(("gradient_sum", "batch_norm", "halo"), 0.0)
        for share, report in self.train:
            for term, seconds in self._exchange(report, machine, link).items():
                found[term] += share * seconds
        return found

    def evaluation(self, machine: Machine, scale: Scale) -> float | None:
        """Seconds of one batch of the evaluation program; None if there is none."""
        if not self.evaluate:
            return None
        total = 0.0
        for share, report in self.evaluate:
            busy = report["cycles"]["total"] / (self.megahertz * _HERTZ)
            moved = sum(self._exchange(report, machine, scale.link).values())
            total += share * (scale.of(self.benchmark, self.kind) * busy + moved)
        return total

    def _exchange(self, report: Mapping[str, Any], machine: Machine, link: float) -> dict[str, float]:
        torus = Torus.of(report["topology"], self.kind, machine.chip, link)
        found: Counter[str] = Counter()
        for row in report["collectives"]:
            whole = row["group_size"] in (0, self.replicas)
            term = "gradient_sum" if whole else "batch_norm"
            term = "halo" if row["operation"] == "collective-permute" else term
            found[term] += torus.seconds(row, self.replicas)
        return dict(found)

    @property
    def unknown(self) -> int:
        """Number of loops in the training programs whose length the compiler does not know; they count once."""
        return max(report["cycles"]["loops_of_unknown_length"] for _, report in self.train)

    @property
    def needed(self) -> tuple[int, int]:
        """(bytes that the largest program needs per core, bytes that a core has)."""
        reports = [report for _, report in (*self.train, *self.evaluate)]
        return max(report["needed_bytes"] for report in reports), reports[0]["device_bytes"]


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A program with the constants that convert its estimate to seconds."""

    program: Program
    scale: Scale


@functools.cache
def load(benchmark: str, system: str, results: Path = RESULTS) -> Program | None:
    """Returns a preset's compiled steps; None if its training step is not compiled for a TPU with a known clock.

    Also None if only some shapes of its training step are compiled.
    """
    record = series.record_of(benchmark, system, results)
    if not record or not record["kind"].startswith("tpu") or "train" in record.get("partial", ()):
        return None
    reports, lengths = series.reports(record, results), record.get("lengths", ())
    kind = record["kind"]
    clock = target(kind, 1).megahertz
    train = _shares(lengths, [reports[name] for name in sorted(reports) if name.startswith("train")])
    evaluate = _shares(lengths, [reports[name] for name in sorted(reports) if name.startswith("eval")])
    if not clock or not train or not all("cycles" in report for _, report in train):
        return None
    return Program(
        f"{benchmark} {system}",
        kind,
        record["replicas"],
        clock,
        train,
        evaluate if _known(evaluate) else (),
    )


def _known(programs: Sequence[tuple[float, Mapping[str, Any]]]) -> bool:
    """Whether every program compiles and all loop lengths are known (a beam search's loop would count once)."""
    return all("cycles" in r and not r["cycles"]["loops_of_unknown_length"] for _, r in programs)


def _shares(
    lengths: Sequence[int], reports: Sequence[Mapping[str, Any]]
) -> tuple[tuple[float, Mapping[str, Any]], ...]:
    """Returns each program's share of the steps.

    Mask R-CNN's two orientations have equal shares. Of GNMT's buckets, in order of length, only the two around the
    mean sentence length count.
    """
    if len(lengths) != len(reports) or len(reports) < 2:
        return tuple((1 / len(reports), report) for report in reports)
    above = next((i for i, length in enumerate(lengths) if length >= GNMT_LENGTH), len(lengths) - 1)
    below = max(0, above - 1)
    wide = lengths[above] - lengths[below]
    part = min(1.0, (GNMT_LENGTH - lengths[below]) / wide) if wide else 1.0
    found = {above: part, below: 1 - part} if wide else {above: 1.0}
    return tuple((share, reports[i]) for i, share in sorted(found.items()) if share > 0)
