"""`timetotrain forecast BENCHMARK --system=NAME`: how long a run takes, and what it costs. TensorFlow-free."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError

if TYPE_CHECKING:
    from timetotrain.forecast.answer import Answer

_NUMBERS = ("runs", "trials", "deadline", "budget")
# Flag of a simulated fault: its value's name, and its meaning.
_FAULTS = {
    "jitter": ("SIGMA", "of a worker's step, relative, e.g. 0.02"),
    "stragglers": ("PART", "part of workers that are slow"),
    "slowdown": ("FACTOR", "of a straggler (default 1.3)"),
    "mtbf": ("HOURS", "mean time between failures of one worker"),
    "restart": ("S", "from a failure to the next step (120)"),
    "checkpoint": ("S", "between checkpoints (0: the best)"),
    "save": ("S", "seconds that a checkpoint takes (5)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Says how long a run takes on a machine that you lack, and what it costs."
    parser.add_argument(
        "benchmark", metavar="BENCHMARK", help="a benchmark with published scores: resnet, bert, ..."
    )
    parser.add_argument(
        "--system", required=True, metavar="NAME", help="8xH100-SXM5, a system, or a system's JSON file"
    )
    parser.add_argument(
        "--accelerators", type=int, metavar="N", help="how many of the system's kind (TPUs: chips)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="global batch: epochs follow the published points"
    )
    parser.add_argument("--epochs", type=float, metavar="N", help="epochs instead of the published points'")
    parser.add_argument("--assume", action="store_true", help="use defaults for what the system's JSON lacks")
    own = parser.add_argument_group(
        "figures of an accelerator that is unknown, or in place of the known ones"
    )
    own.add_argument("--peak", type=float, metavar="TFLOPS", help="peak of dense 16-bit products")
    own.add_argument("--bandwidth", type=float, metavar="GB/S", help="its memory bandwidth")
    parser.add_argument("--json", action="store_true", help="all of it")
    parser.add_argument(
        "--explain", metavar="OTHER", help="why another system takes longer, factor by factor"
    )
    money = parser.add_argument_group("money and other sizes")
    money.add_argument("--price", type=float, metavar="USD", help="price of an accelerator per hour")
    money.add_argument("--prices", type=Path, metavar="FILE", help="a price table instead of the sellers'")
    money.add_argument("--runs", type=int, metavar="N", help="a submission's runs (default: the round's)")
    money.add_argument("--trials", type=int, metavar="N", help="cost of a search of N whole runs")
    money.add_argument(
        "--sizes", action="store_true", help="minutes and dollars over numbers of accelerators"
    )
    money.add_argument("--deadline", type=float, metavar="MINUTES", help="the cheapest size within that time")
    money.add_argument("--budget", type=float, metavar="USD", help="the fastest size within that cost")
    money.add_argument(
        "--own", type=Path, metavar="FOLDER", help="runs of yours with `run --power`: what their sensors say"
    )
    money.add_argument("--plot", type=Path, metavar="FILE", help="the sizes as a picture")
    faults = parser.add_argument_group("simulated faults (any of these simulates the run, step by step)")
    faults.add_argument("--simulate", action="store_true", help="simulate the run, even without faults")
    for name, (metavar, meaning) in _FAULTS.items():
        faults.add_argument(f"--{name}", type=float, metavar=metavar, help=meaning)
    faults.add_argument(
        "--group", type=int, metavar="N", help="workers that wait for each other within a step"
    )
    faults.add_argument("--seed", type=int, default=0, help="seed of the simulation")


def run(options: argparse.Namespace) -> int:
    """Prints the forecast and returns 0. Raises UserError: a name is unknown, or a flag makes no sense."""
    from systems.forecast.accelerators import Given
    from timetotrain.forecast import answer

    for name in _NUMBERS:
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e9:
            raise UserError(f"--{name}={value:g}: must be a positive number")
    given = Given(options.peak, options.bandwidth)
    one = answer.of(
        options.benchmark, options.system, options.accelerators, batch=options.batch, epochs=options.epochs,
        assume=options.assume, given=given,
    )  # fmt: skip
    content, lines = answer.content(one), answer.lines(one)
    for more in (
        answer.money_and_energy(one, options),
        _explained(one, options),
        _sizes(one, options),
        _faults(one, options),
    ):
        content, lines = content | more[0], lines + more[1]
    print(json.dumps(content, indent=1) if options.json else "\n".join(lines + answer.notes(one)))
    return 0


def _explained(one: Answer, options: argparse.Namespace) -> tuple[dict, list[str]]:
    if not options.explain:
        return {}, []
    from timetotrain.forecast import answer

    # The system itself is explained without the flags, so that they alone differ.
    same = options.explain == options.system
    flags_of_run = {} if same else {"batch": options.batch, "epochs": options.epochs}
    try:
        many = None if same else options.accelerators
        other = answer.of(options.benchmark, options.explain, many, assume=options.assume, **flags_of_run)
    except UserError as error:
        raise UserError(f"--explain={options.explain}: {error}") from None
    return answer.explained(one, other)


def _sizes(one: Answer, options: argparse.Namespace) -> tuple[dict, list[str]]:
    if not (options.sizes or options.plot or options.deadline or options.budget):
        return {}, []
    from timetotrain.forecast import sizes

    return sizes.of(one, options)


def _faults(one: Answer, options: argparse.Namespace) -> tuple[dict, list[str]]:
    given = {n: getattr(options, n) for n in (*_FAULTS, "group") if getattr(options, n) is not None}
    if options.seed < 0:
        raise UserError(f"--seed={options.seed}: must not be negative")
    if not given and not options.simulate:
        return {}, []
    from systems.forecast import simulate

    faults = simulate.Faults(**given)
    if one.reason:
        raise UserError(f"--simulate: the forecast cannot say: {one.reason}")
    result = simulate.simulate(60 * one.minutes, one.steps, one.machine.accelerators, faults, options.seed)
    return {"simulation": dataclasses.asdict(result)}, [result.table()]
