"""Trains ResNet-50 (quarter to half width) from scratch on photographs: 20 classes of Tiny ImageNet.

The settings of the preset cpu-photos were chosen with `--tune`, which trains on four fifths of the training images and
evaluates on the last fifth. Only runs without `--tune` use the validation images.
"""

import argparse

from common import files
from common.errors import UserError
from lab.studies.data import ROOT, unpack
from lab.studies.runner import Runner, Study, add_flags, convert, counts, settings

ARCHIVE = "tiny_imagenet_20"
FOLDER = ROOT / "lab/studies" / "resnet-photos"
HELD_OUT = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies resnet-photos`."""
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds 0, 1, ...")
    add_flags(parser, "--tune", "overrides")


def run(args: argparse.Namespace) -> int:
    """Converts the photographs, trains the missing runs, prints their table and copies their curves."""
    if args.seeds < 1:
        raise UserError(f"--seeds={args.seeds}: must be at least 1")
    source = unpack(ARCHIVE)
    records = source.parent / f"{ARCHIVE}-records-{'tune' if args.tune else 'all'}"
    held_out = ["--hold-out", str(HELD_OUT)] if args.tune else ["--validation", str(source / "val")]
    shards = ["--train-shards", "8", "--validation-shards", "4"]
    convert(source, "resnet.convert", records, "--train", source / "train", *held_out, *shards)
    examples = {f"num_{name}_examples": n for name, n in counts(records).items()} if args.tune else {}
    study = Study(
        name=f"resnet-photos{'-tune' * args.tune}",
        benchmark="resnet",
        preset="cpu-photos",
        data=lambda: records,
        flags=settings(**examples),
    )
    runner = Runner(study, overrides=args.overrides)
    runs = [runner.named(f"seed-{seed}", seed) for seed in range(args.seeds)]
    lines = []
    for row, record in zip(runs, runner.run_all(runs)):
        top1 = "diverged" if record["quality"] is None else f"{record['quality']:.4f}"
        lines.append((row.seed, top1, f"{record['minutes']:.1f}"))
        curve = runner.log(row).with_name("curve_0.png")
        if curve.is_file() and not args.tune:
            files.copy(curve, FOLDER / f"curve_{row.seed}.png")
    print(files.markdown_table(("seed", "top-1", "minutes"), lines))
    return 0
