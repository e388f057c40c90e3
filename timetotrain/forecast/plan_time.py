"""Minutes, money and energy of a plan's runs, and whether they pass and end in time."""

from __future__ import annotations

import argparse
import dataclasses
import math
from datetime import date, datetime, time, timedelta
from statistics import NormalDist, median
from typing import Any

from common.errors import UserError
from compliance.acceptance.probability import Question, estimate
from compliance.log import rules
from compliance.report.published import published_scores
from compliance.submission import rounds
from systems.forecast import errors, law, memory, money, scores
from systems.forecast.machine import Machine
from timetotrain.forecast import measured
from timetotrain.forecast.measured import Speed
from timetotrain.forecast.plan_round import Batch

_NORMAL = 1.645  # Two-sided 90 % quantile of the normal distribution.
# Error of a run's minutes by its speed: above the 90th percentile (5.7 % at most) of all rounds with over 100 runs in
# docs/plan.md's table; v6.0's seven runs have 13.8 %.
_SPEED = 0.06


@dataclasses.dataclass(frozen=True)
class Minutes:
    """Minutes of one run, with an interval of nine runs of ten, and what they stand on.

    Attributes:
      spread: the part of the half-width by which runs differ from each other, in minutes; 0 if it is not known.
      error: the share by which all runs may be off together.
    """

    minutes: float
    low: float
    high: float
    source: str
    spread: float = 0.0
    error: float = 0.0

    def most(self, runs: int) -> float:
        """Minutes of so many runs in turn, at most (95 %): their spread averages out, an error of all does not."""
        if not self.spread:
            return runs * self.high
        return runs * (self.minutes + self.spread / math.sqrt(runs)) * (1 + self.error)

    def slowest(self, runs: int) -> tuple[float, float]:
        """The 90 % interval of the slowest of so many runs, as machines that run them at once take."""
        if not self.spread:
            return self.low, self.high
        low, high = (NormalDist().inv_cdf(part ** (1 / runs)) / _NORMAL for part in (0.05, 0.95))
        low, high = self.minutes + low * self.spread, self.minutes + high * self.spread
        return low * (1 - self.error), high * (1 + self.error)


def speed_of(options: argparse.Namespace, notes: list[str]) -> Speed | None:
    """The speed of --log or --throughput. What is assumed is appended to `notes`.

    Raises UserError if it makes no sense, both are there, or the log is of another benchmark.
    """
    if options.log and options.throughput is not None:
        raise UserError("--log and --throughput: give one of them")
    if options.log:
        speed = measured.of_log(options.log)
        if speed.benchmark != options.benchmark:
            name = speed.benchmark or "no benchmark"
            raise UserError(f"--log={options.log}: a log of {name}, not of {options.benchmark}")
        notes.append(f"--log: the speed at batch {speed.batch:,.0f} holds for every batch")
        return speed
    if options.throughput is not None:
        if not 0 < options.throughput < 1e12:
            raise UserError(
                f"--throughput={options.throughput:g}: must be a positive number of samples per second"
            )
        return Speed(options.throughput)
    return None


def from_speed(benchmark: str, ruleset: str, batch: Batch, speed: Speed) -> Minutes:
    """Minutes of one run with a batch: the reference's samples over the speed, and the evaluations.

    Raises UserError if the points count epochs, and nobody says how many examples one has.
    """
    keys = rules.benchmark_section(ruleset, benchmark).get("keys", {})
    epoch = 1.0
    if batch.unit == "epochs":
        epoch = (
            memory.facts().get(scores.title(benchmark, f"v{ruleset}"), {}).get("epoch") or speed.epoch or 0.0
        )
        epoch = keys.get("train_samples", {}).get("value", {}).get("equal") or epoch
        if not epoch:
            raise UserError(f"{benchmark}: its points count epochs; give a --log with train_samples")
    of = keys.get("eval_samples", {}).get("value", {}).get("equal", 0)

    def minutes(at: float) -> float:
        return speed.minutes(at * epoch, batch.evaluations(at), of)

    middle, half = minutes(batch.mean), _NORMAL * batch.stdev
    low, high = minutes(max(batch.mean - half, batch.mean / 10)), minutes(batch.mean + half)
    basis = f"own speed, {speed.rate:,.4g} examples/s"
    basis += f" in {speed.steps:,.0f} steps of the log" if speed.steps else ""
    return Minutes(middle, low * (1 - _SPEED), high * (1 + _SPEED), basis, high - middle, _SPEED)


