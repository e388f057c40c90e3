"""Trains ResNet-50 (quarter to half width) from scratch on photographs: 20 classes of Tiny ImageNet.

The settings of the preset cpu-photos were chosen with `--tune`, which trains on four fifths of the training images and
evaluates on the last fifth. Only runs without `--tune` use the validation images.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from common import files
from common.config import overrides as configs
from common.errors import UserError
from lab.studies.data import ROOT, unpack
from lab.studies.runner import add_flags, convert, counts, move_aside, run_and_time, write_rows
from resnet.presets import PRESETS
from timetotrain.run import outcome

ARCHIVE = "tiny_imagenet_20"
FOLDER = ROOT / "lab/studies" / "resnet-photos"
SYSTEM = "cpu-photos"
HELD_OUT = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies resnet-photos`."""
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds 0, 1, ...")
    add_flags(parser, "--tune", "overrides")


def run(args: argparse.Namespace) -> int:
    """Converts the photographs, runs resnet/run_and_time.sh, writes the table and the curves."""
    if args.seeds < 1:
        raise UserError(f"--seeds={args.seeds}: must be at least 1")
    configs.override_all(PRESETS[SYSTEM], args.overrides).validate()
    source = unpack(ARCHIVE)
    part = "tune" if args.tune else "all"
    records = source.parent / f"{ARCHIVE}-records-{part}"
    _convert(source, records, args.tune)
    overrides = list(args.overrides)
    if args.tune:
        overrides += [f"--config.num_{name}_examples={n}" for name, n in counts(records).items()]
    results = ROOT / "results" / f"study-resnet-photos-{part}"
    if moved := move_aside(results):
        print(f"{results}: moved to {moved}", flush=True)
    logs = run_and_time("resnet", SYSTEM, records, results, overrides, args.seeds)
    if not args.tune:
        _publish(logs)
    return 0


def _convert(source: pathlib.Path, records: pathlib.Path, tune: bool) -> None:
    held_out = ["--hold-out", str(HELD_OUT)] if tune else ["--validation", str(source / "val")]
    shards = ["--train-shards", "8", "--validation-shards", "4"]
    convert(source, "resnet.convert", records, "--train", source / "train", *held_out, *shards)


def _publish(logs: Sequence[pathlib.Path]) -> None:
    """Writes results.csv, one row per run, and the pictures into lab/studies/resnet-photos/."""
    records = json.loads((logs[0].parent / "run.json").read_text())["runs"]
    rows = []
    for log in logs:
        rows.append(_row(log, records[log.name]))
        curve = log.with_name(log.name.replace("result_", "curve_")).with_suffix(".png")
        if curve.is_file():
            files.copy(curve, FOLDER / curve.name)
    write_rows(FOLDER, rows)


def _row(log: pathlib.Path, record: dict[str, Any]) -> dict[str, Any]:
    end = outcome.read(log)
    return {
        "seed": record["seed"],
        "top1": "diverged" if end.quality is None else round(end.quality, 4),
        "target": record["quality_target"],
        "status": record["status"],
        "minutes": round(end.minutes, 2),
        "digest": record["digest"][:12],
    }
