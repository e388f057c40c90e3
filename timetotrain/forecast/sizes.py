"""Other sizes of a forecast's machine: minutes and dollars, the cheapest by a deadline, the fastest for a budget."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from common.errors import UserError
from systems.forecast import law, memory, money
from systems.forecast.law import Estimate
from timetotrain.forecast import answer
from timetotrain.forecast.answer import Answer

MOST = 16_384  # Accelerators of the largest size that is shown.
_BLUE, _ORANGE = "#4c72b0", "#dd8452"


def known(benchmark: str, chip: dict[str, Any], per_node: int, most: int = MOST) -> list[Estimate]:
    """The sizes that the law can forecast and that hold the model: powers of two up to a host, then of hosts."""
    small = [n for n in (2**i for i in range(18)) if n <= min(per_node, most)]
    hosts = [per_node * 2**i for i in range(18) if per_node * 2**i <= most]
    chosen = law.estimates(benchmark, chip, sorted({*small, *hosts}))
    fits = [memory.fit(benchmark, chip, one.accelerators) for one in chosen]
    return [one for one, fit in zip(chosen, fits) if not one.reason and (not fit or fit.fits)]


def of(one: Answer, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The sizes for JSON, and their table.

    Raises UserError: nothing is published of the benchmark, or a budget has no price.
    """
    chip = dict(one.machine.chip)
    law.known(one.benchmark)
    cost = answer.money_of(one, options)
    if options.budget and not cost:
        raise UserError("--budget: this accelerator has no price; give --price=USD or --prices=FILE")
    estimates = known(one.benchmark, chip, max(one.machine.per_node, 1))
    if not estimates:
        return {"sizes": []}, [f"other sizes: cannot say: published scores are too far from {chip['name']}"]
    told = ["", f"{'accelerators':>12}  {'minutes':>9}  {'nine of ten between':>21}  {'USD':>21}"]
    rows = []
    for size in estimates:
        ends = cost.dollars(size.accelerators, size.minutes) if cost else ()
        between = f"{size.low:.3g} to {size.high:.3g}"
        told.append(f"{size.accelerators:>12}  {size.minutes:>9.3g}  {between:>21}  {money.spread(ends):>21}")
        rows.append(dataclasses.asdict(size) | {"usd": list(ends)})
    if options.deadline:
        fast = [size for size in estimates if size.minutes <= options.deadline]
        best = min(fast, key=lambda size: (_usd(cost, size), size.accelerators), default=None)
        told.append(_best(best, cost, f"within {options.deadline:g} minutes", "cheapest"))
    if options.budget:
        within = [size for size in estimates if _usd(cost, size) <= options.budget]
        best = min(within, key=lambda size: size.minutes, default=None)
        told.append(_best(best, cost, f"for {options.budget:g} USD", "fastest"))
    if options.plot:
        _plot(options.plot, estimates, cost, f"{one.benchmark} on {chip['name']}")
    return {"sizes": rows}, told


def _usd(cost: money.Price | None, size: Estimate) -> float:
    """Dollars of a run by the cheapest offer; 0 without a price."""
    return cost.dollars(size.accelerators, size.minutes)[0] if cost else 0.0


def _best(size: Estimate | None, cost: money.Price | None, limit: str, which: str) -> str:
    if size is None:
        return f"{limit}: no size of the table"
    dollars = f", {_usd(cost, size):,.2f} USD" if cost else ""
    return f"{which} {limit}: {size.accelerators} accelerators, {size.minutes:.3g} minutes{dollars}"


def _plot(path: Path, estimates: list[Estimate], cost: money.Price | None, title: str) -> None:
    """Plots minutes with their interval, and dollars, against the number of accelerators."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        many, low, high, minutes = zip(*((s.accelerators, s.low, s.high, s.minutes) for s in estimates))
        figure, axes = pyplot.subplots(figsize=(7, 4.2))
        axes.fill_between(many, low, high, color=_BLUE, alpha=0.2)
        axes.plot(many, minutes, "o-", color=_BLUE)
        axes.set(xscale="log", yscale="log", xlabel="accelerators", ylabel="minutes", title=title)
        axes.set_xscale("log", base=2)
        axes.yaxis.label.set_color(_BLUE)
        if cost:
            right = axes.twinx()
            right.plot(many, [_usd(cost, size) for size in estimates], "s--", color=_ORANGE)
            right.set(yscale="log", ylabel="USD a run, cheapest offer")
            right.yaxis.label.set_color(_ORANGE)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
    except ImportError as error:
        raise UserError(
            f"--plot={path}: needs matplotlib ({error}); install it, or leave out --plot"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"--plot={path}: cannot write ({error}); give a .png, .svg or .pdf file") from None
