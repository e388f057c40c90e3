"""Tables of the forecast for the site's built page: its true error, the accelerators and the sellers' prices."""

from __future__ import annotations

import json

from systems.forecast import accelerators, law_fit, money

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def errors() -> Table:
    """The errors by what was left out, beside the two look-ups."""

    def told(pair: list[float]) -> str:
        return " / ".join(f"{value:.1f}" for value in pair)

    rows = []
    for name, row in json.loads(law_fit.ERRORS.read_text(encoding="utf-8")).items():
        cells = [name, f"{row['scores']:,}", told(row["law"]), f"{row['inside']:.0%}"]
        for look_up in ("median", "scaled"):
            cells += [told(row[look_up]["look-up"]), told(row[look_up]["law"])]
        rows.append(tuple(cells))
    head = ("left out", "scores", "law", "inside", "same count", "law there", "nearest count", "law there")
    return head, rows


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
        (name, f"{one.usd:.2f}", one.seller, str(one.of), one.date, one.source)
        for name, price in money.prices().items()
        for one in price.offers
    ]
    return ("accelerator", "USD an hour", "seller", "at least", "date", "source"), rows
