"""Reproduces LEGW's figures as a table: each row is a run of the real benchmark, and a study resumes row by row.

Source: "Large-Batch Training for LSTM and Beyond", figures 1 and 4 to 7. Every row is `python -m BENCHMARK` with flags,
in its own process, for all of its epochs. The quality that counts is the last evaluation's, on the test set. `--tune`
tunes the base rate on held-out data and never touches the test set.
"""

import argparse
import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from common.errors import UserError
from lab.studies import legw_report
from lab.studies.data import ROOT
from lab.studies.runner import Identity, Runner, identity, published, settings

SEEDS = 3  # Seeds for the smallest and the largest batch; the others have one.
PARTS = ("legw", "competitors", "rates", "solvers", "long")
BASED = ("legw", "competitors")  # Parts that use the base rate.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study of one benchmark.

    Attributes:
      data: makes the data folder and returns it.
      flags: flags of every run.
      batch, rate: global batch and base rate of the preset.
      factors: factors by which the batch is multiplied.
      never: a quality target that no run meets, so that all train for their epochs.
      lower_is_better: True for perplexity, False for accuracy.
      unit: unit of the quality, for axes.
      held_out: flags that evaluate on held-out data.
      tuned_rates: rates of figure 6, at the largest batch.
      base_rates: rates that `--tune` tries at the base batch.
      base_warmup: warmup of those runs in epochs, independent of the preset's later value.
      close_rates: base rates that one seed cannot distinguish; they have three seeds.
      warmups: base warmups in epochs that `--tune` tries at the largest batch, as section 3 of the paper allows; they
        are scaled down from there.
      warmup: the best of `warmups`, which the runs of `changes` have.
      changes: {name: flags} of what may differ from the paper, tried by `--tune` one at a time under LEGW at the
        largest batch.
      long_epochs: epochs of figure 7.
      long_flags: flags that lengthen other settings for figure 7.
      solvers: {name: flags}, each at its tuned or its usual rate.
      poly: flags of polynomial decay in place of the preset's schedule.
      compared: factors at which the competitors run, the largest first.
      parts: the parts that `make study` runs; `--parts` selects others.
      base: flags of LEGW's runs that replace the preset's base rate and warmup.
    """

    name: str
    benchmark: str
    preset: str
    data: Callable[[], pathlib.Path]
    flags: tuple[str, ...] = ()
    batch: int
    rate: float
    factors: tuple[int, ...]
    never: float
    lower_is_better: bool
    unit: str
    held_out: tuple[str, ...]
    tuned_rates: tuple[float, ...]
    base_rates: tuple[float, ...]
    base_warmup: float
    close_rates: tuple[float, ...]
    warmups: tuple[float, ...]
    warmup: float
    changes: Mapping[str, tuple[str, ...]]
    long_epochs: int
    long_flags: tuple[str, ...]
    solvers: dict[str, tuple[str, ...]]
    poly: tuple[str, ...]
    compared: tuple[int, ...]
    parts: tuple[str, ...] = PARTS
    base: tuple[str, ...] = ()

    @property
    def largest(self) -> int:
        return self.factors[-1]


@dataclasses.dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
      part: "methods" (figures 1, 4 and 5: "legw" and "competitors" of `--parts`), "solvers", "rates" (figure 6),
        "long" (figure 7) or "tune".
      method: the value that the part compares.
      batch, rate: global batch and base rate; rate None means the solver's own rate.
      seed: the run's seed.
      flags: flags of `python -m BENCHMARK`, besides data and result folders.
    """

    part: str
    method: str
    batch: int
    rate: float | None
    seed: int
    flags: tuple[str, ...]

    @property
    def asked_as(self) -> str:
        """Returns the name in PARTS that selects this row."""
        if self.part != "methods":
            return self.part
        return "legw" if self.method == "legw" else "competitors"

    @property
    def id(self) -> str:
        rate = "" if self.rate is None else f"-{self.rate:.4g}"
        return f"{self.part}-{self.method}-{self.batch}{rate}-{self.seed}"


def _batch(study: Study, k: int, rate: float, warmup: float = 0.0) -> tuple[str, ...]:
    return settings(
        global_batch_size=study.batch * k, optimizer__base_learning_rate=rate, schedule__warmup_epochs=warmup
    )


