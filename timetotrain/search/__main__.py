"""Searches: timetotrain search BENCHMARK --system=NAME --data_dir=DIR --space FIELD=VALUES ...

Grid, random or TPE search over any fields of a benchmark's configuration; every trial is `python -m BENCHMARK` in its
own process. The same command continues an ended search. MagmaDNN, section 4.3, searches learning rate, weight decay,
batch size and epochs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from common.config import benchmarks
from common.config import overrides as configs
from common.distributed import process
from common.errors import Parser, UserError, answering, near

TRIALS = 40  # Default, unless the sampler is grid.
STORAGE = "search.db"
FIX = "free space there, or choose another --result_dir; the same command takes a search up"
OBJECTIVES = ("quality", "time")


@answering(FIX)
def main(argv: Sequence[str] | None = None) -> int:
    """Runs a search; returns 0, or 1 if no trial has a result, 2 for a bad command, 128 + the number of a signal."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return _search(parser().parse_args(arguments[:at]), arguments[at + 1 :])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the words before --."""
    from timetotrain.search import space
    from timetotrain.search.driver import SAMPLERS

    words = Parser(
        prog="timetotrain search",
        description=__doc__.split("\n\n")[1],
        epilog="What follows -- are flags of every run, as --config.train_epochs=3.",
    )
    add = words.add_argument
    add("benchmark", help="a package such as mnist")
    add("--system", required=True, help="the preset that the search starts from")
    add("--data_dir", required=True, help="the data folder of every run")
    add("--space", nargs="+", required=True, metavar="FIELD=VALUES", help=space.FORMS)
    add("--sampler", choices=SAMPLERS, default="tpe")
    add("--trials", type=int, help=f"how many; default: the grid, or {TRIALS}")
    add("--processes", type=int, default=1, help="trials at a time, on this machine")
    add(
        "--objective",
        choices=OBJECTIVES,
        default="quality",
        help="quality after all epochs, or time (to the preset's target)",
    )
    add("--part", help="which quality counts if the benchmark has several, e.g. SEGM of Mask R-CNN")
    add("--name", help="name of the search; default: BENCHMARK-SYSTEM-OBJECTIVE-SAMPLER")
    add("--result_dir", type=pathlib.Path, default=pathlib.Path("results"))
    add("--seed", type=int, default=0, help="seed of the sampler and of every run")
    return words


def _search(args: argparse.Namespace, flags: Sequence[str]) -> int:
    base = _base(args, flags)
    part = _part(args, base)
    from optuna.exceptions import StorageInternalError

    from timetotrain.run import data_folder
    from timetotrain.run.locks import FolderLock
    from timetotrain.search import space as spaces
    from timetotrain.search.driver import Plan, Search, open_storage
    from timetotrain.search.report import publish
    from timetotrain.search.trial import Command

    space = spaces.parse(args.space, base)
    spaces.check(space, base)
    data_folder.check(args.data_dir, args.benchmark)
    points = math.prod(map(len, spaces.axes(space).values())) if args.sampler == "grid" else None
    trials = (points or TRIALS) if args.trials is None else min(args.trials, points or args.trials)
    if min(trials, args.processes) < 1:
        raise UserError("--trials and --processes: at least 1")
    lower = lower_is_better(args.benchmark, base)
    plan = Plan(space, args.sampler, trials, args.objective, lower, args.seed)
    name = args.name or f"{args.benchmark}-{args.system}-{args.objective}-{args.sampler}"
    folder = (args.result_dir / "search" / name).resolve()
    trial_flags = _flags(args, flags, lower)
    command = Command(args.benchmark, trial_flags, process.core_share(args.processes), part)
    storage = folder / STORAGE
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, "--name")
    try:
        search = Search(name, plan, command, folder, open_storage(storage))
        search.run(args.processes, lambda line: print(line, flush=True))
        print(publish(search.study, plan, folder))
    except StorageInternalError as error:  # Its cause is the database's own error.
        raise UserError(f"{storage}: {getattr(error.__cause__, 'orig', error)}; {FIX}") from error
    finally:
        lock.release()
    print(f"table   {folder / 'search.md'}")
    has_result = any(t.values for t in search.study.trials)
    if has_result:
        print(f"picture {folder / 'search.png'}")
    if number := search.children.signals.number:
        return 128 + number
    return 0 if has_result else 1


def _base(args: argparse.Namespace, flags: Sequence[str]) -> Any:
    """Returns the configuration that every trial starts from."""
    try:
        presets = benchmarks.module(args.benchmark, "presets").PRESETS
    except (ModuleNotFoundError, AttributeError):
        hint = near(args.benchmark, benchmarks.NAMES)
        names = ", ".join(benchmarks.NAMES)
        raise UserError(f"{args.benchmark}: no benchmark{hint}; known: {names}") from None
    config = configs.override_all(configs.preset(presets, args.system), flags)
    config = dataclasses.replace(config, division="open")
    config.validate()
    return config


def _part(args: argparse.Namespace, config: Any) -> str:
    """Returns which quality counts; "" if the benchmark has only one. With several, --part must name it."""
    target = config.logged_target
    parts = list(target) if isinstance(target, Mapping) else []
    if args.part in parts or (args.part is None and not parts):
        return args.part or ""
    if not parts:
        raise UserError(f"--part={args.part}: {args.benchmark} has one quality; leave --part out")
    note = "" if args.part is None else f", not --part={args.part}"
    raise UserError(
        f"{args.benchmark} has several qualities: say which one counts, --part={' or --part='.join(parts)}{note}"
    )


def lower_is_better(benchmark: str, config: Any) -> bool:
    """Whether the target in the benchmark's rules is an upper bound, as for perplexity."""
    from compliance.log import rules

    keys = rules.benchmark_section(config.ruleset, benchmark).get("keys", {})
    target = keys.get("eval_accuracy", {}).get("target", {})
    return "at_most" in target


def _flags(args: argparse.Namespace, flags: Sequence[str], lower: bool) -> tuple[str, ...]:
    """Returns every trial's flags: open division, and an unreachable target if the final quality counts."""
    # An object store has no path on this machine.
    data = args.data_dir if "://" in args.data_dir else os.path.abspath(args.data_dir)
    fixed = [f"--system={args.system}", "--config.division=open", f"--data_dir={data}"]
    if not any(entry.startswith("seed=") for entry in args.space):
        fixed.append(f"--seed={args.seed}")
    if args.objective == "quality":
        fixed.append(f"--config.quality_target={'0' if lower else '1000000000'}")
    return (*fixed, *flags)


if __name__ == "__main__":
    sys.exit(main())
