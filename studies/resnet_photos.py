"""ResNet-50 (quarter to half width) from scratch on photographs: 20 classes of Tiny ImageNet.

The settings of the preset cpu-photos were chosen with `--tune`: training on four fifths of the training images and
evaluating on the last fifth. The validation images are used only by the run without it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys

from common.errors import UserError
from studies.data import ROOT, unpack

ARCHIVE = "tiny_imagenet_20"
FOLDER = ROOT / "studies" / "resnet-photos"
HELD_OUT = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m studies resnet-photos`."""
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds 0, 1, ...")
    parser.add_argument(
        "--tune", action="store_true", help="evaluate on a fifth of the training images instead"
    )
    parser.add_argument("overrides", nargs="*", help="further flags of python -m resnet, after --")


def run(args: argparse.Namespace) -> int:
    """Converts the photographs, runs resnet/run_and_time.sh, writes the table and the curves."""
    source = unpack(ARCHIVE)
    part = "tune" if args.tune else "all"
    records = source.parent / f"{ARCHIVE}-records-{part}"
    _convert(source, records, args.tune)
    overrides = list(args.overrides)
    if args.tune:
        counts = _counts(records)
        overrides += [f"--config.num_{name}_examples={count}" for name, count in counts.items()]
    results = ROOT / "results" / f"study-resnet-photos-{part}"
    shutil.rmtree(results, ignore_errors=True)
    environment = {
        **os.environ,
        "SYSTEM": "cpu-photos",
        "DATA_DIR": str(records),
        "RESULT_DIR": str(results),
        "NEXP": str(args.seeds),
        "PYTHON": sys.executable,
    }
    status = subprocess.run(
        [ROOT / "resnet" / "run_and_time.sh", *overrides], env=environment, check=False
    ).returncode
    if status > 1:
        return status
    if not args.tune:
        _publish(results / "cpu-photos" / "resnet")
    return 0


def _convert(source: pathlib.Path, records: pathlib.Path, tune: bool) -> None:
    held_out = ["--hold-out", str(HELD_OUT)] if tune else ["--validation", str(source / "val")]
    shards = ["--train-shards", "8", "--validation-shards", "4"]
    command = [
        sys.executable,
        "-m",
        "resnet.convert",
        records,
        "--train",
        source / "train",
        *held_out,
        *shards,
    ]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, check=False)
    if done.returncode:
        raise UserError(f"converting {source} failed; see above", done.returncode)


def _counts(records: pathlib.Path) -> dict[str, int]:
    from common import records as tfrecords

    patterns = {"train": "train-*", "eval": "validation-*"}
    return {
        name: sum(tfrecords.count(str(f)) for f in sorted(records.glob(p))) for name, p in patterns.items()
    }


def _publish(results: pathlib.Path) -> None:
    """results.csv and table.md, a row a run, and the pictures, into studies/resnet-photos/."""
    FOLDER.mkdir(exist_ok=True)
    rows = []
    for name, record in json.loads((results / "run.json").read_text())["runs"].items():
        log = results / name
        rows.append(
            {
                "seed": record["seed"],
                "top1": round(record["quality"], 4),
                "target": record["quality_target"],
                "status": record["status"],
                "minutes": round(_minutes(log), 2),
                "digest": record["digest"][:12],
            }
        )
        shutil.copy(log, FOLDER / name)
        shutil.copy(results / name.replace("result_", "curve_").replace(".txt", ".png"), FOLDER)
    with open(FOLDER / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=rows[0])
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    (FOLDER / "table.md").write_text("\n".join(lines) + "\n")
    print((FOLDER / "table.md").read_text())


def _minutes(log: pathlib.Path) -> float:
    from compliance.logs import Record, read_log

    times = {r.key: r.time_ms for r in read_log(log) if isinstance(r, Record)}
    return (times["run_stop"] - times["run_start"]) / 60000
