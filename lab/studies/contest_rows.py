"""The rows of the contest of optimizers and their records: what is done, what is missing, who won (contest.py: rules).

The rows of a cell (benchmark, batch, optimizer) are its short trials, the trials that train to the end, then the best
run's repetitions; `scaled` rows run one batch's best run at the others, by LEGW's rule.
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Sequence

from common import files
from common.config import overrides as configs
from common.config.clock import Clock
from common.distributed import process
from common.errors import UserError
from lab.studies.contest import (
    STAGES,
    TUNING,
    Arena,
    Entry,
    Row,
    batch_flags,
    drawn,
    flags,
    legw_flags,
    scaled,
    whole_trials,
)
from lab.studies.data import ROOT
from lab.studies.runner import Runner, Runs, published, settings

SAMPLER_SEED = 52
# This project's assumption, not a measurement: an epoch's evaluation takes this part of its steps' time.
EVALUATION_PART = 0.1


def home(arena: Arena) -> pathlib.Path:
    """Returns the folder of an arena's tables."""
    return ROOT / "lab/studies/optimizers" / arena.benchmark


class Contest:
    """The rows of one arena, and their records: those of the published table, and new ones.

    Attributes:
      arena: the benchmark and its batches.
      base: the batch whose best runs "scaled" rows run at other batches.
    """

    def __init__(self, arena: Arena, args: argparse.Namespace):
        self.arena, self._trials, self._seeds = arena, args.trials, args.seeds
        self.base = arena.batches[0] if args.base is None else args.base
        path = home(arena) / "results.json"
        done = published(path) if path.is_file() else {}
        never = settings(quality_target=arena.never, division="open")
        whole = settings(train_epochs=arena.epochs)
        short = settings(train_epochs=arena.short_epochs, schedule__train_epochs=arena.epochs)
        made = {}
        for part, (data, own), epochs in (
            ("short", arena.validation, short),
            ("validation", arena.validation, whole),
            ("test", arena.test, whole),
        ):
            study = Runs(
                f"optimizers-{arena.benchmark}-{part}",
                arena.benchmark,
                arena.preset,
                data,
                (*never, *epochs, *arena.flags, *own),
            )
            made[part] = Runner(study, args.epochs, args.minutes, args.overrides, args.jobs, done)
        self._runners = made
        self._drawn: dict[tuple[str, int], list[Row]] = {}
        self._records: dict[str, dict] = {}  # Of rows that are done, which stay as they are.
        self._published_seeds = 1 + max((seed for _, seed in done), default=0)

    def runner(self, stage: str) -> Runner:
        """Returns what runs the rows of a stage."""
        if stage == "short":
            return self._runners["short"]
        return self._runners["validation" if stage in TUNING else "test"]

    def record(self, row: Row) -> dict | None:
        """Returns the record of a finished row, or None."""
        if row.id not in self._records and (found := self.runner(row.stage).record(row)):
            self._records[row.id] = found
        return self._records.get(row.id)

    def short(self, entry: Entry, batch: int) -> list[Row]:
        """Returns all trials of a cell, for the first part of their epochs."""
        cell = entry.name, batch
        if cell not in self._drawn:
            points = drawn(self.arena, entry, batch, self._trials, SAMPLER_SEED)
            self._drawn[cell] = [
                Row("short", *cell, i, 0, point, flags(self.arena, entry, batch, point))
                for i, point in enumerate(points)
            ]
        return self._drawn[cell]

    def trials(self, entry: Entry, batch: int) -> list[Row]:
        """Returns the trials of a cell that train to the end; [] until every short trial is done."""
        best = self._ranked(self.short(entry, batch)) or []
        return [dataclasses.replace(row, stage="tune") for row in best[: whole_trials(self._trials)]]

    def winner(self, entry: Entry, batch: int) -> dict[str, float] | None:
        """Returns the best trial's point once every trial is done, and one of them did not diverge."""
        best = self._ranked(self.trials(entry, batch))
        return best[0].point if best else None

    def decayed(self, entry: Entry, batch: int) -> list[Row]:
        """Returns the winner's run with a falling rate; [] until the winner is known, or if there is no such run."""
        point = self.winner(entry, batch)
        if not point or not self.arena.decay or entry.name.startswith("schedule_free"):
            return []
        run = (*flags(self.arena, entry, batch, point), *self.arena.decay)
        return [Row("decay", entry.name, batch, 0, 0, point, run)]

    def best(self, entry: Entry, batch: int) -> Row | None:
        """Returns the better of the winner's runs on validation data once all of them are done."""
        rows = self.trials(entry, batch)
        more = self.decayed(entry, batch)
        ranked = self._ranked([*rows, *more]) if rows else None
        return ranked[0] if ranked else None

    def without_warmup(self, entry: Entry, batch: int) -> list[Row]:
        """Returns the best run without its warmup; [] until it is known."""
        row = self.best(entry, batch)
        if not row:
            return []
        point = {**row.point, "warmup": 0.0}
        run = (*row.flags, *settings(schedule__warmup_epochs=0))
        return [dataclasses.replace(row, stage="no-warmup", number=0, point=point, flags=run)]

    def _ranked(self, rows: Sequence[Row]) -> list[Row] | None:
        """Returns the rows that did not diverge, the best first; None if one is not done."""
        found = []
        for row in rows:
            if (record := self.record(row)) is None:
                return None
            found.append((row, record))
        return [row for row, _ in self.ranked(found)]

    def ranked(self, found: Sequence[tuple[Row, dict]]) -> list[tuple[Row, dict]]:
        """Returns the rows that did not diverge and their records, the best first."""
        sound = [(row, record) for row, record in found if record["quality"] is not None]
        return sorted(sound, key=lambda one: one[1]["quality"], reverse=not self.arena.lower_is_better)

    def scaled(self, entry: Entry, best: Row, batch: int) -> Row:
        """Returns another batch's best run with its rate and warmup scaled for this one."""
        point = scaled(self.arena, best.point, best.batch, batch)
        falling = self.arena.decay if best.stage == "decay" else ()
        run = (*flags(self.arena, entry, batch, point), *falling)
        return Row("scaled", entry.name, batch, 0, 0, point, run, best.batch)

    def everything(self) -> list[Row]:
        """Returns every row of the arena that can be told now, with all seeds of the published table."""
        arena, seeds = self.arena, max(self._seeds, self._published_seeds)
        return self.rows(arena.names, arena.batches, STAGES, arena.batches, seeds)

    def rows(
        self,
        names: Sequence[str],
        batches: Sequence[int],
        stages: Sequence[str],
        bases: Sequence[int] | None = None,
        seeds: int | None = None,
    ) -> list[Row]:
        """Returns the rows that can be told now; those of winners follow when their trials are done.

        `bases` are the batches whose best runs are scaled, `self.base` by default; `seeds` is how many seeds
        a best run has, by default as many as were asked for.
        """
        found: list[Row] = []
        each = range(self._seeds if seeds is None else seeds)
        for entry in (e for e in self.arena.entries() if e.name in names):
            tuned = bases or [self.base] if "scaled" in stages else ()
            bests = [row for base in tuned if (row := self.best(entry, base))]
            for batch in batches:
                if "short" in stages:
                    found += self.short(entry, batch)
                if "tune" in stages:
                    found += self.trials(entry, batch)
                if "decay" in stages:
                    found += self.decayed(entry, batch)
                if "no-warmup" in stages:
                    found += self.without_warmup(entry, batch)
                if "final" in stages and (row := self.best(entry, batch)):
                    found += _seeded(dataclasses.replace(row, stage="final"), each)
                for row in (row for row in bests if row.batch != batch):
                    found += _seeded(self.scaled(entry, row, batch), each)
        if "legw" in stages:
            for name, own in ((n, own) for n, own in self.arena.legw.items() if n in names):
                for batch in batches:
                    run = legw_flags(self.arena, own, batch)
                    found += _seeded(Row("legw", name, batch, 0, 0, {}, run), each)
        return found

    def train(self, rows: Sequence[Row]) -> None:
        for runner in self._runners.values():
            runner.run_all([row for row in rows if self.runner(row.stage) is runner])

    def step_seconds(self, batch: int) -> float:
        """Returns the processor seconds of a training step of the preset, measured on synthetic data in one thread."""
        command = [sys.executable, "-m", self.arena.benchmark, f"--system={self.arena.preset}", "--dry_run"]
        command += ["--data_dir=.", *self.arena.flags, *batch_flags(self.arena, batch)]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **process.core_share(os.cpu_count() or 1),
            **os.environ,
        }
        done = subprocess.run(command, cwd=files.ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise UserError(f"{' '.join(command)} failed: {lines[-1][:300]}")
        return float(json.loads(done.stdout.strip().splitlines()[-1])["step_processor_seconds"])

    def hours(self, stage: str, batch: int, step_seconds: float) -> float:
        """Returns core-hours of a stage's run from a step's seconds; evaluations are estimated (`EVALUATION_PART`)."""
        presets = importlib.import_module(f"{self.arena.benchmark}.presets").PRESETS
        run = (*self.runner(stage).extra, *batch_flags(self.arena, batch))
        steps = Clock.of(configs.override_all(presets[self.arena.preset], list(run))).train_steps
        return (1 + EVALUATION_PART) * steps * step_seconds / 3600


def _seeded(row: Row, seeds: Iterable[int]) -> list[Row]:
    return [dataclasses.replace(row, number=seed, seed=seed) for seed in seeds]
