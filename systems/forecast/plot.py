"""Draws pictures of forecasts; the only module that imports matplotlib, and only when a picture is requested."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from systems.forecast import accelerators, law, law_fit
from systems.forecast.law import Estimate
from systems.forecast.money import Price

_COLOURS = ("#4c72b0", "#dd8452")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def families(path: Path) -> None:
    """Plots, for every score of a later round, the minutes predicted from earlier rounds against the published ones."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 6))
    marks = {"NVIDIA": "o", "Google": "s", "AMD": "^", "Intel": "v", "Graphcore": "D", "Huawei": "P"}
    tests = law_fit.later(law.committed()["kernel"])
    counts = Counter(_kind(test.row.chip) for test in tests)
    family = {
        test.row.chip: _kind(test.row.chip)
        if counts[_kind(test.row.chip)] >= 10
        else f"other {accelerators.maker(test.row.chip)}"
        for test in tests
    }
    groups = sorted(set(family.values()))
    colours = pyplot.get_cmap("tab20", len(groups))
    for i, group in enumerate(groups):
        mine = [test for test in tests if family[test.row.chip] == group]
        axes.plot(
            [test.row.minutes for test in mine], [test.row.minutes * math.exp(-test.wrong) for test in mine],
            marks[accelerators.maker(mine[0].row.chip)], color=colours(i), label=f"{group} ({len(mine)})",
            markersize=4, alpha=0.7, linestyle="",
        )  # fmt: skip
    line = [0.1, 1000]
    axes.plot(line, line, "k-", linewidth=0.8)
    for factor in (1.3, 1 / 1.3):
        axes.plot(line, [factor * x for x in line], "k:", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published minutes", ylabel="predicted from earlier rounds")
    axes.set_title(f"{len(tests):,} scores, each from earlier rounds; dotted: 30 %")
    axes.legend(fontsize=7, ncol=2)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)


def _kind(chip: str) -> str:
    """An accelerator's family: its name without its board."""
    return chip.split("-")[0]


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