def from_scores(benchmark: str, ruleset: str, machine: Machine, one: law.Law | None = None) -> Minutes | None:
    """Minutes by the scores of this machine in earlier rounds, else by the law; None if neither can say.

    `one`: another law than that of all scores.
    """
    name = scores.title(benchmark, f"v{ruleset}")
    year = scores.ROUNDS.get(f"v{ruleset.removesuffix('.0')}", math.inf)
    earlier, chip = [row for row in scores.rows() if row.year < year], str(machine.chip["name"])
    if name not in scores.benchmarks():
        return None
    middle = errors.middle(name, chip, machine.accelerators, min(year, 2100.0), earlier)
    (answer,) = law.estimates(name, machine.chip, [machine.accelerators], one)
    if middle:
        spread = answer.high / answer.minutes
        return Minutes(middle, middle / spread, middle * spread, f"scores: median of {answer.evidence}")
    if answer.reason:
        return None
    return Minutes(answer.minutes, answer.low, answer.high, f"the law of published scores; {answer.evidence}")


def with_batch(one: Minutes, benchmark: str, ruleset: str, machine: Machine, batch: Batch) -> Minutes:
    """The same with another batch: minutes grow as the examples to converge, from those of earlier rounds' scores with
    about as many accelerators.
    """
    short, name = f"v{ruleset.removesuffix('.0')}", scores.title(benchmark, f"v{ruleset}")
    rows = [
        row for row in published_scores() if scores.title(row.benchmark, row.round) == name and row.epochs
    ]
    rows = [row for row in rows if row.round < short]
    if not rows or batch.mean is None:
        return one
    near = min(rows, key=lambda row: abs(math.log(row.accelerators / machine.accelerators))).accelerators
    ratio = batch.mean / median(row.epochs for row in rows if row.accelerators == near)
    if not 1 / 5 < ratio < 5:
        unscaled = f"{one.source}; not scaled to the batch: earlier logs count from another place, or in another unit"
        return dataclasses.replace(one, source=unscaled)
    return dataclasses.replace(one, minutes=ratio * one.minutes, low=ratio * one.low, high=ratio * one.high)


def passing(batch: Batch, needed: int, benchmark: str) -> float | None:
    """The probability that all runs pass the convergence test, before the first, as `accept` computes it."""
    if batch.least is None:
        return None
    drop = rounds.may_fail(benchmark)
    return estimate(
        Question(batch.mean, batch.stdev, batch.least, needed, drop, (), step=batch.every or 0.0),
        look_ahead=False,
    ).passes


def costs(one: Minutes, needed: int, machine: Machine, price: money.Price | None) -> dict[str, Any]:
    """Hours, USD and kWh of one run and of all, for JSON."""
    many, chip = machine.accelerators, machine.chip
    energy = money.energy(chip, many, one.minutes, (one.low, one.high))
    price = price and price.for_count(many)
    ends = price and price.dollars(many, one.minutes)
    return {
        "minutes": one.minutes, "interval": [one.low, one.high], "source": one.source,
        "hours in turn": needed * one.minutes / 60,
        "hours in parallel": [end / 60 for end in one.slowest(needed)],
        "usd of all": [needed * end for end in ends] if ends else None, "prices": price and price.words(many),
        "kwh of all": energy and needed * energy.kwh,
    }  # fmt: skip


def deadline(last: date, hours: float, high: float, now: datetime) -> dict[str, str]:
    """Whether runs in turn of so many hours, at most `high`, end by the end of a day (24:00), if the first starts now;
    and the latest start for `high` hours, to the minute, rounded down.
    """
    end = datetime.combine(last, time.max)
    remaining, start = (end - now).total_seconds() / 3600, "already past"
    words = "in time" if high <= remaining else "perhaps" if hours <= remaining else "too late"
    if high <= remaining:
        start = (end - timedelta(hours=high)).isoformat(" ", "minutes")
    return {"deadline": f"{last} 24:00", "started now": words, "latest start": start}


def day(flag: str, text: str | None) -> date | None:
    """The date of a flag. Raises UserError if it is not one."""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise UserError(f"--{flag}={text}: write a date as 2026-10-16") from None
