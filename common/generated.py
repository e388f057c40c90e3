"""The command line of every benchmark's generated data set: `python -m BENCHMARK.tiny DATA_DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

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
