"""A forecast as people read it: minutes, whose code it means, how wrong it is, memory, money, energy."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import systems
from common.config import benchmarks
from common.errors import UserError
from compliance.power import command, power_logs
from compliance.submission import rounds
from systems.forecast import convergence, law, law_fit, memory, money, own, scores, shares
from systems.forecast import machine as machines
from systems.forecast.accelerators import Given
from systems.forecast.law import Estimate
from systems.forecast.machine import Machine


@dataclasses.dataclass(frozen=True)
class Answer:
    """Attributes:
    minutes, interval: expected, and of nine runs of ten.
    factor: of the minutes by --batch and --epochs.
    epochs, steps: of the run; epochs are None where they are not published.
    reason: why there is no answer; "" if there is one.
    """

    benchmark: str
    system: str
    machine: Machine
    estimate: Estimate
    factor: float
    epochs: float | None
    steps: float
    reason: str
    notes: tuple[str, ...]

    @property
    def minutes(self) -> float:
        return self.factor * self.estimate.minutes

    @property
    def interval(self) -> tuple[float, float]:
        return self.factor * self.estimate.low, self.factor * self.estimate.high


def of(
    benchmark: str,
    system: str,
    accelerators: int | None,
    *,
    batch: int | None = None,
    epochs: float | None = None,
    assume: bool = False,
    given: Given | None = None,
) -> Answer:
    """The forecast of a benchmark on a system.

    Raises UserError: a name is unknown, a field of the description is missing, or a flag makes no sense.
    """
    law.known(benchmark) if benchmark not in benchmarks.NAMES else None
    notes: list[str] = []
    machine = machines.machine(_description(benchmark, system), accelerators, notes, assume, given)
    fit = memory.fit(benchmark, machine.chip, machine.accelerators)
    reason = f"the model does not fit: {fit.why}" if fit and not fit.fits else ""
    if benchmark not in scores.benchmarks():
        reason = f"no scores of {benchmark} are published"
        estimate = Estimate(benchmark, machine.accelerators, 0.0, 0.0, 0.0, reason, reason)
    else:
        (estimate,) = law.estimates(benchmark, machine.chip, [machine.accelerators])
    factor, expected, steps = _work(benchmark, machine, batch, epochs, notes, estimate.minutes)
    return Answer(
        benchmark, system, machine, estimate, factor, expected, steps, reason or estimate.reason, tuple(notes)
    )


def _description(benchmark: str, system: str) -> dict[str, Any]:
    """The description of a system, or of a preset's."""
    try:
        return machines.load(system)
    except UserError:
        if benchmark in benchmarks.NAMES:
            from timetotrain.forecast import presets

            if system in (known := presets.of(benchmark)):
                return systems.load(known[system].hardware)
        raise


def _work(
    benchmark: str,
    machine: Machine,
    batch: int | None,
    epochs: float | None,
    notes: list[str],
    minutes: float,
) -> tuple[float, float | None, float]:
    """(the factor of the minutes by the flags, epochs, steps)."""
    for name, value in (("batch", batch), ("epochs", epochs)):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name}={value:g}: must be a positive number")
    curve = convergence.curve(benchmark)
    if not curve:
        if batch or epochs:
            flag = "batch" if batch else "epochs"
            names = ", ".join(convergence.EXAMPLES)
            raise UserError(
                f"--{flag}: no epochs of {benchmark} are published by batch; leave it out ({names} have)"
            )
        return 1.0, None, max(1.0, 60 * minutes)
    usual = convergence.usual_batch(benchmark, machine.accelerators)
    size = float(batch or usual)
    if batch and batch % machine.accelerators:
        size = float(max(1, round(batch / machine.accelerators)) * machine.accelerators)
        notes.append(f"--batch={batch} does not divide among {machine.accelerators} accelerators: {size:.0f}")
    if not curve.batches[0] / 2 <= size <= curve.batches[1] * 2:
        seen = f"{curve.batches[0]:g} to {curve.batches[1]:g}"
        notes.append(
            f"batch {size:g} is far from the published ones ({seen}): nobody has shown it to converge"
        )
    expected = epochs or curve.epochs(size)
    return expected / curve.epochs(usual), expected, expected * convergence.EXAMPLES[benchmark] / size


