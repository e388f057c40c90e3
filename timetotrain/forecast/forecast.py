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
    "jitter": ("SIGMA", "relative deviation of a worker's step, e.g. 0.02"),
    "stragglers": ("PART", "fraction of workers that are slow"),
    "slowdown": ("FACTOR", "a straggler's time over the others' (1.3)"),
    "mtbf": ("HOURS", "mean time between failures of one worker"),
    "restart": ("S", "seconds from a failure to the next step (120)"),
    "checkpoint": ("S", "seconds between checkpoints (0: the best)"),
    "save": ("S", "seconds that a checkpoint takes (5)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Says how long a run takes on a machine that you lack, and what it costs."
    add = parser.add_argument
    add("benchmark", metavar="BENCHMARK", help="a benchmark with published scores: resnet, bert, ...")
    add("--system", required=True, metavar="NAME", help="8xH100-SXM5, a system, or a system's JSON file")
    add("--accelerators", type=int, metavar="N", help="how many of the system's kind (TPUs: chips)")
    add("--batch", type=int, metavar="N", help="global batch size; sets the epochs, by the published points")
    add("--epochs", type=float, metavar="N", help="epochs, instead of the published ones")
    add("--assume", action="store_true", help="use defaults where the system's JSON lacks what it must say")
    add = parser.add_argument_group("an unknown accelerator, or other figures of a known one").add_argument
    add("--peak", type=float, metavar="TFLOPS", help="peak of one accelerator, dense, in 16 bits")
    add("--bandwidth", type=float, metavar="GB/S", help="memory bandwidth of one accelerator")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--explain", metavar="OTHER", help="why another system takes longer, by factors")
    add = parser.add_argument_group("money and other sizes").add_argument
    add("--price", type=float, metavar="USD", help="price of one accelerator for an hour")
    add("--prices", type=Path, metavar="FILE", help="a table of prices in place of the sellers'")
    add("--runs", type=int, metavar="N", help="runs of a submission (default: what the round asks for)")
    add("--trials", type=int, metavar="N", help="also say what a search of N whole runs costs")
    add("--sizes", action="store_true", help="show minutes and dollars over numbers of accelerators")
    add("--deadline", type=float, metavar="MINUTES", help="show the cheapest size within this time")
    add("--budget", type=float, metavar="USD", help="show the fastest size within this budget")
    add("--own", type=Path, metavar="FOLDER", help="your runs with `run --power`: show what they consumed")
    add("--plot", type=Path, metavar="FILE", help="draw the sizes as a picture")
    add = parser.add_argument_group(
        "simulated faults (any of these simulates the run, step by step)"
    ).add_argument
    add("--simulate", action="store_true", help="simulate the run, even without faults")
    for name, (metavar, meaning) in _FAULTS.items():
        add(f"--{name}", type=float, metavar=metavar, help=meaning)
    add("--group", type=int, metavar="N", help="how many workers wait for each other within a step")
    add("--seed", type=int, default=0, help="seed of the simulation")


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
