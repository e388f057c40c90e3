"""Turns minutes into dollars and kilowatt-hours.

Dollars: accelerators x hours x a price per accelerator and hour, the user's or data/prices.json's. Energy: accelerators
x the board's limit x a ratio x hours. The ratio, of a system's watts to its boards' limits, comes from published power
logs (data/power.csv): hosts and fans add to it, boards below their limit take from it.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from common.errors import UserError
from common.untrusted import parsed, read_plain
from systems.predict import chips, law, scores

_DATA = Path(__file__).parent / "data"
_MOST = 2**20  # Bytes of a table of prices.
_CAME = {"memory": "from memory, ", "third party": "from a third party, ", "copy": "from a copy, "}


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
        return self.watts / (self.accelerators * chips.chips()[self.chip]["watts"])


@functools.cache
def powers() -> tuple[Power, ...]:
    """The published power results of systems with a published score."""
    found = []
    known = {(r.round, r.org, r.system, r.benchmark): r for r in scores.rows()}
    with (_DATA / "power.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            name = scores.title(row["benchmark"], row["round"])
            score = known.get((row["round"], row["org"], row["system"], name))
            if score:
                watts = float(row["node_watts"]) + float(row["switch_watts"])
                found.append(Power(*dataclasses.astuple(score), watts))
    return tuple(found)


def ratio(without: str = "") -> tuple[float, float]:
    """(the median ratio of a submitter's systems, deviation of its logarithm); `without` leaves out a submitter.

    Submitters whose names begin alike, as smc-ac-power and smc-dc-power, measured the same machines: they count once.
    """
    by_org: dict[str, list[float]] = {}
    for one in powers():
        by_org.setdefault(maker(one.org), []).append(one.ratio)
    chosen = [median(found) for org, found in by_org.items() if org != without]
    every = [x for org, found in by_org.items() if org != without for x in found]
    middle = median(chosen)
    spread = math.sqrt(sum(math.log(x / middle) ** 2 for x in every) / len(every))
    return middle, spread


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
    chip: Mapping[str, Any],
    accelerators: int,
    minutes: float,
    interval: tuple[float, float] | None,
    without: str = "",
) -> Energy | None:
    """The energy of a run; None if the board's limit is unpublished.

    Args:
      interval: of the minutes, None if it has none.
      without: a submitter whose power logs are left out.
    """
    if not chip.get("watts"):
        return None
    middle, spread = ratio(without)
    kwh = accelerators * chip["watts"] * middle * minutes / 60e3
    below, above = (math.log(minutes / interval[0]), math.log(interval[1] / minutes)) if interval else (0, 0)
    miss = law.NORMAL * spread
    return Energy(kwh, kwh * math.exp(-math.hypot(below, miss)), kwh * math.exp(math.hypot(above, miss)))


def prices(path: Path | None = None) -> dict[str, Price]:
    """The prices of the table by accelerator, or of a file: {"date", "prices": {accelerator: entry}}.

    An entry is a number, [number, source], or {"usd", "source", "date", "from"}; an entry's date precedes the table's.

    Raises:
      UserError: the file is no such table.
    """
    place = path or _DATA / "prices.json"
    shape = f'--prices={place}: write {{"date": "2026-11", "prices": {{"H100-SXM5": [3.78, "source"]}}}}'
    try:
        found = parsed(read_plain(place, _MOST))
    except (OSError, ValueError) as error:
        raise UserError(f"{shape}; cannot read it ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("prices"), dict):
        raise UserError(f"{shape}; it has no object `prices`")
    table = {}
    for name, entry in found["prices"].items():
        if isinstance(entry, list) and len(entry) == 2:
            entry = dict(zip(("usd", "source"), entry))
        row = entry if isinstance(entry, dict) else {"usd": entry}
        usd = row.get("usd")
        if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 < usd < 1e6:
            raise UserError(f"{shape}; {name}: {usd!r} is no price")
        table[chips.named(name) or name] = Price(float(usd), _source(row, found.get("date")))
    return table


def _source(row: Mapping[str, Any], date: object) -> str:
    """Where a price comes from: its source, how it got into the table, and its date, else the table's."""
    dated = str(row["date"]) if "date" in row else f"table of {date or 'no date'}"
    came = _CAME.get(str(row.get("from")), "")
    return f"{row.get('source', '')}; {came}{dated}"


@dataclasses.dataclass(frozen=True)
class Price:
    """USD per accelerator and hour, and where it comes from."""

    usd: float
    source: str

    def dollars(self, accelerators: int, minutes: float) -> float:
        """Dollars of a run."""
        return self.usd * accelerators * minutes / 60


def price(chip: str, given: float | None, path: Path | None) -> Price | None:
    """The price of an accelerator: the user's, else the table's; None if it has none.

    Raises:
      UserError: the price is no positive number, or the file is no table.
    """
    if given is not None:
        if not 0 < given < 1e6:
            raise UserError(f"--price={given:g}: must be a positive number of USD per accelerator and hour")
        return Price(given, "--price")
    return prices(path).get(chip)


@dataclasses.dataclass(frozen=True)
class Size:
    """A number of accelerators with its expected minutes, their interval, and dollars (None without a price)."""

    accelerators: int
    minutes: float
    low: float
    high: float
    dollars: float | None


def sizes(
    benchmark: str, chip: Mapping[str, Any], cost: Price | None, per_node: int, most: int
) -> list[Size]:
    """What published systems of each size take: from one accelerator, or one host's, by powers of two up to `most`.

    Sizes of which the law cannot say are left out.
    """
    found = []
    wanted = sorted({n for n in (2**i for i in range(18)) if n <= min(per_node, most)})
    wanted += [per_node * 2**i for i in range(1, 18) if per_node * 2**i <= most]
    largest = max(row.accelerators for row in law.law(benchmark).rows)
    least = min(row.accelerators for row in law.law(benchmark).rows)
    for many in sorted(set(wanted)):
        if least <= many <= largest:
            one = law.estimate(benchmark, chip, many)
            if not one.reason:
                dollars = cost.dollars(many, one.minutes) if cost else None
                found.append(Size(many, one.minutes, one.low, one.high, dollars))
    return found


def cheapest(found: list[Size], deadline: float) -> Size | None:
    """The cheapest size that finishes within `deadline` minutes, with no price the smallest; None if none does."""
    fast = [size for size in found if size.minutes <= deadline]
    return min(fast, key=lambda size: (size.dollars or 0.0, size.accelerators), default=None)


def fastest(found: list[Size], budget: float) -> Size | None:
    """The fastest size whose run costs at most `budget` dollars; None if none does."""
    within = [size for size in found if size.dollars is not None and size.dollars <= budget]
    return min(within, key=lambda size: size.minutes, default=None)
