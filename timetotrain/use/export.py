"""Writes a trained network in other programs' formats: `timetotrain export CHECKPOINT OUT`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from common.errors import UserError
from timetotrain.use.predict import add_trust

if TYPE_CHECKING:
    from common.export.trained import Trained

FORMATS = ("savedmodel", "safetensors", "stablehlo", "onnx")
PACKAGES = {"safetensors": "safetensors", "onnx": "tf2onnx"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a checkpoint_*.npz, or a folder, whose best one counts")
    add("out", metavar="OUT", help="the new folder to write")
    add(
        "--format", choices=FORMATS, default="savedmodel", help="savedmodel takes files and names its results"
    )
    add("--benchmark", default="", help="the benchmark, for a checkpoint that does not store it")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Exports; returns 0.

    Raises UserError: see `common.export.trained.load` and `common.export.formats.write`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    check_package(options.format)
    from common.export import formats, trained

    trust = trained.Trust(options.allow_plugins, options.allow_large)
    network = trained.load(options.checkpoint, options.benchmark, trust)
    files = formats.write(network, options.out, options.format)
    size = sum(path.stat().st_size for path in files)
    names = f"{len(network.labels)} names of classes" if network.labels else "no names of classes"
    print(f"from     {network.path}, {network.benchmark}, step {network.step}, {names}", file=sys.stderr)
    if line := _poor(network):
        print(line, file=sys.stderr)
    print(f"export   {options.out} ({options.format}, {size / 1e6:.1f} MB)")
    return 0


def check_package(kind: str) -> None:
    """Raises UserError if the package that writes a format is missing, before anything is loaded."""
    name = PACKAGES.get(kind)
    if name and importlib.util.find_spec(name) is None:
        raise UserError(f"--format={kind}: {name} is not installed; pip install timetotrain[export]")


def _poor(network: Trained) -> str:
    """Returns the line that warns of a network no better than its data's baseline, from the history beside it."""
    from timetotrain.run import ending, history

    try:
        return ending.poor(
            network.config.quality, history.read(network.path.with_name(history.NAME)), network.step
        )
    except UserError:  # The history is not needed for the export.
        return ""