def errors() -> dict[str, Any]:
    """data/errors.json."""
    return json.loads(law_fit.ERRORS.read_text(encoding="utf-8"))


def _error(one: Answer) -> tuple[str, list[float]]:
    """The row of the errors that resembles the question."""
    same = [row for row in scores.rows() if row.benchmark == one.benchmark]
    chip = one.machine.chip["name"]
    if not any(row.chip == chip for row in same):
        return "accelerators without a score of the benchmark", errors()["accelerator"]["law"]
    return "scores of later rounds", errors()[law_fit.LATER]["law"]


def lines(one: Answer) -> list[str]:
    """The answer, line by line, without money."""
    machine = one.machine
    title = f"{one.benchmark} on {one.system}: {machine.accelerators} x {machine.chip['name']}"
    if one.reason:
        return [title, f"cannot say: {one.reason}"]
    low, high = one.interval
    name, (half, most) = _error(one)
    estimate_ = [
        title,
        f"{one.minutes:.3g} minutes; nine of ten runs between {low:.3g} and {high:.3g}",
        f"true error, {name}: half within {half:.1f} %, nine of ten within {most:.0f} %",
        f"whose code: tuned submissions; {one.estimate.evidence}",
        _ordinary(one),
    ]
    if one.epochs:
        estimate_.append(f"{one.epochs:.3g} epochs, {one.steps:,.0f} steps")
    if told := shares.of_preset(one.benchmark, one.system):
        estimate_.append(
            "a step, by the compiler: " + ", ".join(f"{part:.0%} {kind}" for kind, part in told.items())
        )
    if fit := memory.fit(one.benchmark, machine.chip, machine.accelerators):
        estimate_.append(f"memory: {fit.why}")
    return estimate_


def _ordinary(one: Answer) -> str:
    least, most = (factor * one.minutes for factor in own.ORDINARY)
    text = f"ordinary code: {least:.3g} to {most:.3g} minutes (x {own.ORDINARY[0]} to {own.ORDINARY[1]})"
    mine = _mine(one)
    return text + (
        f"; this project's steps, measured on one H200: at least {mine:.3g} minutes" if mine else ""
    )


def _mine(one: Answer) -> float | None:
    if not one.epochs:
        return None
    examples = one.epochs * convergence.EXAMPLES[one.benchmark]
    return own.minutes(one.benchmark, str(one.machine.chip["name"]), one.machine.accelerators, examples)


def notes(one: Answer) -> list[str]:
    """The assumptions, line by line."""
    return [f"assumed: {note}" for note in one.notes]


def content(one: Answer) -> dict[str, Any]:
    """The answer for JSON."""
    machine = one.machine
    fields: dict[str, Any] = {
        "benchmark": one.benchmark, "system": one.system, "accelerators": machine.accelerators,
        "accelerator": machine.chip["name"], "assumptions": list(one.notes), "reason": one.reason,
    }  # fmt: skip
    if one.reason:
        return fields
    fit, (name, error) = memory.fit(one.benchmark, machine.chip, machine.accelerators), _error(one)
    return fields | {
        "minutes": one.minutes, "interval_minutes": list(one.interval),
        "error_percent": {"of": name, "median": error[0], "90th": error[1]},
        "evidence": one.estimate.evidence,
        "ordinary_minutes": [factor * one.minutes for factor in own.ORDINARY], "own_minutes": _mine(one),
        "epochs": one.epochs, "step_shares": shares.of_preset(one.benchmark, one.system),
        "memory_bytes": fit and {"needed": fit.needed, "held": fit.held},
    }  # fmt: skip


def money_of(one: Answer, options: argparse.Namespace) -> money.Price | None:
    """The price of an answer's accelerator."""
    return money.price(str(one.machine.chip["name"]), options.price, options.prices)


def runs_of(benchmark: str) -> int:
    """The number of runs that the newest round with a benchmark asks for; 0 if none has it."""
    names = {benchmark, {"retinanet": "ssd", "rgat": "gnn"}.get(benchmark, benchmark)}
    for when in sorted(scores.ROUNDS, reverse=True):
        ruleset = f"{when[1:]}.0"
        if when.startswith("v") and (known := names & {*rounds.benchmarks(ruleset)}):
            return rounds.required_runs(known.pop(), ruleset)
    return 0


