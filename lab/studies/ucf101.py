"""Compares TSM and TSN on real videos: ten classes of UCF101 that differ by motion, from scratch, three seeds each.

TSN is TSM without the shift: both use the settings of the preset cpu-ucf101 and the same seeds. Choose settings with
`--tune`, which holds out some groups of the training clips and evaluates on them; each try is a row of tuning.csv. A
run's result is its evaluation on the test clips after the last epoch. Earlier evaluations are drawn, but no choice
depends on them. The prediction for each test clip is kept for the paired tests.

The same command resumes a killed study: finished runs stay.
"""

import argparse
import csv
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Sequence

from common import files
from common.config import overrides as configs
from common.config.clock import Clock
from common.config.digest import digest
from common.errors import UserError
from lab.studies import runner as runners
from lab.studies import ucf101_report as report
from lab.studies.data import ROOT, unpack
from lab.studies.runner import Runner, Study, add_flags, evaluated, folder_for, settings
from timetotrain.run import closed_division
from tsm_kinetics.config import Config
from tsm_kinetics.presets import PRESETS

ARCHIVE = "ucf101_10_128"
SYSTEM = "cpu-ucf101"
MODELS, SEEDS = ("tsm", "tsn"), (0, 1, 2)
# The training groups (of g08 to g25) that `--tune` holds out. A group is one person in one place.
HELD_OUT = ("g10", "g15", "g20", "g25")
SHORT_SIDE = 80  # Pixels of the shorter side of the stored frames.
CONVERT = (f"--short-side={SHORT_SIDE}", "--train-shards=4", "--validation-shards=2")
# Fields that are not settings, or that are equal in every try.
NO_SETTINGS = re.compile(r"source|system|model|seed|num_|quality_target|eval_batch_size")


@dataclasses.dataclass(frozen=True)
class Row:
    """One run. Its id contains the digest of its configuration, so that other settings make another row.

    Attributes:
      id, model, seed: identity, network and seed of the run.
      settings: the fields that differ from cpu-tiny's.
      jobs: number of runs that share the machine; not part of the id.
    """

    id: str
    model: str
    seed: int
    settings: str
    jobs: int

    @property
    def flags(self) -> tuple[str, ...]:
        return settings(model=self.model)


