"""Predicts a GPU's training step from a compiled program's totals, calibrated to six steps measured on an H200.

    t(step) = FLOPs / (occupancy * matrix * peak) + bytes / (memory * bandwidth)

FLOPs and bytes are the program's own: those of its products and convolutions, and the bytes that XLA says its kernels
access, update included. Occupancy is the tile rule of compute.py, weighted by the network's kernels. Both constants are
fitted to the six steps of lab/bench/results/gpu/h200.json, and each step is predicted by the other five.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from systems.predict import compute, kernel_costs
from systems.predict.hardware import Machine

FAMILY = "h200"
STEPS = Path(__file__).resolve().parents[2] / "lab/bench/results/gpu/h200.json"
# The networks of the measured steps.
NETWORKS = {
    "resnet": "resnet50",
    "ssd": "ssd",
    "maskrcnn": "maskrcnn",
    "gnmt": "gnmt",
    "transformer": "transformer_big",
    "tsm_kinetics": "tsm",
}
# Seconds between kernels where no program is compiled: an assumption. The evaluation's turnaround is V100's, fitted.
_LAUNCH = 3e-6


@dataclasses.dataclass(frozen=True)
class Totals:
    """A compiled step's totals: FLOPs of its products, bytes accessed, for `batch` examples; `seconds` as measured."""

    network: str
    batch: int
    flops: float
    bytes: float
    kernels: int
    seconds: float


def totals(network: str) -> Totals | None:
    """The compiled step of a network, from data/constants.json; None if there is none."""
    found = compute.committed()[FAMILY]["programs"].get(network)
    return Totals(network, **found) if found else None


def seconds(
    program: Totals,
    machine: Machine,
    matrix: float,
    memory: float,
    flops: float,
    batch: float,
    precision: str,
) -> tuple[float, float]:
    """Seconds of a step's arithmetic and of its memory traffic.

    Args:
      flops: FLOPs of `batch` examples; the program's bytes grow with them, but for the weights' update.
    """
    net = kernel_costs.load(program.network)
    g, m, n, k = (
        x[:, 0] + x[:, 1] * batch for x in (net.train.groups, net.train.m, net.train.n, net.train.k)
    )
    each = net.train.count * g * m * n * k
    filled = each.sum() / (each / compute.occupancy(g, m, n, k, machine)).sum()
    update = 4 * compute.VALUES["adam"] * net.parameters
    moved = update + max(0.0, program.bytes - update) * flops / program.flops
    wide = compute.itemsize(precision) / 2
    arithmetic = flops / (filled * matrix * machine.peak(precision))
    return float(arithmetic), float(moved * wide / (memory * machine.memory_bandwidth))


def measured() -> list[Totals]:
    """The six steps of lab/bench/results/gpu/h200.json."""
    rows = json.loads(STEPS.read_text(encoding="utf-8"))["rows"]
    found = []
    for name, network in NETWORKS.items():
        row, kernels = rows[f"step/{name}"], rows[f"compile/{name}"]["kernels"]
        flops, moved = 1e12 * row["matrix_tflop"], 1e9 * row["compiler_gb_accessed"]
        found.append(Totals(network, row["batch"], flops, moved, sum(kernels.values()), row["ms"] / 1e3))
    return found


def predicted(program: Totals, machine: Machine, matrix: float, memory: float) -> float:
    """Seconds of a measured step."""
    return sum(seconds(program, machine, matrix, memory, program.flops, program.batch, "bf16"))


def fit(programs: Sequence[Totals], machine: Machine) -> tuple[float, float]:
    """The fractions of the peak and of the bandwidth that best fit the steps, by least squares of logarithms."""
    from scipy.optimize import least_squares

    goal = np.log([one.seconds for one in programs])

    def wrong(logs: np.ndarray) -> np.ndarray:
        return np.log([predicted(one, machine, *np.exp(logs)) for one in programs]) - goal

    found = least_squares(wrong, np.log([0.6, 0.6]))
    return tuple(float(f"{x:.4g}") for x in np.exp(found.x))


def machine() -> Machine:
    """The machine of the measured steps: one H200."""
    from systems.predict import chips

    return Machine("h200-1", 1, 1, 0.0, 224, dict(chips.chips()["H200-SXM"]) | {"name": "H200-SXM"})


def refit(turnaround: float) -> dict[str, Any]:
    """The family's entry of data/constants.json: constants, programs, and each step predicted by the others."""
    steps, one = measured(), machine()
    matrix, memory = fit(steps, one)
    left = {}
    for step in steps:
        others = fit([other for other in steps if other is not step], one)
        left[step.network] = round(predicted(step, one, *others) / step.seconds - 1, 4)
    values = compute.Constants(matrix, memory, _LAUNCH, turnaround)
    programs: Mapping[str, Any] = {
        step.network: {k: v for k, v in dataclasses.asdict(step).items() if k != "network"} for step in steps
    }
    return {"constants": dataclasses.asdict(values), "left_out_steps": left, "programs": programs}


def left_out() -> dict[str, float]:
    """{network: relative error of its measured step, predicted by the other five}."""
    return compute.committed()[FAMILY]["left_out_steps"]
