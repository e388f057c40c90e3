"""Implements `python -m systems predict`. Imports numpy only when it runs, and matplotlib only for --plot."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from common.errors import UserError, near
from timetotrain.forecast import outlook, why


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command to the parser of `python -m systems`."""
    command = commands.add_parser("predict", help="how long a run takes, and where the time goes")
    command.set_defaults(run=run)
    command.add_argument(
        "benchmark",
        metavar="BENCHMARK",
        help="resnet, ssd, maskrcnn, transformer, gnmt, ..., or another with scores: bert, llama31_8b, ...",
    )
    command.add_argument(
        "--system", required=True, metavar="NAME", help="a preset, a system, or a system's JSON file"
    )
    command.add_argument(
        "--accelerators", type=int, metavar="N", help="of the system's kind (of TPUs: chips)"
    )
    command.add_argument("--batch", type=int, metavar="N", help="global batch")
    command.add_argument("--partitions", type=int, metavar="N", help="cores that share each example")
    command.add_argument("--span", type=int, metavar="N", help="examples that share batch-norm statistics")
    command.add_argument("--wire", choices=("full", "bf16"), help="what gradients travel as")
    command.add_argument(
        "--weight-update-sharding",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="1/N of the update each",
    )
    command.add_argument(
        "--formulas", action="store_true", help="the step by formulas, also where its program is compiled"
    )
    command.add_argument("--epochs", type=float, metavar="N", help="instead of the published points'")
    command.add_argument(
        "--model", metavar="NETWORK", help="another network with known costs, e.g. i3d_3x3x3"
    )
    command.add_argument(
        "--assume", action="store_true", help="take defaults for what the system's JSON must tell"
    )
    own = command.add_argument_group(
        "figures of an accelerator that is unknown, or in place of the known ones"
    )
    own.add_argument("--peak", type=float, metavar="TFLOPS", help="dense 16-bit products")
    own.add_argument("--bandwidth", type=float, metavar="GB/S", help="of its memory")
    own.add_argument("--link", type=float, metavar="GB/S", help="that it sends to others of its host")
    command.add_argument("--json", action="store_true", help="all of it, in seconds")
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="time to train against accelerators, as a picture"
    )
    command.add_argument(
        "--explain",
        metavar="OTHER",
        help="the difference to another system's forecast, with the same flags of the run; to the unchanged "
        "preset, where OTHER is the system itself; or to a run's log",
    )
    outlook.add(command)
    _add_faults(command)


def _add_faults(command: argparse.ArgumentParser) -> None:
    faults = command.add_argument_group("simulated faults (any of these switches to event simulation)")
    faults.add_argument(
        "--simulate", action="store_true", help="simulate the run, even without faults; of any size"
    )
    faults.add_argument(
        "--jitter", type=float, metavar="SIGMA", help="of a worker's step, relative, e.g. 0.02"
    )
    faults.add_argument("--stragglers", type=float, metavar="PART", help="part of workers that are slow")
    faults.add_argument("--slowdown", type=float, metavar="FACTOR", help="of a straggler (default 1.3)")
    faults.add_argument(
        "--mtbf", type=float, metavar="HOURS", help="mean time between failures of one worker"
    )
    faults.add_argument(
        "--restart", type=float, metavar="S", help="seconds from a failure to the next step (120)"
    )
    faults.add_argument(
        "--checkpoint", type=float, metavar="S", help="seconds between checkpoints (0: the best)"
    )
    faults.add_argument("--save", type=float, metavar="S", help="seconds that a checkpoint takes (5)")
    faults.add_argument(
        "--group", type=int, metavar="N", help="workers that wait for each other within a step (all)"
    )
    faults.add_argument("--seed", type=int, default=0, help="of the simulation")


def run(arguments: argparse.Namespace) -> int:
    """Prints the prediction and returns 0.

    Raises:
      UserError: see workloads.predict and simulate.Faults.
    """
    from systems.predict import scores
    from systems.predict.answer import WhatIf
    from systems.predict.chips import Given
    from systems.predict.workload import BENCHMARKS
    from timetotrain.forecast import workloads

    what_if = WhatIf(
        accelerators=arguments.accelerators,
        batch=arguments.batch,
        partitions=arguments.partitions,
        span=arguments.span,
        wire=arguments.wire,
        shard_update=arguments.weight_update_sharding,
        epochs=arguments.epochs,
        model=arguments.model,
        formulas=arguments.formulas,
    )
    given = Given(arguments.peak, arguments.bandwidth, arguments.link)
    if arguments.benchmark not in BENCHMARKS:
        known = (*BENCHMARKS, *(name for name in scores.benchmarks() if name not in BENCHMARKS))
        if arguments.benchmark not in known:
            hint = near(arguments.benchmark, known)
            raise UserError(f"benchmark {arguments.benchmark!r}: unknown{hint}; known: {', '.join(known)}")
        return _as_published(arguments, what_if, given)
    if arguments.seed < 0:
        raise UserError(f"--seed={arguments.seed}: must not be negative")
    faults = _faults(arguments)
    answer = workloads.predict(
        arguments.benchmark,
        arguments.system,
        what_if,
        arguments.assume,
        hypothetical=faults is not None,
        given=given,
    )
    explained = _other(arguments, answer, what_if, given, faults is not None) if arguments.explain else None
    _print(arguments, answer, _simulated(answer, faults, arguments.seed) if faults else None, explained)
    if arguments.plot:
        _plot(arguments.plot, answer)
    return 0


