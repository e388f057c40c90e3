"""Adds money, energy and other sizes to a forecast: its flags, its lines, and its part of the JSON."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from compliance.submission import rounds

if TYPE_CHECKING:
    from systems.predict.money import Price, Size

_MOST = 16_384  # Accelerators of the largest size that is shown.


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags of money and energy."""
    group = command.add_argument_group("money and other sizes")
    group.add_argument("--price", type=float, metavar="USD", help="an accelerator's, per hour")
    group.add_argument("--prices", type=Path, metavar="FILE", help="a table in place of the list prices")
    group.add_argument("--runs", type=int, metavar="N", help="of a submission (default: the round's rule)")
    group.add_argument("--trials", type=int, metavar="N", help="of a search: what N whole runs cost")
    group.add_argument(
        "--sizes", action="store_true", help="minutes and dollars over numbers of accelerators"
    )
    group.add_argument("--deadline", type=float, metavar="MINUTES", help="the cheapest size within them")
    group.add_argument("--budget", type=float, metavar="USD", help="the fastest size within it")
    group.add_argument(
        "--sizes-plot", type=Path, metavar="FILE", help="minutes and dollars over accelerators"
    )


@dataclasses.dataclass(frozen=True)
class Outlook:
    """The lines of money, energy and sizes, and the same for JSON."""

    lines: list[str]
    content: dict[str, Any]


def of(
    options: argparse.Namespace,
    benchmark: str,
    chip: Mapping[str, Any],
    accelerators: int,
    per_node: int,
    minutes: float,
    interval: tuple[float, float] | None,
    when: str = "",
) -> Outlook:
    """What a run costs, and what other sizes would.

    Args:
      minutes, interval: of one run.
      when: the round whose number of runs counts; "" for v0.7's.

    Raises:
      UserError: a flag makes no sense, or sizes are wanted of a benchmark without published scores.
    """
    from systems.predict import money

    for name in ("runs", "trials", "deadline", "budget"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e9:
            raise UserError(f"--{name}={value:g}: must be a positive number")
    cost = money.price(str(chip["name"]), options.price, options.prices)
    lines, content = _money(options, benchmark, accelerators, minutes, when, cost)
    power = money.energy(chip, accelerators, minutes, interval)
    if power:
        lines.append(
            f"energy: {power.kwh:.3g} kWh ({power.low:.3g} to {power.high:.3g}): boards of {chip['watts']} W times "
            f"{money.ratio()[0]:.2f}, as published power logs have it"
        )
        content["energy_kwh"] = dataclasses.asdict(power)
    else:
        lines.append(f"energy: cannot say: the power of {chip['name']} is unpublished")
    if options.sizes or options.sizes_plot or options.deadline or options.budget:
        more, found = _sizes(options, benchmark, chip, per_node, cost)
        lines += more
        content["sizes"] = [dataclasses.asdict(size) for size in found]
    return Outlook(lines, content)


def _money(
    options: argparse.Namespace,
    benchmark: str,
    accelerators: int,
    minutes: float,
    when: str,
    cost: Price | None,
) -> tuple[list[str], dict[str, Any]]:
    if not cost:
        if options.budget:
            raise UserError("--budget: this accelerator has no list price; give --price=USD or --prices=FILE")
        return ["cost: no list price of this accelerator is known; give --price=USD_PER_HOUR"], {"cost": None}
    one = cost.dollars(accelerators, minutes)
    runs = options.runs or _runs(benchmark, when)
    text = f"cost: {one:,.2f} USD a run"
    content = {"usd_per_hour": cost.usd, "source": cost.source, "run": one}
    if runs:
        text += f", {runs * one:,.2f} USD the {runs} runs of a submission"
        content |= {"runs": runs, "submission": runs * one}
    if options.trials:
        text += f", {options.trials * one:,.2f} USD a search of {options.trials} whole runs"
        content |= {"trials": options.trials, "search": options.trials * one}
    return [f"{text} ({cost.usd:.2f} USD an accelerator and hour: {cost.source})"], {"cost": content}


def _runs(benchmark: str, when: str) -> int:
    """The number of runs that a round asks for; 0 if the benchmark is in none."""
    ruleset = f"{when[1:]}.0" if when else "0.7.0"
    for name in (benchmark, {"retinanet": "ssd", "rgat": "gnn"}.get(benchmark, benchmark)):
        if name in rounds.benchmarks(ruleset):
            return rounds.required_runs(name, ruleset)
    return 0


def _sizes(
    options: argparse.Namespace, benchmark: str, chip: Mapping[str, Any], per_node: int, cost: Price | None
) -> tuple[list[str], list[Size]]:
    from systems.predict import money, scores

    if benchmark not in scores.benchmarks():
        raise UserError(f"--sizes: no scores of {benchmark} are published, so other sizes cannot be said")
    found = money.sizes(benchmark, chip, cost, per_node, _MOST)
    if not found:
        return [f"other sizes: cannot say: published scores are too far from {chip['name']}"], []
    lines = ["", f"{'accelerators':>12}  {'minutes':>9}  {'nine of ten between':>21}  {'USD':>10}"]
    for size in found:
        dollars = f"{size.dollars:>10,.2f}" if size.dollars is not None else f"{'':>10}"
        between = f"{size.low:.3g} to {size.high:.3g}"
        lines.append(f"{size.accelerators:>12}  {size.minutes:>9.3g}  {between:>21}  {dollars}")
    if options.deadline:
        lines.append(
            _best(money.cheapest(found, options.deadline), f"within {options.deadline:g} minutes", "cheapest")
        )
    if options.budget:
        lines.append(_best(money.fastest(found, options.budget), f"for {options.budget:g} USD", "fastest"))
    if options.sizes_plot:
        _plot(options.sizes_plot, found, f"{benchmark} on {chip['name']}")
    return lines, found


def _best(size: Size | None, limit: str, what: str) -> str:
    if size is None:
        return f"{limit}: no size of the table"
    dollars = f", {size.dollars:,.2f} USD" if size.dollars is not None else ""
    return f"{what} {limit}: {size.accelerators} accelerators, {size.minutes:.3g} minutes{dollars}"


def _plot(path: Path, found: list[Size], title: str) -> None:
    try:
        from systems.predict import plot

        plot.sizes(path, found, title)
    except ImportError as error:
        raise UserError(f"--sizes-plot={path}: needs matplotlib ({error}); install it") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"--sizes-plot={path}: cannot write ({error}); give a .png, .svg or .pdf file"
        ) from None
