"""Lets optimizers compete at equal effort over batches: tuned on validation data, winners on test data with five seeds.

contest.py has the rules, contest_rows.py the rows. Rows are runs of the real benchmark and keep their records, so a
study goes on where it stopped. `--plan` prints the hours of what is missing.
"""

import argparse
from collections.abc import Sequence

from common import files
from common.errors import UserError
from lab.studies import optimizers_report
from lab.studies.contest import ARENAS, ENTRIES, STAGES, Arena
from lab.studies.contest_rows import Contest, home
from lab.studies.runner import add_flags

TRIALS, SEEDS = 6, 5
# Of optimizers and of rows that follow LEGW.
NAMES = (*(e.name for e in ENTRIES), *dict.fromkeys(name for arena in ARENAS.values() for name in arena.legw))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies optimizers`."""
    parser.add_argument("--arenas", default="mnist", help=f"which of {','.join(ARENAS)}")
    parser.add_argument("--optimizers", help=f"which of {','.join(NAMES)}; default: all")
    parser.add_argument("--batches", help="which of the arena's batches; default: all")
    parser.add_argument(
        "--base",
        type=int,
        help="scaled: run the best runs of this batch at the others; default: the arena's first",
    )
    parser.add_argument("--stages", default=",".join(STAGES), help=f"which of {','.join(STAGES)}")
    parser.add_argument(
        "--trials", type=int, default=TRIALS, help=f"short trials of each optimizer and batch: {TRIALS}"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of each winner: {SEEDS}")
    add_flags(parser, "--epochs", "--jobs", "--limit", "--minutes", "--list", "overrides")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the hours of what is missing (of a whole arena: into plan.csv too); train nothing",
    )


def run(args: argparse.Namespace) -> int:
    """Trains the missing rows of the arenas, then writes their tables; returns the exit status."""
    for name, value in (("trials", args.trials), ("seeds", args.seeds)):
        if value < 1:
            raise UserError(f"--{name}={value}: must be at least 1")
    names = _chosen("optimizers", args.optimizers, NAMES)
    stages = _chosen("stages", args.stages, STAGES)
    arenas = [ARENAS[name] for name in _chosen("arenas", args.arenas, list(ARENAS))]
    _check(arenas, names, args)
    for arena in arenas:
        known = [str(batch) for batch in arena.batches]
        batches = [int(batch) for batch in _chosen("batches", args.batches, known)]
        contest = Contest(arena, args)
        if args.plan:
            lines = optimizers_report.plan(contest, names, batches, stages, args)
            hours = sum(float(line[-1]) for line in lines)
            print(files.markdown_table(optimizers_report.PLAN, lines))
            print(f"{arena.benchmark}: {hours:.1f} hours of one core")
            if not (args.optimizers or args.batches or args.epochs or args.base) and stages == list(STAGES):
                optimizers_report.write_plan(arena.benchmark, lines)
        elif args.list:
            for row in contest.rows(names, batches, stages):
                record = contest.record(row)
                print(f"{row.id:48} {record['quality'] if record else '-'}")
        else:
            _train(contest, names, batches, stages, args.limit)
            if "scaled" in stages and args.limit != 0:
                _say_unscaled(contest, names)
            folder = contest.runner("final").folder if args.epochs else home(arena)
            optimizers_report.publish(contest, folder)
    return 0


def _check(arenas: Sequence[Arena], names: Sequence[str], args: argparse.Namespace) -> None:
    """Raises UserError if an arena has none of the optimizers, or no such base."""
    for arena in arenas:
        if args.base is not None:
            _chosen("base", str(args.base), [str(batch) for batch in arena.batches])
        if not set(arena.names) & set(names):
            raise UserError(f"--optimizers={args.optimizers}: {arena.benchmark} has {', '.join(arena.names)}")


def _say_unscaled(contest: Contest, names: Sequence[str]) -> None:
    entries = [e for e in contest.arena.entries() if e.name in names]
    if without := [e.name for e in entries if contest.best(e, contest.base) is None]:
        print(f"no scaled runs of {', '.join(without)}: their trials at {contest.base} are not complete")


def _train(
    contest: Contest, names: Sequence[str], batches: Sequence[int], stages: Sequence[str], limit: int | None
) -> None:
    """Trains until no row is missing: finished trials make the rows of their winners known."""
    seen: set[str] = set()
    while True:
        missing = [row for row in contest.rows(names, batches, stages) if contest.record(row) is None]
        ids = {row.id for row in missing}
        if ids <= seen or limit == 0:  # Nothing is missing, or the time is up.
            return
        seen |= ids
        contest.train(missing[:limit])
        if limit is not None:
            return


def _chosen(flag: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Returns the words of a flag's list; all that are known if it is not given.

    Raises:
      UserError: a word is unknown.
    """
    words = text.split(",") if text else list(known)
    for word in words:
        if word not in known:
            raise UserError(f"--{flag}={text}: unknown {word}; known: {', '.join(known)}")
    return words