def _print(
    arguments: argparse.Namespace, answer: Any, result: Any, other: tuple[why.Shape, why.Shape] | None
) -> None:
    """Prints an answer with its simulation, if any, its outlook, and its explanation, the shapes `other`."""
    from systems.predict import report

    machine, minutes = answer.machine, answer.run.total / 60
    interval = answer.interval and (answer.interval[0] / 60, answer.interval[1] / 60)
    more = outlook.of(
        arguments,
        answer.work.benchmark,
        machine.chip,
        machine.accelerators,
        machine.per_node,
        minutes,
        interval,
    )
    if arguments.json:
        content = answer.as_dict() | more.content
        content |= {"explanation": why.content(*other)} if other else {}
        content |= {"simulation": result.as_dict()} if result else {}
        print(json.dumps(content, indent=1))
        return
    print(report.table(answer))
    print("\n".join(more.lines))
    if other:
        print("\n".join(["", *why.table(*other)]))
    if result:
        print(result.table())


def _other(
    arguments: argparse.Namespace, answer: Any, what_if: Any, given: Any, hypothetical: bool
) -> tuple[why.Shape, why.Shape]:
    """The forecast's shape, and that of --explain: a log, if a file of that name is no description, or a system.

    Another system gets the same flags of the run, so that the machines alone differ. The system itself gets none, so
    that the flags alone do. An accelerator's figures hold for --system, and for OTHER only if its own are unknown.
    """
    from timetotrain.forecast import workloads

    words = _words(what_if)
    mine, path = why.of_answer(answer, f"forecast of {arguments.system}{words}"), Path(arguments.explain)
    if os.path.isfile(path) and path.suffix != ".json":
        return mine, why.of_log(path)
    same = arguments.explain == arguments.system
    try:
        other = workloads.predict(
            arguments.benchmark,
            arguments.explain,
            None if same else what_if,
            arguments.assume,
            hypothetical=hypothetical,
            given=None if workloads.known(arguments.explain) else given,
        )
    except UserError as error:
        raise UserError(f"--explain={arguments.explain}: {error}") from None
    return mine, why.of_answer(other, f"forecast of {arguments.explain}{'' if same else words}")


def _words(what_if: Any) -> str:
    """The flags that change a run, as they are written, each with a space before it."""
    flags = dataclasses.asdict(what_if)
    sharded = flags.pop("shard_update")
    formulas = flags.pop("formulas")
    plain = {name: f"{value:g}" if isinstance(value, float) else value for name, value in flags.items()}
    words = [f"--{name}={value}" for name, value in plain.items() if value is not None]
    words += [] if sharded is None else [f"--{'' if sharded else 'no-'}weight-update-sharding"]
    return "".join(f" {word}" for word in [*words, *(["--formulas"] if formulas else [])])


def _as_published(arguments: argparse.Namespace, what_if: Any, given: Any) -> int:
    """Forecasts a benchmark that this project does not train: by accelerators and round alone."""
    from systems.predict import hardware, law, report
    from systems.predict.answer import WhatIf

    size = WhatIf(accelerators=what_if.accelerators)
    if what_if != size or arguments.plot or arguments.explain or arguments.simulate or _faults(arguments):
        raise UserError(
            f"{arguments.benchmark}: published scores alone speak of it: flags of a step, of faults, --plot and "
            "--explain are for our benchmarks"
        )
    notes: list[str] = []
    description = hardware.load(arguments.system)
    target = hardware.machine(description, what_if.accelerators, notes, arguments.assume, given=given)
    found = law.estimate(arguments.benchmark, target.chip, target.accelerators)
    interval = None if found.reason else (found.low, found.high)
    more = outlook.of(
        arguments,
        found.benchmark,
        target.chip,
        target.accelerators,
        target.per_node,
        found.minutes,
        interval,
        found.round,
    )
    if arguments.json:
        content = {"benchmark": found.benchmark, "system": target.name, "accelerators": target.accelerators}
        content["published_systems"] = dataclasses.asdict(found)
        # Without an answer of the law there is no time that money and energy could follow from.
        told = {
            key: part for key, part in more.content.items() if interval or key not in ("cost", "energy_kwh")
        }
        print(json.dumps(content | told | {"assumptions": notes}, indent=1))
        return 0
    print(f"{found.benchmark} on {target.name}: {target.accelerators} x {target.chip['name']}")
    print(report.as_published(found))
    print("\n".join([*(more.lines if interval else []), *(f"assumed: {note}" for note in notes)]))
    return 0


def _faults(arguments: argparse.Namespace):
    names = ("jitter", "stragglers", "slowdown", "mtbf", "restart", "checkpoint", "save", "group")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if not given and not arguments.simulate:
        return None
    from systems.predict.simulate import Faults

    return Faults(**given)


def _simulated(answer, faults, seed: int):
    from systems.predict import kernel_costs, simulate

    work = answer.work
    group = max(1, round(work.span / work.micro_batch)) * work.partitions // answer.machine.chip["replicas"]
    group = group if group > 1 and answer.machine.accelerators % group == 0 else 1
    # Replicas of a group wait for each other at each batch norm, forward and backward.
    barriers = max(1, 2 * kernel_costs.load(work.network).norm_layers) if group > 1 or faults.group > 1 else 1
    return simulate.simulate(answer.run, answer.machine.accelerators, faults, seed, group, barriers)


def _plot(path: Path, answer) -> None:
    from systems.predict import plot

    try:
        plot.time_to_train(path, answer)
    except ImportError as error:
        raise UserError(
            f"--plot={path}: needs matplotlib ({error}); install it, or leave out --plot"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"--plot={path}: cannot write ({error}); give a .png, .svg or .pdf file") from None
    print(f"Wrote {path}.", file=sys.stderr)
