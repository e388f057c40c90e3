"""python -m systems list | show NAME | detect | validate FILE... | predict BENCHMARK | compile BENCHMARK"""

from __future__ import annotations

from collections.abc import Sequence

from systems import cli
from timetotrain.forecast import compile as compile_
from timetotrain.forecast import predict


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command of systems/cli.py, `predict` or `compile`; returns the exit status, as systems.cli.main does."""
    return cli.main(argv, (predict.add, compile_.add))