def methods(study: Study, k: int) -> dict[str, tuple[float | None, tuple[str, ...]]]:
    """Returns {method: (rate, flags)} for figures 1, 4 and 5, at k times the base batch."""
    linear = study.rate * k
    return {
        "legw": (study.rate * math.sqrt(k), (*settings(legw=k), *study.base)),
        "unscaled": (study.rate, _batch(study, k, study.rate)),
        "linear": (linear, _batch(study, k, linear)),
        "linear-poly": (linear, (*_batch(study, k, linear), *study.poly)),
        "linear-poly-warmup": (linear, (*_batch(study, k, linear, 5.0), *study.poly)),
        "adam": (
            None,
            (*_batch(study, k, 0.0), *study.solvers["adam"]),
        ),  # Adam's own rate comes last, so that it overrides.
    }


def rows(study: Study) -> Iterable[Row]:
    """Yields all rows whose rate does not depend on other rows, the most informative first."""
    ends = (1, study.largest)
    for k in study.factors:
        rate, flags = methods(study, k)["legw"]
        for seed in range(SEEDS if k in ends else 1):
            yield Row("methods", "legw", study.batch * k, rate, seed, flags)
    for k in study.compared:
        yield from _competitors(study, k)
    for rate in study.tuned_rates:
        batch = study.batch * study.largest
        yield Row("rates", "tuned", batch, rate, 0, _batch(study, study.largest, rate))
    for solver, flags in study.solvers.items():
        yield Row("solvers", solver, study.batch, None, 0, flags)


def _competitors(study: Study, k: int) -> Iterable[Row]:
    for method, (rate, flags) in methods(study, k).items():
        # At the base batch the linear rule does not change the rate.
        if method != "legw" and (k, method) != (1, "linear"):
            yield Row("methods", method, study.batch * k, rate, 0, flags)


def long_rows(study: Study, best_rate: float) -> Iterable[Row]:
    """Yields the rows of figure 7: LEGW and the best tuned rate, with many more epochs."""
    k, more = study.largest, (*settings(train_epochs=study.long_epochs), *study.long_flags)
    rate, flags = methods(study, k)["legw"]
    yield Row("long", "legw", study.batch * k, rate, 0, (*flags, *more))
    yield Row("long", "tuned", study.batch * k, best_rate, 0, (*_batch(study, k, best_rate), *more))


