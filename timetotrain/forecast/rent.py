"""Which machines to rent for a run: accelerators and counts by cost, time or energy, within limits."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import Any

from systems.forecast import accelerators, errors, law, memory, money, scores
from systems.forecast.law import Estimate

_ORDERS = ("cost", "time", "energy")
_HEAD = ("machine", "minutes", "nine of ten", "USD", "kWh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the list."""
    add = parser.add_argument_group("a list of machines").add_argument
    add(
        "--rent",
        action="store_true",
        help="list machines of every accelerator, or of the system's, with minutes, dollars and kWh",
    )
    add("--deadline", "--within", metavar="TIME", help="list those that end within 20 (minutes), 30min or 2h")
    add(
        "--budget", type=float, metavar="USD", help="list those that cost at most this, at the cheapest offer"
    )
    add("--by", choices=_ORDERS, default="cost", help="what to sort by (%(default)s)")
    add("--most", type=int, default=1024, metavar="N", help="most accelerators (%(default)s)")
    add("--rows", type=int, default=20, metavar="N", help="most rows of the table (%(default)s)")


@dataclasses.dataclass(frozen=True)
class Offer:
    """A machine to rent: minutes with their interval, dollars over offers and kWh, where they are known."""

    machine: str
    minutes: float
    interval: tuple[float, float]
    usd: tuple[float, float] | None
    kwh: float | None
    prices: str
    evidence: str

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        low, high = self.interval
        usd = money.spread(self.usd) if self.usd else "no price"
        kwh = f"{self.kwh:.3g}" if self.kwh else "unknown"
        return self.machine, f"{self.minutes:.3g}", f"{low:.3g} to {high:.3g}", usd, kwh


def offers(benchmark: str, options: argparse.Namespace, chips: Iterable[dict[str, Any]]) -> list[Offer]:
    """The machines of some accelerators that the law can forecast, that hold the model, and that meet the limits."""
    law.require_scores(benchmark)
    choices = []
    for chip in chips:
        price = money.price(str(chip["name"]), options.price, options.prices)
        for size in _sizes(benchmark, chip, options.most):
            many = size.accelerators
            power = money.energy(chip, many, size.minutes, (size.low, size.high))
            cost = price and price.for_count(many)
            choices.append(Offer(
                f"{many}x{chip['name']}", size.minutes, (size.low, size.high),
                cost.dollars(many, size.minutes) if cost else None, power.kwh if power else None,
                cost.words(many) if cost else "", size.evidence,
            ))  # fmt: skip
    if options.deadline:
        choices = [one for one in choices if one.minutes <= options.deadline]
    if options.budget:
        choices = [one for one in choices if one.usd and one.usd[0] <= options.budget]
    return sorted(choices, key=_order(options.by))[: options.rows]


def every() -> list[dict[str, Any]]:
    """The accelerators of the table, with their names."""
    return [accelerators.table()[name] | {"name": name} for name in accelerators.known_names()]


def _sizes(benchmark: str, chip: dict[str, Any], most: int) -> list[Estimate]:
    """The sizes that the law can forecast and that hold the model: powers of two up to a host, then of hosts."""
    per_node = chip["per_node"]
    small = [n for n in (2**i for i in range(18)) if n <= min(per_node, most)]
    hosts = [per_node * 2**i for i in range(18) if per_node * 2**i <= most]
    estimates = law.estimates(benchmark, chip, sorted({*small, *hosts}))
    fits = [memory.fit(benchmark, chip, one.accelerators) for one in estimates]
    return [one for one, fit in zip(estimates, fits) if not one.reason and (not fit or fit.fits)]


def _order(by: str) -> Any:
    """The key of an order; what is unknown comes last, and equals are ordered by minutes."""
    if by == "time":
        return lambda one: one.minutes
    if by == "energy":
        return lambda one: (one.kwh is None, one.kwh, one.minutes)
    return lambda one: (one.usd is None, one.usd, one.minutes)


def lines(benchmark: str, hires: list[Offer]) -> list[str]:
    """The table, the errors of its rows by their distance from published scores, and the offers."""
    if not hires:
        return [f"{benchmark}: nothing to rent: no machine of which the forecast can say meets the limits"]
    rows = [(*_HEAD, "true error"), *((*one.cells(), _error(benchmark, one.machine)) for one in hires)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    sellers = {one.machine.split("x", 1)[1]: one.prices for one in hires if one.prices}
    head = f"{benchmark}; true error: half of later scores within the first number, nine of ten within the second"
    return [head, "", *table, "", *(f"{name}: {text}" for name, text in sellers.items())]


def _error(benchmark: str, machine: str) -> str:
    many, chip = machine.split("x", 1)
    _, (half, most) = errors.error_of(benchmark, chip, int(many), scores.rows())
    return f"{half:.0f} / {most:.0f} %"
