"""`timetotrain report PATH`: the report of logs; with --follow or --serve, the page of a run that goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

FOLLOWING = ("--follow", "--serve")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status.

    Raises:
      UserError: from the report or the page.
    """
    words = list(argv)
    if words[:1] != ["report"] or not set(FOLLOWING) & set(words):
        from compliance import cli

        return cli.main(words)
    from common.run.follow import command

    parser = argparse.ArgumentParser(prog="timetotrain report", description="Show a run while it trains.")
    command.add_arguments(parser)
    return command.run(parser.parse_args(words[1:]))
