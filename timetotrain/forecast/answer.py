"""A forecast as people read it: minutes, whose code it means, how wrong it is, memory, money, energy."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import systems
from common.config import benchmarks
from common.errors import UserError
from compliance.log.rules import RULESETS
from compliance.submission import rcp, rounds
from systems.forecast import errors, law, memory, money, scores
from systems.forecast import machine as machines
from systems.forecast.accelerators import UserFigures
from systems.forecast.law import Estimate
from systems.forecast.machine import Machine

_WIDE = 0.1  # Relative deviation of the reference's runs above which the answer warns.


@dataclasses.dataclass(frozen=True)
class Answer:
    """Attributes:
    reason: why there is no answer; "" if there is one.
    """

    benchmark: str
    system: str
    machine: Machine
    estimate: Estimate
    reason: str
    notes: tuple[str, ...]


def forecast(
    benchmark: str, system: str, accelerators: int | None, figures: UserFigures | None = None
) -> Answer:
    """The forecast of a benchmark on a system.

    Raises UserError if a name is unknown, a field of the description is missing, or a flag makes no sense.
    """
    law.require_scores(benchmark) if benchmark not in benchmarks.NAMES else None
    notes: list[str] = []
    machine = machines.machine(description(benchmark, system, figures), accelerators, notes, figures)
    fit = memory.fit(benchmark, machine.chip, machine.accelerators)
    reason = f"the model does not fit: {fit.why}" if fit and not fit.fits else ""
    if benchmark not in scores.benchmarks():
        reason = f"no scores of {benchmark} are published"
        estimate = Estimate(benchmark, machine.accelerators, 0.0, 0.0, 0.0, reason, reason)
    else:
        (estimate,) = law.estimates(benchmark, machine.chip, [machine.accelerators])
    return Answer(benchmark, system, machine, estimate, reason or estimate.reason, tuple(notes))


def description(benchmark: str, system: str, figures: UserFigures | None = None) -> dict[str, Any]:
    """The description of a system, or of a preset's."""
    try:
        return machines.load(system, figures)
    except UserError:
        if benchmark in benchmarks.NAMES:
            from timetotrain.machines import presets

            if system in (by_name := presets.load(benchmark)):
                return systems.load(by_name[system].hardware)
        raise


def _error(one: Answer) -> tuple[str, list[float]]:
    """The class of questions that this one belongs to, and their errors."""
    machine = one.machine
    return errors.error_of(one.benchmark, str(machine.chip["name"]), machine.accelerators, scores.rows())


def _beside(one: Answer) -> list[str]:
    """The look-up that a person would make, if there is one, and how single runs spread about a score."""
    chip, many, minutes = str(one.machine.chip["name"]), one.machine.accelerators, one.estimate.minutes
    texts = []
    if middle := errors.middle(one.benchmark, chip, many, law.year_of(one.benchmark), scores.rows()):
        row = errors.table()["distance"][errors.SAME]["same count"]
        half = {name: row[name][0] for name in ("look-up", "law")}
        closer = "closer" if half["look-up"] < half["law"] else "less close"
        texts.append(
            f"published: {middle:.3g} minutes on as many, median of the newest round; {closer} at the median of later "
            f"scores ({half['look-up']:.1f} %, the forecast {half['law']:.1f} %)"
        )
    if (spread := _spread(one.benchmark)) > _WIDE:
        texts.append(
            f"that is a score, the mean of {runs_of(one.benchmark)} runs: the reference's single runs spread by "
            f"{100 * spread:.0f} %, so one takes {minutes * (1 - spread):.3g} to {minutes * (1 + spread):.3g}"
        )
    return texts


def _spread(benchmark: str) -> float:
    """The largest relative deviation of the reference's runs in the newest round with points; 0 without any."""
    for ruleset in reversed(RULESETS):
        if points := rcp.points(benchmark, ruleset):
            return max(point.stdev / point.mean for point in points)
    return 0.0


