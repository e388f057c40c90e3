"""The command line of every benchmark's generated data set: `python -m BENCHMARK.tiny DATA_DIR`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError


def main(
    benchmark: str, generate: Callable[[str], object], holds: str, argv: Sequence[str] | None = None
) -> int:
    """Calls `generate(DATA_DIR)`; `holds` says in the help what the folder is for. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {benchmark}.tiny", description="Generate the data of cpu-tiny."
    )
    parser.add_argument("data_dir", help=f"folder for the {holds}")
    arguments = parser.parse_args(argv)
    try:
        generate(arguments.data_dir)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def note(benchmark: str, settings: Mapping[str, Any], **more: Any) -> str:
    """What is written beside finished data: whose they are, their settings, and `more`."""
    return json.dumps({"benchmark": benchmark, "settings": settings, **more}, sort_keys=True)


def unfinished(benchmark: str) -> str:
    """The note of data that are being made: the next call makes them anew."""
    return json.dumps({"benchmark": benchmark, "unfinished": True})


def noted(path: Path, benchmark: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The note at `path` where it is of the same data; None where they have to be made, for the first time or anew.

    Raises:
      UserError: the data beside the note are another benchmark's, or of an earlier version that did not say whose.
      OSError: it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # None, or that of an interrupted call.
        return None
    if not isinstance(found, dict):
        return None
    same = json.dumps(found.get("settings", found), sort_keys=True) == json.dumps(settings, sort_keys=True)
    owner = found.get("benchmark")
    if owner != benchmark and not (owner is None and same):
        whose = f"the generated data of {owner}" if owner else "generated data without a benchmark's name"
        raise UserError(f"{path.parent} holds {whose} ({path.name}); give another DATA_DIR, or delete it")
    return found if same else None
