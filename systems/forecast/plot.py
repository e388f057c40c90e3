"""Draws pictures of forecasts; the only module that imports matplotlib, and only when a picture is requested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from systems.forecast.law import Estimate
from systems.forecast.money import Price

_COLOURS = ("#4c72b0", "#dd8452")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def sizes(path: Path, estimates: Sequence[Estimate], cost: Price | None, title: str) -> None:
    """Plots minutes with their interval, and dollars, against the number of accelerators."""
    pyplot = _pyplot()
    many = [size.accelerators for size in estimates]
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    axes.fill_between(
        many, [s.low for s in estimates], [s.high for s in estimates], color=_COLOURS[0], alpha=0.2
    )
    axes.plot(many, [s.minutes for s in estimates], "o-", color=_COLOURS[0])
    axes.set(xscale="log", yscale="log", xlabel="accelerators", ylabel="minutes", title=title)
    axes.set_xscale("log", base=2)
    axes.yaxis.label.set_color(_COLOURS[0])
    if cost:
        right = axes.twinx()
        right.plot(
            many, [cost.dollars(s.accelerators, s.minutes)[0] for s in estimates], "s--", color=_COLOURS[1]
        )
        right.set(yscale="log", ylabel="USD a run, cheapest offer")
        right.yaxis.label.set_color(_COLOURS[1])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