def lines(one: Answer) -> list[str]:
    """The answer, line by line, without money."""
    machine = one.machine
    title = f"{one.benchmark} on {one.system}: {machine.accelerators} x {machine.chip['name']}"
    if one.reason:
        return [title, f"cannot say: {one.reason}"]
    minutes, low, high = one.estimate.minutes, one.estimate.low, one.estimate.high
    name, (half, most) = _error(one)
    times = law.ORDINARY
    texts = [
        title,
        f"{minutes:.3g} minutes; nine of ten scores between {low:.3g} and {high:.3g}",
        f"true error, {name}: half within {half:.1f} %, nine of ten within {most:.0f} %",
        *_beside(one),
        f"whose code: tuned submissions; {one.estimate.evidence}",
        f"ordinary code: {times[0] * minutes:.3g} to {times[1] * minutes:.3g} minutes (x {times[0]} to {times[1]})",
    ]
    if machine.accelerators > machine.per_node:
        texts.append("network: that of the submitters' machines; the forecast does not know yours")
    if fit := memory.fit(one.benchmark, machine.chip, machine.accelerators):
        texts.append(f"memory: {fit.why}")
    return texts


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
    estimate = one.estimate
    return fields | {
        "minutes": estimate.minutes, "interval_minutes": [estimate.low, estimate.high],
        "error_percent": {"of": name, "median": error[0], "90th": error[1]},
        "evidence": estimate.evidence,
        "ordinary_minutes": [factor * estimate.minutes for factor in law.ORDINARY],
        "memory_bytes": fit and {"needed": fit.needed, "held": fit.available},
    }  # fmt: skip


def runs_of(benchmark: str) -> int:
    """Returns how many runs the newest round that has the benchmark requires; 0 if no round has it."""
    names = {benchmark, {"retinanet": "ssd", "rgat": "gnn"}.get(benchmark, benchmark)}
    for when in sorted(scores.ROUNDS, reverse=True):
        ruleset = f"{when[1:]}.0"
        if when.startswith("v") and (titles := names & {*rounds.benchmarks(ruleset)}):
            return rounds.required_runs(titles.pop(), ruleset)
    return 0


def _cost(one: Answer, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    many = one.machine.accelerators
    cost = money.price(str(one.machine.chip["name"]), options.price, options.prices)
    if not cost:
        return {"cost": None}, [
            "cost: no seller's price is known; give --price=USD_PER_HOUR or --prices=FILE"
        ]
    if not (bookable := cost.for_count(many)):
        most = max(offer.most for offer in cost.offers)
        return {"cost": None}, [
            f"cost: no offer is known for {many} accelerators (the largest has {most}); give --price"
        ]
    ends = bookable.dollars(many, one.estimate.minutes)
    dollars = {"run": list(ends), "offers": [dataclasses.asdict(offer) for offer in bookable.offers]}
    text = f"cost: {money.spread(ends)} USD a run"
    if count := options.runs or runs_of(one.benchmark):
        dollars["submission"] = [count * end for end in ends]
        text += f", {money.spread(dollars['submission'])} a submission of {count}"
    return {"cost": dollars}, [f"{text}; {bookable.words(many)}"]


def money_and_energy(one: Answer, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The cost and the energy for JSON, and their lines; nothing where the forecast cannot say.

    Raises UserError if a price makes no sense.
    """
    if one.reason:
        return {}, []
    fields, texts = _cost(one, options)
    estimate = one.estimate
    interval = (estimate.low, estimate.high)
    power = money.energy(one.machine.chip, one.machine.accelerators, estimate.minutes, interval)
    if not power:
        return fields, [*texts, f"energy: the power of {one.machine.chip['name']} is unpublished"]
    watts = one.machine.chip["watts"]
    texts.append(
        f"energy: {power.kwh:.3g} kWh ({power.low:.3g} to {power.high:.3g}): boards of {watts} W times "
        f"{money.ratio()[0]:.2f}, as published power logs have it"
    )
    return fields | {"energy_kwh": dataclasses.asdict(power)}, texts
