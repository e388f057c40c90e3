"""Runs `python -m timetotrain.run.follow RESULT`."""

from __future__ import annotations

import argparse
import sys

from common.errors import UserError
from timetotrain.follow import command


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m timetotrain.run.follow", description=command.__doc__.splitlines()[0]
    )
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
