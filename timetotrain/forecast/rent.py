"""`timetotrain rent BENCHMARK`: which accelerators, and how many, to rent for a run. TensorFlow-free."""

from __future__ import annotations

import argparse
import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

from common.errors import UserError

_ORDERS = ("cost", "time", "energy")
_UNITS = {"": 1.0, "m": 1.0, "min": 1.0, "h": 60.0, "s": 1 / 60}
_HEAD = ("machine", "minutes", "nine of ten", "USD", "kWh", "prices", "stands on")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists what to rent for a run: accelerators and counts, with minutes, dollars and kWh."
    )
    add = parser.add_argument
    add("benchmark", metavar="BENCHMARK", help="a benchmark with published scores")
    add("--within", metavar="TIME", help="longest run, such as 30min or 2h")
    add("--budget", type=float, metavar="USD", help="most that a run may cost, at the cheapest seller")
    add("--by", choices=_ORDERS, default="cost", help="what to sort by (%(default)s)")
    add("--most", type=int, default=1024, metavar="N", help="most accelerators (%(default)s)")
    add("--rows", type=int, default=20, metavar="N", help="most rows of the table (%(default)s)")
    add("--prices", type=Path, metavar="FILE", help="a table of prices in place of the sellers'")
    add("--json", action="store_true", help="print all of it as JSON")
    add("-o", "--output", type=Path, metavar="FILE.html", help="write the table as a page")
    parser.set_defaults(price=None)


@dataclasses.dataclass(frozen=True)
class Offer:
    """A machine to rent: minutes with their interval, dollars over sellers and kWh, where they are known."""

    machine: str
    minutes: float
    interval: tuple[float, float]
    usd: tuple[float, float] | None
    kwh: float | None
    prices: str
    evidence: str

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        from systems.forecast import money

        low, high = self.interval
        return (
            self.machine, f"{self.minutes:.3g}", f"{low:.3g} to {high:.3g}",
            money.spread(self.usd) if self.usd else "no price", f"{self.kwh:.3g}" if self.kwh else "unknown",
            self.prices, self.evidence,
        )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Prints the table and returns 0.

    Raises UserError: the benchmark is unknown, or a flag makes no sense.
    """
    within = _minutes(options.within) if options.within is not None else None
    for name in ("budget", "most", "rows"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e9:
            raise UserError(f"--{name}={value:g}: must be a positive number")
    chosen = offers(options.benchmark, options.most, options.prices)
    if within:
        chosen = [one for one in chosen if one.minutes <= within]
    if options.budget:
        chosen = [one for one in chosen if one.usd and one.usd[0] <= options.budget]
    chosen = sorted(chosen, key=_order(options.by))[: options.rows]
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in chosen], indent=1))
        return 0
    print("\n".join(_lines(options.benchmark, chosen)))
    if options.output:
        _write(options.output, options.benchmark, chosen)
    return 0


def offers(benchmark: str, most: int, path: Path | None) -> list[Offer]:
    """The machines that the law can forecast and whose memory holds the model."""
    from systems.forecast import accelerators, law, money
    from timetotrain.forecast import sizes

    law.known(benchmark)
    table, choices = money.prices(path), []
    for name in accelerators.known_names():
        chip = accelerators.table()[name] | {"name": name}
        cost = table.get(name)
        for size in sizes.known(benchmark, chip, chip["per_node"], most):
            many = size.accelerators
            power = money.energy(chip, many, size.minutes, (size.low, size.high))
            choices.append(Offer(
                f"{many}x{name}", size.minutes, (size.low, size.high),
                cost.dollars(many, size.minutes) if cost else None, power.kwh if power else None,
                cost.of(many).told() if cost else "", size.evidence,
            ))  # fmt: skip
    return choices


def _order(by: str) -> Any:
    """The key of an order; what is unknown comes last, and equals are ordered by minutes."""
    if by == "time":
        return lambda one: one.minutes
    if by == "energy":
        return lambda one: (one.kwh is None, one.kwh, one.minutes)
    return lambda one: (one.usd is None, one.usd, one.minutes)


def _minutes(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?) ?(\w*)", text)
    if not match or match[2] not in _UNITS or not float(match[1]):
        raise UserError(f"--within={text}: write a time as 30min or 2h")
    return float(match[1]) * _UNITS[match[2]]


def _lines(benchmark: str, chosen: list[Offer]) -> list[str]:
    from systems.forecast import law_fit
    from timetotrain.forecast import answer

    if not chosen:
        return [f"{benchmark}: nothing to rent: no machine of which the forecast can say meets the limits"]
    half, most = answer.errors()[law_fit.LATER]["law"]
    head = f"{benchmark}: true error, later rounds: half within {half:.1f} %, nine of ten within {most:.0f} %"
    rows = [_HEAD[:5], *(one.cells()[:5] for one in chosen)]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    told = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    sellers = {one.machine.split("x", 1)[1]: one.prices for one in chosen if one.prices}
    return [head, "", *told, "", *(f"{name}: {text}" for name, text in sellers.items())]


def _write(path: Path, benchmark: str, chosen: list[Offer]) -> None:
    def row(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    title = f"What to rent for {html.escape(benchmark)}"
    page = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
        "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.3em .8em;text-align:left}"
        "tr:nth-child(even){background:#eee}</style>",
        f"<h1>{title}</h1><p>{html.escape(_lines(benchmark, chosen)[0])}</p>",
        "<table>" + row(_HEAD, "th") + "".join(row(one.cells(), "td") for one in chosen) + "</table></html>",
    ]
    try:
        path.write_text("\n".join(page) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"-o {path}: cannot write ({error.strerror})") from None
