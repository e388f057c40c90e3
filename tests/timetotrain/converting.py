"""Runs `timetotrain data` in a test, and reads its report."""

import argparse
import json

import pytest

from common.data.report import NAME
from timetotrain.use import data


def convert(*words):
    parser = argparse.ArgumentParser()
    data.add_arguments(parser)
    return data.run(parser.parse_args([str(word) for word in words]))


def reported(out):
    return json.loads((out / NAME).read_text())


def needs_text(benchmark="transformer"):
    name = {"transformer": "official", "gnmt": "sacremoses"}.get(benchmark)
    if name:
        pytest.importorskip(name, reason=f"{name} absent")
