"""Predicts a GPU's training step from its compiled program, calibrated to steps measured on an H200.

    t(step) = sum over kernels of max(FLOPs / (matrix * peak), bytes / (memory * bandwidth), launch)

Kernels are those that XLA compiles for an H200 (data/gpu_kernels.csv, made by lab/bench/gpu_programs.py), update
included. Where a network's are missing, the totals of the program that was measured stand in:

    t(step) = FLOPs / (occupancy * matrix * peak) + bytes / (memory * bandwidth)

Occupancy is the tile rule of compute.py, weighted by the network's kernels. Both forms have two constants of their own,
fitted to the steps of lab/bench/results/gpu/h200.json, and each step is predicted by the others.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
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
KERNELS = Path(__file__).parent / "data/gpu_kernels.csv"
# The shortest kernel's seconds, and those between kernels where no program is compiled: an assumption. The evaluation's
# turnaround is V100's, fitted.
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


# Seconds of a step's arithmetic and of its memory traffic: `seconds` or `kernel_seconds`.
Form = Callable[..., tuple[float, float]]


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
    moved = program.bytes * _growth(program, program.bytes, flops)
    wide = compute.itemsize(precision) / 2
    arithmetic = flops / (filled(program.network, batch, machine) * matrix * machine.peak(precision))
    return float(arithmetic), float(moved * wide / (memory * machine.memory_bandwidth))


def _growth(program: Totals, moved: float, flops: float) -> float:
    """How many times the program's bytes a step of `flops` moves: all grow with the FLOPs but the weights' update."""
    update = 4 * compute.VALUES["adam"] * kernel_costs.load(program.network).parameters
    return (update + max(0.0, moved - update) * flops / program.flops) / moved


def filled(network: str, batch: float, machine: Machine) -> float:
    """The fraction of a GPU's units that the network's products keep busy."""
    net = kernel_costs.load(network)
    g, m, n, k = (
        x[:, 0] + x[:, 1] * batch for x in (net.train.groups, net.train.m, net.train.n, net.train.k)
    )
    each = net.train.count * g * m * n * k
    return float(each.sum() / (each / compute.occupancy(g, m, n, k, machine)).sum())


@functools.cache
def kernels(network: str) -> np.ndarray | None:
    """The kernels of a network's compiled step, [kernels, 3]: FLOPs, bytes, times; None if there are none."""
    with KERNELS.open(encoding="utf-8") as lines:
        found = [
            [float(row[name]) for name in ("flops", "bytes", "times")]
            for row in csv.DictReader(lines)
            if row["network"] == network
        ]
    return np.array(found) if found else None


def kernel_seconds(
    program: Totals,
    machine: Machine,
    matrix: float,
    memory: float,
    flops: float,
    batch: float,
    precision: str,
) -> tuple[float, float]:
    """As `seconds`, from the program's kernels: those that arithmetic bounds, and those that memory or launch does.

    A kernel's FLOPs grow with those of the step, at the occupancy of another batch or machine.
    """
    f, b, times = kernels(program.network).T
    fuller = filled(program.network, program.batch, machine_of_steps()) / filled(
        program.network, batch, machine
    )
    arithmetic = f * flops / program.flops * fuller / (matrix * machine.peak(precision))
    moved = b * _growth(program, float(b @ times), flops) * compute.itemsize(precision) / 2
    traffic = np.maximum(moved / (memory * machine.memory_bandwidth), _LAUNCH)
    bound = arithmetic > traffic
    return float((arithmetic * times)[bound].sum()), float((traffic * times)[~bound].sum())


def step_seconds(
    program: Totals,
    machine: Machine,
    constants: compute.Constants,
    flops: float,
    batch: float,
    precision: str,
) -> tuple[float, float]:
    """Seconds of a step's arithmetic and of its memory traffic, by kernels where the network's are known."""
    if kernels(program.network) is None:
        return seconds(program, machine, constants.matrix, constants.memory, flops, batch, precision)
    fitted = compute.committed()[FAMILY]["kernels"]
    return kernel_seconds(program, machine, fitted["matrix"], fitted["memory"], flops, batch, precision)


def measured() -> list[Totals]:
    """The six steps of lab/bench/results/gpu/h200.json."""
    rows = json.loads(STEPS.read_text(encoding="utf-8"))["rows"]
    found = []
    for name, network in NETWORKS.items():
        row, kernels = rows[f"step/{name}"], rows[f"compile/{name}"]["kernels"]
        flops, moved = 1e12 * row["matrix_tflop"], 1e9 * row["compiler_gb_accessed"]
        found.append(Totals(network, row["batch"], flops, moved, sum(kernels.values()), row["ms"] / 1e3))
    return found


def predicted(program: Totals, machine: Machine, matrix: float, memory: float, form: Form = seconds) -> float:
    """Seconds of a measured step."""
    return sum(form(program, machine, matrix, memory, program.flops, program.batch, "bf16"))


def fit(programs: Sequence[Totals], machine: Machine, form: Form = seconds) -> tuple[float, float]:
    """The fractions of the peak and of the bandwidth that best fit the steps, by least squares of logarithms."""
    from scipy.optimize import least_squares

    goal = np.log([one.seconds for one in programs])

    def wrong(logs: np.ndarray) -> np.ndarray:
        return np.log([predicted(one, machine, *np.exp(logs), form) for one in programs]) - goal

    found = least_squares(wrong, np.log([0.6, 0.6]))
    return tuple(float(f"{x:.4g}") for x in np.exp(found.x))


def machine_of_steps() -> Machine:
    """The machine of the measured steps: one H200."""
    from systems.predict import chips

    return Machine("h200-1", 1, 1, 0.0, 224, dict(chips.chips()["H200-SXM"]) | {"name": "H200-SXM"})


def refit(turnaround: float) -> dict[str, Any]:
    """The family's entry of data/constants.json: both forms' constants, programs, and errors of steps left out."""
    steps = measured()
    known = [step for step in steps if kernels(step.network) is not None]
    (matrix, memory), left = _fitted(steps, seconds)
    (each_matrix, each_memory), left_kernels = _fitted(known, kernel_seconds)
    values = compute.Constants(matrix, memory, _LAUNCH, turnaround)
    programs: Mapping[str, Any] = {
        step.network: {k: v for k, v in dataclasses.asdict(step).items() if k != "network"} for step in steps
    }
    return {
        "constants": dataclasses.asdict(values),
        "kernels": {"matrix": each_matrix, "memory": each_memory},
        "left_out_steps": left,
        "left_out_kernels": left_kernels,
        "programs": programs,
    }


def _fitted(steps: Sequence[Totals], form: Form) -> tuple[tuple[float, float], dict[str, float]]:
    """The constants of a form, and each step's relative error by a fit to the others."""
    one, left = machine_of_steps(), {}
    for step in steps:
        others = fit([other for other in steps if other is not step], one, form)
        left[step.network] = round(predicted(step, one, *others, form) / step.seconds - 1, 4)
    return fit(steps, one, form), left


def left_out(form: str = "") -> dict[str, float]:
    """{network: relative error of its measured step, predicted by the others}.

    Args:
      form: "steps" for the totals, "kernels" for the kernels; "" for that which forecasts take.
    """
    own = compute.committed()[FAMILY]
    return own[f"left_out_{form}"] if form else own["left_out_steps"] | own["left_out_kernels"]
