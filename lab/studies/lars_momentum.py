"""Compares LARS with scaled and unscaled momentum at a large batch: epochs to a fixed target, three seeds each.

Source: figures 5 and 6 and Table 1 of "Scale MLPerf-0.6 Models on Google TPU-v3 Pods". With a batch of 32K of
ImageNet's images it reports 72.8 epochs scaled, 70.6 unscaled, 64 unscaled and tuned. The study trains ResNet-50 at a
quarter of the width on the generated pictures of cpu-tiny, with a batch of a sixteenth of the set (the paper's is a
fortieth). The three forms have the paper's proportions of rate, warmup and momentum. The rate is that of round v0.6
at 4,096 images, scaled by the square-root rule, not tuned. As in the paper, the schedule is the shortest one that
reaches the target: of 12 and 16 epochs, tried with seed 0, the smaller number at which every form passes 95 %.
"""

import argparse
import dataclasses
import pathlib
import statistics

from common import files
from common.config import overrides as configs
from common.config.clock import Clock
from lab.studies.data import ROOT, cache
from lab.studies.runner import Runner, Study, add_flags, convert, folder_for, settings
from resnet.presets import PRESETS

NAME = "lars-momentum"
SEEDS = (0, 1, 2)
BATCH, EPOCHS, TARGET = 256, 16, 0.95
# Table 1: rate 31.2, 25 of 76 epochs of warmup; the tuned form has 29.0, 18 and momentum 0.929.
# 10.0 at 4,096 (docs/sources.md, mlperf 1.1) times the square root of 256 / 4,096.
RATE, WARMUP = 2.5, round(EPOCHS * 25 / 76, 2)
COLUMNS = ("form", "seed", "rate", "warmup", "momentum", "epochs", "quality", "minutes")


def pictures() -> pathlib.Path:
    """Returns the generated pictures, made once."""
    folder = cache() / "resnet-tiny"
    convert(folder, "resnet.tiny", folder)
    return folder


STUDY = Study(
    name=NAME,
    benchmark="resnet",
    preset="cpu-tiny",
    data=pictures,
    flags=settings(
        global_batch_size=BATCH,
        train_epochs=EPOCHS,
        epochs_per_block=1,
        quality_target=TARGET,
        optimizer__name="lars",
        optimizer__nesterov="false",
        optimizer__weight_decay=2e-4,
        schedule__kind="poly",
        schedule__power=2,
        schedule__end_learning_rate=1e-4,
    ),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One run; `paper` is the form's entry in Table 1, in epochs."""

    form: str
    scaled: bool
    rate: float
    warmup: float
    momentum: float
    paper: float
    seed: int

    @property
    def id(self) -> str:
        return f"{self.form}-{self.seed}"

    @property
    def flags(self) -> tuple[str, ...]:
        return settings(
            optimizer__scaled_momentum=str(self.scaled).lower(),
            optimizer__base_learning_rate=self.rate,
            optimizer__momentum=self.momentum,
            schedule__warmup_epochs=self.warmup,
        )


def rows(rate: float = RATE) -> list[Row]:
    """Lists the runs seed by seed, so that even an interrupted study can compare the forms."""
    forms = (
        ("scaled", True, rate, WARMUP, 0.9, 72.8),
        ("unscaled", False, rate, WARMUP, 0.9, 70.6),
        ("unscaled-tuned", False, round(rate * 29.0 / 31.2, 4), round(WARMUP * 18 / 25, 2), 0.929, 64.0),
    )
    return [Row(*form, seed) for seed in SEEDS for form in forms]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies lars-momentum`."""
    add_flags(parser, "--jobs", "--minutes", "--epochs", "--limit", "overrides")
    parser.set_defaults(jobs=1)


def run(args: argparse.Namespace) -> int:
    """Trains the missing runs; writes table and csv of the finished ones."""
    runner = Runner(STUDY, args.epochs, args.minutes, args.overrides, args.jobs)
    todo = [row for row in rows() if runner.record(row) is None]
    runner.run_all(todo[: args.limit])
    finished = [(row, record) for row in rows() if (record := runner.record(row))]
    home = runner.folder
    if not args.epochs:
        home = folder_for(ROOT / "lab/studies" / NAME, "results.csv", len(finished), runner.folder)
    publish(finished, home)
    return 0


def evaluated_at(record: dict) -> list[float]:
    """Returns the epoch of each evaluation: one every 16 steps, which are 1.024 epochs, and one at the end."""
    clock = Clock.of(configs.override_all(PRESETS[STUDY.preset], record["flags"]))
    steps = (i * clock.steps_per_block for i in range(1, len(record["evaluations"]) + 1))
    return [min(step, clock.train_steps) / clock.steps_per_epoch for step in steps]


def epochs_to_target(record: dict, target: float = TARGET) -> float | None:
    """Returns the epochs before the first evaluation that meets the target."""
    found = zip(evaluated_at(record), record["evaluations"], strict=True)
    return next((epochs for epochs, value in found if value >= target), None)


def publish(found: list[tuple[Row, dict]], folder: pathlib.Path) -> None:
    """Writes results.csv; prints the table."""
    lines = []
    for row, record in found:
        epochs = epochs_to_target(record)
        reached = {"epochs": epochs and round(epochs, 3), "quality": record["quality"]}
        fields = {**dataclasses.asdict(row), **reached, "minutes": round(record["minutes"], 2)}
        lines.append([fields[name] for name in COLUMNS])
    files.write_csv(folder / "results.csv", COLUMNS, lines)
    print(markdown(found))


def markdown(found: list[tuple[Row, dict]]) -> str:
    """Returns the table of epochs to the target by form, next to the paper's."""
    lines = []
    for first in rows()[: len(rows()) // len(SEEDS)]:
        mine = {row.seed: record for row, record in found if row.form == first.form}
        reached = [epochs for record in mine.values() if (epochs := epochs_to_target(record))]
        cells = [_epochs(mine[seed]) if seed in mine else "" for seed in SEEDS]
        # A mean over only the runs that reach the target would flatter a form that often misses it.
        whole = reached and len(reached) == len(mine)
        mean = f"{statistics.mean(reached):.1f}" if whole else ""
        values = (first.form, f"{first.rate:g}", f"{first.warmup:g}", f"{first.momentum:g}")
        lines.append((*values, *cells, mean, f"{first.paper:g}"))
    seeds = (f"seed {seed}" for seed in SEEDS)
    return files.markdown_table(("momentum", "rate", "warmup", "m", *seeds, "mean", "paper"), lines)


def _epochs(record: dict) -> str:
    epochs = epochs_to_target(record)
    return f"not in {evaluated_at(record)[-1]:.1f}" if epochs is None else f"{epochs:.1f}"