def study_of(tune: bool, train: int, held_out: int) -> Study:
    """Returns the study, or that of `--tune`, with its numbers of training and evaluation clips."""
    return Study(
        name="ucf101-tune" if tune else "ucf101",
        benchmark="tsm_kinetics",
        preset=SYSTEM,
        data=lambda: convert(unpack(ARCHIVE), tune),
        # No run reaches a target of 1, so all train to the last epoch.
        flags=settings(quality_target=1, num_train_examples=train, num_eval_examples=held_out),
        checkpoints=1,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies ucf101`."""
    add_flags(parser, "--tune", "--jobs", "--minutes", "--epochs", "overrides")
    parser.set_defaults(jobs=1)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="train only these now")
    parser.add_argument("--seeds", type=int, help="train only the first N seeds now (with --tune: 1)")


def run(args: argparse.Namespace) -> int:
    """Trains the missing runs; writes tables and curve of the finished ones; returns 0 if the goals are met."""
    if args.seeds is not None and not 1 <= args.seeds <= len(SEEDS):
        raise UserError(f"--seeds={args.seeds}: must be 1..{len(SEEDS)}")
    if args.overrides and not (args.tune or args.epochs):
        raise UserError(f"{args.overrides[0]}: the test clips choose no settings; add --tune or --epochs")
    study = study_of(args.tune, *map(len, clips(unpack(ARCHIVE), args.tune)))
    runner = Runner(study, args.epochs, args.minutes, args.overrides, args.jobs)
    table = rows(runner)
    seeds = SEEDS[: args.seeds or (1 if args.tune else len(SEEDS))]
    wanted = [row for row in table if row.model in args.models and row.seed in seeds]
    todo = [row for row in wanted if runner.record(row) is None]
    for row in todo:
        predictions_path(runner, row).unlink(missing_ok=True)
    runner.run_all(todo)
    home = runner.folder if args.epochs else ROOT / "lab/studies" / "ucf101"
    if args.tune:
        records = sorted((runner.folder / "rows").glob("*.json"))
        report.tries(records, folder_for(home, "tuning.csv", len(records), runner.folder))
        return 0
    found = [finished(runner, row, record) for row in table if (record := runner.record(row))]
    folder = folder_for(home, "results.csv", len(found), runner.folder)
    reached = report.publish(found, folder)
    return 0 if reached and len(found) == len(table) else 1


def finished(runner: Runner, row: Row, record: dict) -> report.Run:
    """Loads a finished run: the epochs of its evaluations and its predictions.

    Raises:
      UserError: the run diverged, or its weights are gone.
    """
    if record["diverged"]:
        raise UserError(f"{row.id}: the loss was no number; lower the learning rate, and tune again")
    clock = Clock.of(configured(record["flags"], row.seed))
    epochs = [block.end_step / clock.steps_per_epoch for block in clock.blocks()]
    return report.Run(row, record, epochs, predicted(runner, row, record))


def rows(runner: Runner) -> list[Row]:
    """Lists the runs seed by seed, so that even an interrupted study can compare the networks."""
    table = []
    for seed in SEEDS:
        for model in MODELS:
            config = configured([*settings(model=model), *runner.extra], seed)
            name = f"{model}-{seed}-{digest(dataclasses.replace(config, source=''))[:8]}"
            changed = closed_division.overrides(config, PRESETS["cpu-tiny"])
            said = " ".join(f"{k}={_plain(v)}" for k, v in changed.items() if not NO_SETTINGS.match(k))
            table.append(Row(name, model, seed, said, runner.jobs))
    return table


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def configured(flags: Sequence[str], seed: int) -> Config:
    """Returns the configuration of `python -m tsm_kinetics --system=cpu-ucf101 --seed=SEED FLAGS`."""
    return dataclasses.replace(configs.override_all(PRESETS[SYSTEM], flags), seed=seed)


def clips(source: pathlib.Path, tune: bool) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Reads the clips to train and to evaluate on from clips.csv, with names as labels; `tune` needs no test clip.

    Raises:
      UserError: the file is missing, has other columns, or has a group in both splits.
    """
    path = source / "metadata" / "clips.csv"
    try:
        with open(path, newline="") as file:
            table = [{**row, "label": row["path"].split("/")[0]} for row in csv.DictReader(file)]
        train = [row for row in table if row["split"] == "train"]
        held = [row for row in table if row["split"] == "test"]
        if tune:
            held = [row for row in train if row["group"] in HELD_OUT]
            train = [row for row in train if row["group"] not in HELD_OUT]
        shared = set.intersection(*({(row["label"], row["group"]) for row in part} for part in (train, held)))
    except (OSError, KeyError) as error:
        raise UserError(f"{path}: not the archive's list of clips ({error}); remove {source}") from error
    if shared:
        label, group = min(shared)
        raise UserError(f"{path}: group {group} of {label} is on both sides; remove {source}")
    return train, held


@functools.cache
def convert(source: pathlib.Path, tune: bool) -> pathlib.Path:
    """Converts the archive to shards and returns their folder; if interrupted, the next call completes it."""
    part = "tune" if tune else "all"
    folder = source.parent / f"{ARCHIVE}-records-{part}"
    arguments = [folder, f"--videos={source}", *CONVERT]
    for side, table in zip(("train", "validation"), clips(source, tune)):
        listed = source.parent / f"{ARCHIVE}-{part}-{side}.csv"
        files.write_csv(listed, ("path", "label"), [(row["path"], row["label"]) for row in table])
        arguments.append(f"--{side}={listed}")
    runners.convert(source, "tsm_kinetics.convert", *arguments)
    return folder


def predictions_path(runner: Runner, row: Row) -> pathlib.Path:
    """Returns the path of a run's predictions."""
    return runner.folder / "predictions" / f"{row.id}.json"


def predicted(runner: Runner, row: Row, record: dict) -> list[report.Prediction]:
    """Returns a finished run's prediction for every test clip, computed once.

    Raises:
      UserError: the checkpoint is gone, or belongs to another run, as its top-1 shows.
    """
    path = predictions_path(runner, row)
    if not path.is_file():
        table = predict(configured(record["flags"], row.seed), runner.study.data(), runner.checkpoints(row))
        top1 = sum(p.correct for p in table) / len(table)
        # Another number of threads may round differently and break a tie differently.
        if abs(top1 - record["quality"]) > 0.01:
            raise UserError(
                f"{runner.checkpoints(row)}: top-1 is {top1:.4f}, the run's was {record['quality']:.4f}; remove "
                f"{runner.folder / 'rows' / row.id}.json to train it again"
            )
        files.write_atomically(path, json.dumps([dataclasses.asdict(p) for p in table]).encode())
    return [report.Prediction(**fields) for fields in json.loads(path.read_text())]


def predict(config: Config, data_dir: pathlib.Path, checkpoints: pathlib.Path) -> list[report.Prediction]:
    """Computes a prediction for each evaluated clip with the newest checkpoint."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from common.data import tfrecords
    from common.train.task import Outputs
    from tsm_kinetics import shards
    from tsm_kinetics.task import Task

    class Scored(Task):
        """Keeps the scores of each clip."""

        def evaluate(self, model, batch) -> Outputs:
            scores = tf.cast(self.scores(model, batch["frames"]), tf.float32)
            return Outputs(arrays={"scores": scores, "weight": batch["weight"]})

    arrays = evaluated(Scored(config, str(data_dir)), checkpoints)
    best = arrays["scores"][arrays["weight"] > 0].argmax(-1)

    classes = (data_dir / "classes.txt").read_text().splitlines()
    index, names = shards.Index(data_dir, "validation"), []
    for file in index.files:
        for data in tfrecords.read(file):
            example = tf.train.Example.FromString(data)
            names.append(example.features.feature["video/name"].bytes_list.value[0].decode())
    return [
        report.Prediction(name, classes[label], classes[found])
        for name, label, found in zip(names, index.label, best, strict=True)
    ]
