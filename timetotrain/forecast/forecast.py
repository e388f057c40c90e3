"""`timetotrain forecast BENCHMARK --system=NAME`: how long a run takes, what it costs, what to rent."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

from common.errors import UserError

_NUMBERS = ("runs", "budget", "most", "rows")
_UNITS = {"": 1.0, "m": 1.0, "min": 1.0, "h": 60.0, "s": 1 / 60}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from timetotrain.forecast import rent

    parser.description = (
        "Says how long a run takes on a machine that you lack, what it costs, and what to rent."
    )
    add = parser.add_argument
    add("benchmark", metavar="BENCHMARK", help="a benchmark with published scores: resnet, bert, ...")
    add("--system", metavar="NAME", help="8xH100-SXM5, p5.48xlarge, a system, or a system's JSON file")
    add("--accelerators", type=int, metavar="N", help="how many of the system's kind (TPUs: chips)")
    add = parser.add_argument_group("an unknown accelerator, or other figures of a known one").add_argument
    add("--peak", type=float, metavar="TFLOPS", help="peak of one accelerator, dense, in 16 bits")
    add("--bandwidth", type=float, metavar="GB/S", help="memory bandwidth of one accelerator")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    add = parser.add_argument_group("money and energy").add_argument
    add("--price", type=float, metavar="USD", help="price of one accelerator for an hour")
    add("--prices", type=Path, metavar="FILE", help="a table of prices in place of the sellers'")
    add("--runs", type=int, metavar="N", help="runs of a submission (default: what the round asks for)")
    rent.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the forecast, or machines to rent, and returns 0; 1 if it cannot say, or no machine fits.

    Raises UserError if a name is unknown, or a flag makes no sense.
    """
    from systems.forecast import machine as machines
    from systems.forecast.accelerators import UserFigures
    from timetotrain.forecast import answer, rent

    for name in _NUMBERS:
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e9:
            raise UserError(f"--{name}={value:g}: must be a positive number")
    options.deadline, figures = _minutes(options.deadline), UserFigures(options.peak, options.bandwidth)
    if options.rent or options.deadline or options.budget:
        chips = rent.every()
        if options.system:
            described = answer.description(options.benchmark, options.system, figures)
            chips = [machines.machine(described, options.accelerators, [], figures).chip]
        offers = rent.offers(options.benchmark, options, chips)
        rows = [dataclasses.asdict(one) for one in offers]
        print(
            json.dumps(rows, indent=1) if options.json else "\n".join(rent.lines(options.benchmark, offers))
        )
        return 0 if offers else 1
    if not options.system:
        raise UserError(
            "--system=NAME: which machine? 8xH100-SXM5, a system's JSON file, or --rent for a list"
        )
    one = answer.forecast(options.benchmark, options.system, options.accelerators, figures)
    content, lines = answer.content(one), answer.lines(one)
    fields, more = answer.money_and_energy(one, options)
    content, lines = content | fields, lines + more
    lines += [f"assumed: {note}" for note in one.notes]
    print(json.dumps(content, indent=1) if options.json else "\n".join(lines))
    return 1 if one.reason else 0


def _minutes(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?) ?(\w*)", text)
    if not match or match[2] not in _UNITS or not float(match[1]):
        raise UserError(f"--deadline={text}: write a time as 20 (minutes), 30min or 2h")
    return float(match[1]) * _UNITS[match[2]]
