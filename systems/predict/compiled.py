"""Reads what the TPU compiler said of a preset's steps, and turns it into seconds of a training step.

    seconds = cycles * scheduler's cycles / clock + exchange

The cycles are the compiler's own estimate for the program that it made (systems/compile): products, memory traffic, the
weight update and copies are in them. The exchange is torus.py's, applied to the collectives that are left in the
program. Nothing of it overlaps with arithmetic here: the compiler starts and ends them one after the other.
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
    """The constants of compiled programs.

    Attributes:
      cycles: seconds that a step takes, over the scheduler's estimate: one factor for all benchmarks.
      benchmarks: a benchmark's own factor, instead: the published program was another than ours, by so much.
      v4: on a TPU v4, times this.
      link: the part of links' and memory's rate that collectives reach.
      turnaround: seconds an evaluation costs besides its arithmetic.
    """

    cycles: float
    link: float
    turnaround: float
    benchmarks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    v4: float = 1.0

    def of(self, benchmark: str, kind: str) -> float:
        """The factor of a benchmark's cycles on a kind of device."""
        return self.benchmarks.get(benchmark, self.cycles) * (self.v4 if kind.startswith("tpu-v4") else 1.0)


@dataclasses.dataclass(frozen=True)
class Program:
    """A preset's compiled steps.

    Attributes:
      name: "BENCHMARK SYSTEM" of the preset.
      kind: of device, e.g. "tpu-v3".
      replicas: of the program.
      megahertz: the clock at which cycles count.
      train: (share of steps, the compiler's report) of each training program: one per static shape of a batch.
      evaluate: the same of evaluation programs; empty where none is compiled, or has loops of unknown length.
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
        """Seconds of a training step by the scheduler's cycles, by kind of operation."""
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
        """Seconds of a batch of the evaluation's program; None where there is none."""
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
        """Loops of the training programs whose length the compiler does not know: they count once."""
        return max(report["cycles"]["loops_of_unknown_length"] for _, report in self.train)

    @property
    def needed(self) -> tuple[int, int]:
        """Bytes that the largest program needs on a core, and those that the core has."""
        reports = [report for _, report in (*self.train, *self.evaluate)]
        return max(report["needed_bytes"] for report in reports), reports[0]["device_bytes"]


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A program with the constants that make its estimate seconds."""

    program: Program
    scale: Scale


@functools.cache
def load(benchmark: str, system: str, results: Path = RESULTS) -> Program | None:
    """The compiled steps of a preset; None where its training step is not compiled for a TPU with a known clock.

    None as well where only some shapes of its training step are compiled.
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
    """Whether every program compiles and has only loops of known length; a beam search's would count once."""
    return all("cycles" in r and not r["cycles"]["loops_of_unknown_length"] for _, r in programs)


def _shares(
    lengths: Sequence[int], reports: Sequence[Mapping[str, Any]]
) -> tuple[tuple[float, Mapping[str, Any]], ...]:
    """The share of steps of each program.

    Mask R-CNN's two orientations count alike. GNMT's buckets, in order of their lengths, count as the two around the
    mean length of a sentence.
    """
    if len(lengths) != len(reports) or len(reports) < 2:
        return tuple((1 / len(reports), report) for report in reports)
    above = next((i for i, length in enumerate(lengths) if length >= GNMT_LENGTH), len(lengths) - 1)
    below = max(0, above - 1)
    wide = lengths[above] - lengths[below]
    part = min(1.0, (GNMT_LENGTH - lengths[below]) / wide) if wide else 1.0
    found = {above: part, below: 1 - part} if wide else {above: 1.0}
    return tuple((share, reports[i]) for i, share in sorted(found.items()) if share > 0)
