"""Tables of the forecast for the built site and the pages of docs/: errors, accelerators and prices."""

from __future__ import annotations

import json

from common.files import ROOT, markdown_table
from lab.bench import law_fit
from systems.forecast import accelerators, errors, money
from tools.docs.measurements import Table

_PLANS = ROOT / "lab/bench/results/plan.json"


def _pair(pair: list[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in pair)


def _inside(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def wrong() -> Table:
    """The errors by what was left out and by distance, beside the look-ups."""
    every = errors.table()
    rows = []
    for name, row in [*every["left out"].items(), *every["distance"].items()]:
        cells = [name, f"{row['scores']:,}", _pair(row["law"]), _inside(row["inside"])]
        for look_up in law_fit.LOOK_UPS:
            cells += [_pair(row[look_up]["look-up"]), _pair(row[look_up]["law"])]
        rows.append(tuple(cells))
    beside = [cell for name in law_fit.LOOK_UPS for cell in (name, "law there")]
    return ("left out, or distance", "scores", "law", "inside", *beside), rows


def coverage() -> Table:
    """The shares of later scores inside the intervals of 90 and 99 %, by what they have in common."""
    rows = [
        (way, name, f"{count:,}", f"{inside:.0%}", f"{wide:.0%}")
        for way, groups in errors.table()["coverage"].items()
        for name, (count, inside, wide) in groups.items()
    ]
    return ("by", "which", "scores", "inside 90 %", "inside 99 %"), rows


def readme() -> str:
    """README's sentence."""
    every = errors.table()
    later, distance = every["left out"][law_fit.LATER], every["distance"]
    half, most = later["law"]
    near, new = (_pair(distance[name]["law"]) for name in (errors.SAME, errors.NEW))
    return (
        f"Half of {later['scores']:,} scores are within {half:.1f} % of a forecast from earlier rounds alone, nine of "
        f"ten within {most:.1f} %: {near} % with a score on as many accelerators, {new} % on a new one"
    )


def page() -> list[str]:
    """The rows of docs/prediction.md's table."""
    every, rows = errors.table(), []
    for name, row in [*every["left out"].items(), *every["distance"].items()]:
        same, rule = (_pair(row[look_up]["look-up"]) for look_up in ("same count", "simple rule"))
        cells = (name, f"{row['scores']:,}", _pair(row["law"]), _inside(row["inside"]), same, rule)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def plans() -> dict[str, list[str]]:
    """The tables of docs/plan.md, line by line, from lab/bench/results/plan.json."""
    content = json.loads(_PLANS.read_text(encoding="utf-8"))
    speed, later = [], []
    for name, row in content["speed"].items():
        shares = (_pair(row["run"]), row["scores"], _pair(row["score"]), _inside(row["inside"]))
        speed.append((name, row["logs"], *shares))
    for row in content["later"]:
        if not (interval := row["plan"]):
            continue
        plan = f"{interval[0]:.3g} ({interval[1]:.3g} to {interval[2]:.3g})"
        admitted = "named" if row["admitted"] else "not named"
        batch = "" if row["batch"] is None else f"{row['batch']:,}, {admitted}"
        run = (f"{row['benchmark']}, {row['org']}", row["accelerators"], f"{row['minutes']:.3g}")
        later.append((*run, plan, "yes" if row["inside"] else "no", batch))
    heads = (
        ("round", "runs", "a run", "scores", "the score", "inside"),
        ("benchmark, submitter", "machine", "published", "plan", "inside", "batch"),
    )
    tables = (markdown_table(head, rows).splitlines() for head, rows in zip(heads, (speed, later)))
    return dict(zip(("speed", "later"), tables))


def chips() -> Table:
    """The figures of every accelerator, with their source; what has none is blank."""

    def cell(value: float | None, unit: float) -> str:
        return f"{value / unit:,.4g}" if value else ""

    rows = [
        (
            name,
            cell(entry["peak"]["bf16"], 1e12),
            cell(entry["memory_bandwidth"], 1e9),
            cell(entry["memory"], 1e9),
            cell(entry["watts"], 1),
            entry["source"].replace("|", "/"),
        )
        for name, entry in accelerators.table().items()
        if not entry.get("host")
    ]
    return ("accelerator", "TFLOP/s, 16 bits", "GB/s", "GB", "W", "source"), rows


def offers() -> Table:
    """Every seller's price."""
    rows = [
        (name, f"{one.usd:.2f}", one.seller, str(one.of), f"{one.most:,}", one.kind, one.date, one.source)
        for name, price in money.prices().items()
        for one in price.offers
    ]
    return ("accelerator", "USD an hour", "seller", "at least", "at most", "kind", "date", "source"), rows
