"""Writes a trained network in other programs' formats: `timetotrain export CHECKPOINT OUT`."""

from __future__ import annotations

import argparse
import os
import sys

from timetotrain.use.predict import add_trust

FORMATS = ("savedmodel", "safetensors", "stablehlo", "onnx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint_*.npz, or a folder: its best")
    parser.add_argument("out", metavar="OUT", help="the new folder to write")
    parser.add_argument(
        "--format", choices=FORMATS, default="savedmodel", help="savedmodel takes files and names its results"
    )
    parser.add_argument(
        "--fold_batch_norm", action="store_true", help="fold batch norm into the convolutions before it"
    )
    parser.add_argument("--benchmark", default="", help="of a checkpoint of a version that did not store it")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Exports; returns 0.

    Raises:
      UserError: see `common.export.trained.load` and `common.export.formats.write`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from common.export import formats, trained

    trust = trained.Trust(options.allow_plugins, options.allow_large)
    found = trained.load(options.checkpoint, options.benchmark, options.fold_batch_norm, trust)
    files = formats.write(found, options.out, options.format)
    size = sum(path.stat().st_size for path in files)
    names = f"{len(found.labels)} names of classes" if found.labels else "no names of classes"
    print(f"from     {found.path}, {found.benchmark}, step {found.step}, {names}", file=sys.stderr)
    print(f"export   {options.out} ({options.format}, {size / 1e6:.1f} MB)")
    return 0