def _cost(one: Answer, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    cost, many = money_of(one, options), one.machine.accelerators
    if not cost:
        return {"cost": None}, [
            "cost: no seller's price is known; give --price=USD_PER_HOUR or --prices=FILE"
        ]
    ends = cost.dollars(many, one.minutes)
    counts = {"submission": options.runs or runs_of(one.benchmark), "search": options.trials or 0}
    dollars = {"run": list(ends), "offers": [dataclasses.asdict(offer) for offer in cost.of(many).offers]}
    text = f"cost: {money.spread(ends)} USD a run"
    for name, count in counts.items():
        if count:
            dollars[name] = [count * end for end in ends]
            text += f", {money.spread(dollars[name])} a {name} of {count}"
    return {"cost": dollars}, [f"{text}; {cost.of(many).told()}"]


def money_and_energy(one: Answer, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The cost and the energy for JSON, and their lines; nothing where the forecast cannot say.

    Raises UserError: a price makes no sense.
    """
    if one.reason:
        return {}, []
    fields, told = _cost(one, options)
    if options.own:
        row, line = _measured(options.own, one.minutes)
        fields, told = fields | {"own_power": row}, [*told, line]
    power = money.energy(one.machine.chip, one.machine.accelerators, one.minutes, one.interval)
    if not power:
        return fields, [*told, f"energy: the power of {one.machine.chip['name']} is unpublished"]
    watts = one.machine.chip["watts"]
    told.append(
        f"energy: {power.kwh:.3g} kWh ({power.low:.3g} to {power.high:.3g}): boards of {watts} W times "
        f"{money.ratio()[0]:.2f}, as published power logs have it"
    )
    return fields | {"energy_kwh": dataclasses.asdict(power)}, told


def _measured(folder: Path, minutes: float) -> tuple[dict[str, Any] | None, str]:
    """What the sensors of the host said of one's own runs, beside their logs in power_in_band/; and a line of it."""
    if not (folder / power_logs.IN_BAND).is_dir():
        return None, f"own runs: {folder} has no {power_logs.IN_BAND}/; `run --power` records it"
    energies = command.row_of(folder)
    joules, watts = ([x for x in each if x is not None] for each in (energies.by_rules, energies.watts))
    if not joules or not watts:
        return None, f"own runs: the readings of {folder}/{power_logs.IN_BAND}/ cover no run"
    row = {"watts_per_node": fmean(watts), "kilojoules_per_run": fmean(joules) / 1e3, "runs": len(joules)}
    return row, (
        f"own runs: {row['watts_per_node']:,.0f} W a node, {row['kilojoules_per_run']:,.1f} kJ a run, mean of "
        f"{len(joules)}, in band; {row['watts_per_node'] * minutes / 60e3:.3g} kWh a node in {minutes:.3g} minutes"
    )


def explained(one: Answer, other: Answer) -> tuple[dict[str, Any], list[str]]:
    """Why another machine's forecast differs, as factors of the minutes; they multiply to the ratio."""
    if one.reason or other.reason:
        raise UserError(f"--explain: the forecast cannot say: {one.reason or other.reason}")
    first, second = (
        law.points([scores.Score("", "", "", a.benchmark, str(a.machine.chip["name"]), a.machine.accelerators, 1.0)],
                   {str(a.machine.chip["name"]): a.machine.chip}, [law.year_of(a.benchmark)])
        for a in (one, other)
    )  # fmt: skip
    factors = {
        "number of accelerators": math.exp(float(first.many[0] - second.many[0])),
        "peak and bandwidth": math.exp(float(first.speed[0] - second.speed[0])),
        "--batch and --epochs": other.factor / one.factor,
    }
    ratio = other.minutes / one.minutes
    factors["software, scaling and the rest"] = ratio / math.prod(factors.values())
    told = [f"{other.system}: {other.minutes:.3g} minutes, x {ratio:.3g}:"]
    told += [f"  x {factor:<8.3g}{name}" for name, factor in factors.items() if abs(factor - 1) > 1e-9]
    return {"explanation": {"other": content(other), "factors": factors}}, told