def tune_rows(study: Study) -> Iterable[Row]:
    """Yields rows on held-out data: base rates at the base batch; warmups and `changes` for LEGW at the largest."""
    for seed in range(SEEDS):
        for rate in study.close_rates if seed else study.base_rates:
            base = settings(optimizer__base_learning_rate=rate, schedule__warmup_epochs=study.base_warmup)
            flags = (*base, *study.held_out)
            yield Row("tune", "base", study.batch, rate, seed, flags)
    rate, legw = methods(study, study.largest)["legw"]
    for warmup in study.warmups:
        flags = (*legw, *settings(schedule__warmup_epochs=warmup), *study.held_out)
        yield Row("tune", f"warmup-{warmup:g}", study.batch * study.largest, rate, 0, flags)
    for name, change in study.changes.items():
        flags = (*legw, *settings(schedule__warmup_epochs=study.warmup), *change, *study.held_out)
        yield Row("tune", f"with-{name}", study.batch * study.largest, None, 0, flags)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies legw-...`."""
    flag = parser.add_argument
    flag("--tune", action="store_true", help="try base rates, on held-out data only")
    flag("--base_rate", type=float, help="LEGW from another base rate, in lab/studies/NAME/at-RATE")
    flag("--base_warmup", type=float, help="and from another base warmup in epochs")
    flag("--parts", help=f"which of {','.join(PARTS)}; default: all, of legw-ptb legw")
    cores = len(os.sched_getaffinity(0))
    flag("--jobs", type=int, default=cores, help="runs at a time; as many as cores")
    flag("--limit", type=at_least_zero, help="maximum number of runs to train now")
    flag("--minutes", type=float, help="maximum minutes: start no run after them")
    flag("--list", action="store_true", help="print the rows and which are done; train nothing")
    flag("overrides", nargs="*", help="flags of every run, after --: --config.precision=bf16")
    flag("--published", action="store_true", help="the runs in lab/studies/NAME are done; go on from there")


def at_least_zero(text: str) -> int:
    """An argparse type: a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def run(study: Study, args: argparse.Namespace) -> int:
    """Trains the missing rows, then writes table and pictures of the finished ones; returns the exit status."""
    target = settings(quality_target=study.never, division="open")
    study = dataclasses.replace(study, flags=(*target, *study.flags))
    if args.base_rate is not None or args.base_warmup is not None:
        study = _from_base(study, args)
    parts = args.parts.split(",") if args.parts else study.parts
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise UserError(f"--parts={args.parts}: unknown {min(unknown)}; known: {', '.join(PARTS)}")
    home, name = ROOT / "lab/studies" / study.name, "tune" if args.tune else "results"
    table = home / f"{name}.json"
    before = published(table) if args.published or table.is_file() else {}
    done = before if args.published else {}
    runner = Runner(study, args.minutes, args.overrides, args.jobs, done)
    whole = list(tune_rows(study)) if args.tune else list(rows(study))
    selection = [row for row in whole if args.tune or row.asked_as in parts]
    finished = _records(runner, whole)
    if args.list:
        for row in selection:
            print(f"{row.id:40} {finished[row.id]['quality'] if row.id in finished else '-'}")
        return 0
    _check_kept(table, before, {identity(study, row, runner.extra) for row in whole})
    todo: dict[Identity, Row] = {}
    for row in selection:
        if row.id not in finished:
            todo.setdefault(identity(study, row), row)
    runner.run_all(list(todo.values())[: args.limit])
    if not args.tune:
        whole += _train_long(runner, whole, before, "long" in parts and args.limit is None)
    # Also publish rows that earlier calls trained for other parts, and rows of the old table with this configuration.
    records = list(_records(runner, whole, before).values())
    legw_report.publish(study, records, home, name)
    return 0


def _from_base(study: Study, args: argparse.Namespace) -> Study:
    """Returns the study with the base rate and warmup from the arguments for LEGW; it has its own table.

    Raises UserError if the base rate is missing or not above 0, the warmup is below 0, or a part has no use for them.
    """
    rate, warmup = args.base_rate, args.base_warmup
    if rate is None:
        raise UserError("--base_warmup needs --base_rate")
    if not 0 < rate < math.inf:
        raise UserError(f"--base_rate={rate}: must be above 0")
    if warmup is not None and warmup < 0:
        raise UserError(f"--base_warmup={warmup:g}: must be at least 0")
    if args.tune or set((args.parts or "legw").split(",")) - set(BASED):
        raise UserError(
            f"--base_rate={rate:g}: goes with --parts={','.join(BASED)} only; leave it out for the others"
        )
    base = settings(optimizer__base_learning_rate=rate)
    base += () if warmup is None else settings(schedule__warmup_epochs=warmup)
    return dataclasses.replace(study, name=f"{study.name}/at-{rate:g}", rate=rate, base=base, parts=("legw",))


def _check_kept(
    table: pathlib.Path, before: Mapping[Identity, dict], identities: Collection[Identity]
) -> None:
    """Raises UserError if the new table would lose runs of the old one.

    The runs of figure 7 are exempt: they change with the best rate of figure 6.
    """
    lost = [r for key, r in before.items() if key not in identities and r["part"] != "long"]
    if lost:
        raise UserError(
            f"{table}: {len(lost)} of its runs have another configuration ({lost[0]['method']} at {lost[0]['batch']}) "
            "and would be lost; leave out what changes the configuration, or move the table away"
        )


def _train_long(
    runner: Runner, whole: Sequence[Row], before: Mapping[Identity, dict], selected: bool
) -> list[Row]:
    """Trains figure 7's rows if `selected`. They need figure 6's best rate, so there are none until it is complete."""
    long = list(_long(runner.study, _records(runner, whole, before).values()))
    if selected and not long:
        print('part "long" waits for all runs of "rates": it takes the best rate of them')
    if selected:
        runner.run_all(long)
    return long


def _records(
    runner: Runner, selection: Sequence[Row], before: Mapping[Identity, dict] | None = None
) -> dict[str, dict]:
    """Returns {id: record} of the finished rows; rows with equal configurations share one run.

    A row without its own record takes the one in `before`.
    """
    identities = {row.id: identity(runner.study, row, runner.extra) for row in selection}
    finished = dict(before or {})
    finished |= {identities[row.id]: record for row in selection if (record := runner.record(row))}
    records = {}
    for row in selection:
        if record := finished.get(identities[row.id]):
            names = {key: value for key, value in dataclasses.asdict(row).items() if key != "flags"}
            records[row.id] = record | names
    return records


def _long(study: Study, records: Iterable[dict]) -> Iterable[Row]:
    """Yields the rows of figure 7, once all rates of figure 6 have been tried."""
    rate_runs = [r for r in records if r["part"] == "rates"]
    swept = [r for r in rate_runs if r["quality"] is not None]
    if swept and len(rate_runs) == len(study.tuned_rates):
        sign = 1 if study.lower_is_better else -1
        yield from long_rows(study, min(swept, key=lambda r: sign * r["quality"])["rate"])
