"""What a forecast is asked, and what it answers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from common.errors import UserError
from systems.predict import kernel_costs, measured, workload
from systems.predict.compiled import Scaled
from systems.predict.compute import Constants
from systems.predict.hardware import Machine
from systems.predict.law import Estimate
from systems.predict.model import Run
from systems.predict.workload import Workload


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """Changes to a preset; None keeps the preset's value. For a TPU, `accelerators` counts chips.

    `formulas` computes the step from formulas even if the preset's program is compiled.
    """

    accelerators: int | None = None
    batch: int | None = None
    partitions: int | None = None
    span: int | None = None
    wire: str | None = None
    shard_update: bool | None = None
    epochs: float | None = None
    model: str | None = None
    formulas: bool = False

    def __post_init__(self) -> None:
        for name, least in (("accelerators", 1), ("batch", 1), ("partitions", 1), ("span", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name}={value}: must be at least {least}")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise UserError(f"--epochs={self.epochs:g}: must be a positive number")

    @property
    def changes_step(self) -> bool:
        """Whether the training step differs from the preset's."""
        return dataclasses.replace(self, epochs=None, formulas=False) != WhatIf()


@dataclasses.dataclass(frozen=True)
class Answer:
    """A prediction.

    Attributes:
      path: the source of the training step: a compiled program, one that was measured on another device, or formulas.
      interval: the 90 % interval of runs, in seconds; None outside the tested range.
      notes: the assumptions.
      law: what published systems of this kind take with the preset unchanged; None where the family has constants.
      factor: what the law makes of every term of the formulas.
      no_interval: why there is no interval; "" if there is one.
    """

    work: Workload
    machine: Machine
    constants: Constants
    run: Run
    interval: tuple[float, float] | None
    epochs: tuple[float, float, float]
    notes: tuple[str, ...]
    made: Scaled | None = None
    law: Estimate | None = None
    factor: float = 1.0
    no_interval: str = ""

    @property
    def path(self) -> str:
        """The source of the training step."""
        if self.made:
            return f"compiled program ({self.run.program})"
        if self.machine.family == measured.FAMILY and measured.totals(self.work.network):
            known = measured.kernels(self.work.network) is not None
            return f"{'kernels' if known else 'totals'} of the program that was measured on an H200"
        return "formulas"

    @property
    def estimate(self) -> tuple[float, float] | None:
        """Seconds of the program's step from the scheduler's cycles, without a fitted factor, and of its exchange."""
        if not self.made:
            return None
        moved = self.made.program.exchange(self.machine, self.made.scale.link)
        return sum(self.made.program.kinds().values()), sum(moved.values())

    def as_dict(self) -> dict[str, Any]:
        """The prediction as a dict for JSON; times are in seconds."""
        run, step = self.run, self.run.step
        return {
            "benchmark": self.work.benchmark,
            "system": self.machine.name,
            "accelerators": self.machine.accelerators,
            "workload": workload.describe(self.work),
            "epochs": {"expected": self.epochs[1], "low": self.epochs[0], "high": self.epochs[2]},
            "steps": run.steps,
            "evaluations": run.evaluations,
            "step_seconds": {term: getattr(step, term) for term in step.TERMS} | {"total": step.total},
            "compute_seconds_by_kind": step.kinds,
            "run_seconds": {term: getattr(run, term) for term in run.TERMS} | {"total": run.total},
            "interval_seconds": self.interval and list(self.interval),
            "no_interval": self.no_interval,
            "published_systems": self.law and dataclasses.asdict(self.law) | {"factor": self.factor},
            "step_from": self.path,
            "estimated_seconds": self.made and dict(zip(("cycles", "exchange"), self.estimate)),
            "memory_bytes": self.made and dict(zip(("needed", "device"), self.made.program.needed)),
            "constants": dataclasses.asdict(self.made.scale if self.made else self.constants),
            "costs": kernel_costs.load(self.work.network).source,
            "assumptions": list(self.notes),
        }
