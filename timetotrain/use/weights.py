"""Stores public weights where `--system=here` finds them: `timetotrain weights BENCHMARK [FILE]`. TensorFlow-free."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from common.config import automatic, benchmarks
from common.files import ROOT

NAMES = tuple(name for name in benchmarks.NAMES if (ROOT / name / "starting_weights.py").is_file())
_TERMS = (
    "terms      torchvision's code is under the BSD 3-Clause License; ImageNet, on which its networks were trained, is "
    "for non-commercial research and education (image-net.org/download)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("benchmark", choices=NAMES, metavar="BENCHMARK", help=", ".join(NAMES))
    parser.add_argument(
        "file", nargs="?", default="", metavar="FILE", help="yours: .pth, .h5, .safetensors, .npz"
    )
    parser.add_argument("--sha256", default="", help="digest of the file, or at least its first eight digits")
    parser.add_argument("--url", default="", help="address of the file, instead of torchvision's")


def run(options: argparse.Namespace) -> int:
    """Fetches, verifies and stores the weights; returns the exit status of common/layers/init_weights.sh."""
    folder = automatic.weights_folder(options.benchmark)
    variables = {"WEIGHTS_FILE": options.file, "WEIGHTS_SHA256": options.sha256, "WEIGHTS_URL": options.url}
    environment = {**os.environ, "PYTHON": sys.executable, "WEIGHTS_DIR": str(folder)}
    environment |= {name: value for name, value in variables.items() if value}
    command = ["bash", ROOT / "common/layers/init_weights.sh", options.benchmark]
    status = subprocess.run(command, env=environment).returncode
    if not status:
        print("" if options.file else f"{_TERMS}\n", end="")
        print(f"next       timetotrain run {options.benchmark} --system=here --data_dir=DIR starts from them")
    return status
