"""Turns minutes into dollars and kilowatt-hours.

Dollars: accelerators x hours x a price per accelerator and hour, the user's or the sellers' of data/prices.json.
Energy: accelerators x the board's limit x a ratio x hours. The ratio, of a system's watts to its boards' limits, comes
from published power logs (data/power.csv): hosts and fans add to it, boards below their limit take from it.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from common.errors import UserError
from common.untrusted import parsed, read_plain
from systems.forecast import accelerators, scores

_DATA = Path(__file__).parent / "data"
_MOST = 2**20  # Bytes of a table of prices.
_NORMAL = 1.645  # Two-sided 90 % quantile of the normal distribution.


@dataclasses.dataclass(frozen=True)
class Power(scores.Score):
    """A published score with its power result: the watts of all nodes and switches."""

    watts: float

    @property
    def kwh(self) -> float:
        return self.watts * self.minutes / 60e3

    @property
    def ratio(self) -> float:
        """The system's watts over its boards' limits."""
        return self.watts / (self.accelerators * accelerators.table()[self.chip]["watts"])


@functools.cache
def powers() -> tuple[Power, ...]:
    """The published power results of systems with a published score."""
    results = []
    by_run = {(r.round, r.org, r.system, r.benchmark): r for r in scores.published()}
    with (_DATA / "power.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            name = scores.title(row["benchmark"], row["round"])
            score = by_run.get((row["round"], row["org"], row["system"], name))
            if score:
                watts = float(row["node_watts"]) + float(row["switch_watts"])
                results.append(Power(*dataclasses.astuple(score), watts))
    return tuple(results)


@functools.cache
def ratio(without: str = "") -> tuple[float, float]:
    """(the median ratio of a submitter's systems, deviation of its logarithm); `without` leaves out a submitter.

    Submitters whose names begin alike, as smc-ac-power and smc-dc-power, measured the same machines: they count once.
    """
    by_org: dict[str, list[float]] = {}
    for one in powers():
        by_org.setdefault(maker(one.org), []).append(one.ratio)
    medians = [median(ratios) for org, ratios in by_org.items() if org != without]
    every = [x for org, ratios in by_org.items() if org != without for x in ratios]
    middle = median(medians)
    return middle, math.sqrt(sum(math.log(x / middle) ** 2 for x in every) / len(every))


def maker(org: str) -> str:
    """The submitter, whatever the kind of current that it measured."""
    return org.split("-")[0]


@dataclasses.dataclass(frozen=True)
class Energy:
    """Kilowatt-hours of a run with a 90 % interval."""

    kwh: float
    low: float
    high: float


def energy(
    chip: Mapping[str, Any], many: int, minutes: float, interval: tuple[float, float], without: str = ""
) -> Energy | None:
    """The energy of a run on `many` accelerators, with the minutes' interval; None if the board's limit is unpublished.

    The power logs of the submitter `without` are left out.
    """
    if not chip.get("watts"):
        return None
    middle, spread = ratio(without)
    kwh = many * chip["watts"] * middle * minutes / 60e3
    below, above = math.log(minutes / interval[0]), math.log(interval[1] / minutes)
    miss = _NORMAL * spread
    return Energy(kwh, kwh * math.exp(-math.hypot(below, miss)), kwh * math.exp(math.hypot(above, miss)))


@dataclasses.dataclass(frozen=True)
class Offer:
    """A seller's price: USD per accelerator and hour, for `of` to `most` accelerators; its kind (on demand, spot,
    marketplace, reservation), date and source.
    """

    seller: str
    usd: float
    of: int = 1
    date: str = ""
    source: str = ""
    most: int = accelerators.MOST
    kind: str = ""

    def billed(self, many: int) -> int:
        """Accelerators that a run on `many` pays for: whole multiples of `of`."""
        return -(-many // self.of) * self.of

    @property
    def words(self) -> str:
        """The price with seller, kind and date; one that is older than a year says so."""
        match = re.match(r"(\d{4})-?(\d\d)?", self.date)
        old = (
            match
            and date.today().year * 12 + date.today().month - int(match[1]) * 12 - int(match[2] or 12) > 12
        )
        words = (self.seller, self.kind, self.date, "older than a year" if old else "")
        return f"{self.usd:.2f} ({', '.join(filter(None, words))})"


@dataclasses.dataclass(frozen=True)
class Price:
    """The offers of an accelerator, the cheapest first."""

    offers: tuple[Offer, ...]

    def dollars(self, many: int, minutes: float) -> tuple[float, float]:
        """Dollars of a run on `many` accelerators, of the cheapest and of the dearest offer, as they bill."""
        bills = [one.usd * one.billed(many) * minutes / 60 for one in self.offers]
        return min(bills), max(bills)

    def for_count(self, many: int) -> Price | None:
        """The offers for so many accelerators, by their bills; None if there is none. Those that bill more
        accelerators come only if no offer bills exactly so many.
        """
        bookable = [one for one in self.offers if one.billed(many) <= one.most]
        exact = [one for one in bookable if one.billed(many) == many] or bookable
        return Price(tuple(sorted(exact, key=lambda one: one.usd * one.billed(many)))) if exact else None

    def words(self, many: int) -> str:
        """The prices in words, with sellers, kinds, dates, and how many accelerators they bill if more than `many`."""
        ends = [
            one.words + (f", billed for {one.billed(many)}" if one.billed(many) > many else "")
            for one in (self.offers[0], self.offers[-1])
        ]
        return f"{' to '.join(dict.fromkeys(ends))} USD an accelerator and hour"


def spread(ends: Sequence[float]) -> str:
    """A range in words: "1.23 to 4.56", or one number."""
    texts = list(dict.fromkeys(f"{end:,.2f}" for end in ends))
    return " to ".join(texts)


def prices(path: Path | None = None) -> dict[str, Price]:
    """The prices of data/prices.json by accelerator, or of a file: {"date": ..., "prices": {accelerator: entry}}.

    An entry is a number, [number, source], or a list of {"usd", "seller", "of", "most", "kind", "date", "source"}.

    Raises UserError if the file is no such table.
    """
    place = path or _DATA / "prices.json"
    shape = f'--prices={place}: write {{"date": "2026-11", "prices": {{"H100-SXM5": [3.78, "source"]}}}}'
    try:
        by_name = parsed(read_plain(place, _MOST))
    except (OSError, ValueError) as error:
        raise UserError(f"{shape}; cannot read it ({error})") from None
    if not isinstance(by_name, dict) or not isinstance(by_name.get("prices"), dict):
        raise UserError(f"{shape}; it has no object `prices`")
    table = {}
    for name, entry in by_name["prices"].items():
        offers = [_offer(one, f"{shape}; {name}", str(by_name.get("date", ""))) for one in _entries(entry)]
        chip = accelerators.name_in(name) or name
        table[chip] = Price(tuple(sorted(offers, key=lambda one: one.usd)))
    return table


def _entries(entry: Any) -> list[dict[str, Any]]:
    if isinstance(entry, list) and entry and all(isinstance(one, dict) for one in entry):
        return entry
    if isinstance(entry, list) and len(entry) == 2:
        return [{"usd": entry[0], "seller": str(entry[1])}]
    return [entry if isinstance(entry, dict) else {"usd": entry}]


def _offer(row: dict[str, Any], place: str, day: str) -> Offer:
    usd, of = row.get("usd"), row.get("of", 1)
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 < usd < 1e6:
        raise UserError(f"{place}: {usd!r} is not a price")
    if isinstance(of, bool) or not isinstance(of, int) or not 0 < of < 1e6:
        raise UserError(f"{place}: of: {of!r} is not a number of accelerators")
    most = row.get("most", accelerators.MOST)
    if isinstance(most, bool) or not isinstance(most, int) or most < of:
        raise UserError(f"{place}: most: {most!r} is not a number of accelerators")
    words = [str(row.get(field, "")) for field in ("seller", "date", "source", "kind")]
    return Offer(words[0], float(usd), of, words[1] or day, words[2], most, words[3])


def price(chip: str, usd: float | None, path: Path | None) -> Price | None:
    """The prices of an accelerator: the user's, else the table's; None if it has none.

    Raises UserError if the price is not a positive number, or the file is not a table.
    """
    if usd is not None:
        if not 0 < usd < 1e6:
            raise UserError(f"--price={usd:g}: must be a positive number of USD per accelerator and hour")
        return Price((Offer("--price", usd),))
    return prices(path).get(chip)
