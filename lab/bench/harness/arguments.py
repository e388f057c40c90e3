"""Flags that scripts of lab/bench/ share."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.bench.harness.interpreters import TORCH
from lab.bench.harness.results import RESULTS

QUICK = "one small round, to see that everything runs; writes nothing"


def parser(doc: str | None, output: str | None = None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Returns a parser with `--rounds` and `--output` if their defaults are given.

    Args:
      doc: the script's docstring; its first line is the description.
      output: name of the result file in lab/bench/results/; "" for the folder itself.
      rounds: rounds per contender.
    """
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help=f"of every contender; default: {rounds}")
    if output is not None:
        what = "result file" if output else "folder of the result files"
        made.add_argument("--output", type=Path, default=RESULTS / output, help=what)
    return made


def add_quick(made: argparse.ArgumentParser) -> None:
    """Adds `--quick`."""
    made.add_argument("--quick", action="store_true", help=QUICK)


def add_torch_python(made: argparse.ArgumentParser) -> None:
    """Adds `--torch-python`."""
    made.add_argument(
        "--torch-python", help=f"an interpreter that has {TORCH}; without it PyTorch is left out"
    )
