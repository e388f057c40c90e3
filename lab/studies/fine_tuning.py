"""Fine-tunes a ResNet-50 on a few photographs of new classes, and compares it with training from scratch.

First a network trains on the first PRETRAINED of Tiny ImageNet's 20 classes here. Then two runs with equal settings
train on a few photographs of each other class: one starts from the trained weights (`--init`, with a new head), one
from random weights. The first must win by MARGIN of top-1 accuracy on these classes' validation photographs.
"""

import argparse
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from common import files
from common.errors import UserError
from lab.studies.data import ROOT, filled, unpack
from lab.studies.runner import Runner, Study, convert, counts, settings

ARCHIVE = "tiny_imagenet_20"
FOLDER = ROOT / "lab/studies" / "fine-tuning"
PRETRAINED = 15
MARGIN = 0.10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies fine-tuning`."""
    parser.add_argument("--photos", type=int, default=50, help="training photographs of each new class (50)")
    parser.add_argument(
        "--pretrain_epochs", type=float, default=12.0, help="epochs on the other classes (12)"
    )
    parser.add_argument("--epochs", type=float, default=16.0, help="epochs on the new classes (16)")
    parser.add_argument("--frozen_stages", type=int, default=0, help="stages that the second run keeps (0)")


def run(args: argparse.Namespace) -> int:
    """Trains the missing runs and writes the table; returns 1 if the margin is missed."""
    rows = trained(unpack(ARCHIVE), ROOT / "results" / "study-fine-tuning", args)
    margin = round(rows[2]["top1"] - rows[1]["top1"], 4)
    head = (*rows[0], "over_scratch")
    lines = [(*row.values(), over) for row, over in zip(rows, ("", "", margin))]
    files.write_csv(FOLDER / "results.csv", head, lines)
    print(files.markdown_table(head, lines))
    print(f"fine-tuned minus from scratch: {margin:+.4f} top-1; the goal is {MARGIN:+.2f}")
    return int(margin < MARGIN)


def trained(source: pathlib.Path, work: pathlib.Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the pretraining, the run from scratch and the fine-tuning; returns a row for each.

    Args:
      source: folder with train/CLASS/ and val/CLASS/.
      work: folder for the data.
      args: see `add_arguments`.
    """
    classes = sorted(path.name for path in (source / "train").iterdir() if path.is_dir())
    if len(classes) <= PRETRAINED:
        raise UserError(f"{source}: {len(classes)} classes, more than {PRETRAINED} are needed")
    old, new = classes[:PRETRAINED], classes[PRETRAINED:]
    first = _records(source, work / "data-pretraining", old, 0)
    second = _records(source, work / f"data-{args.photos}", new, args.photos)
    before, pretraining = _run("pretraining", first, args.pretrain_epochs, old)
    start = (f"--init={before}", f"--frozen_stages={args.frozen_stages}")
    return [
        pretraining,
        _run("from scratch", second, args.epochs, new)[1],
        _run("fine-tuned", second, args.epochs, new, start)[1],
    ]


def _records(source: pathlib.Path, folder: pathlib.Path, classes: Sequence[str], most: int) -> pathlib.Path:
    """Converts some classes' photographs; for training at most the first `most` of each class (0: all)."""

    def fill(made: pathlib.Path) -> None:
        photos = made / "photos"
        for split in ("train", "val"):
            for name in classes:
                files_of_class = sorted(path for path in (source / split / name).iterdir() if path.is_file())
                target = photos / split / name
                target.mkdir(parents=True)
                for photo in files_of_class[: most if split == "train" and most else None]:
                    os.symlink(photo.resolve(), target / photo.name)
        arguments = ["--train", photos / "train", "--validation", photos / "val", "--train-shards", "2"]
        convert(source, "resnet.convert", made / "records", *arguments, "--validation-shards", "1")

    return filled(folder, fill) / "records"


def _run(
    name: str, records: pathlib.Path, epochs: float, classes: Sequence[str], flags: tuple[str, ...] = ()
) -> tuple[pathlib.Path, dict[str, Any]]:
    """Trains one network unless it is trained; returns the folder of its checkpoints, and the table's row."""
    train, held_out = counts(records).values()
    values = {
        "num_classes": len(classes),
        "num_train_examples": train,
        "num_eval_examples": held_out,
        "global_batch_size": min(50, train),
        "eval_batch_size": min(50, held_out),
        "train_epochs": epochs,
        "epochs_per_block": epochs,
        "schedule__warmup_epochs": epochs / 8,
        "optimizer__base_learning_rate": 0.05,
        "quality_target": 1.01,  # Out of reach, so that each run trains to its end.
    }
    study = Study(
        name="fine-tuning",
        benchmark="resnet",
        preset="cpu-photos",
        data=lambda: records,
        flags=settings(**values),
        checkpoints=1,
    )
    runner = Runner(study)
    values_of_flags = (pathlib.PurePath(flag.partition("=")[2]).name for flag in flags)
    row = runner.named("-".join([*name.split(), *values_of_flags]), flags=flags)
    (record,) = runner.run_all([row])
    if record["quality"] is None:
        raise UserError(f"the run {name!r} gave no accuracy; see {runner.folder}")
    return runner.checkpoints(row), {
        "run": name,
        "classes": len(classes),
        "photographs": train,
        "epochs": epochs,
        "top1": round(record["quality"], 4),
        "minutes": round(record["minutes"], 2),
    }
