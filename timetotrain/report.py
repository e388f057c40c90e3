"""`timetotrain report PATH`: reports on logs; with --follow or --tensorboard, shows a run in progress."""

from __future__ import annotations

import argparse
from pathlib import Path

from timetotrain.follow import command

_ENDED = Path("report.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.description = "Writes one page: timelines, curves and scores of results, or a run while it trains."
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="a log, a results folder or a submission tree")
    add("-o", "--output", metavar="FILE", type=Path, help=f"the page (default: {_ENDED}; see --follow)")
    add("--ruleset", help="the round's rules (default: what the tree and the log say)")
    group = parser.add_argument_group("a run that goes on: PATH is its log, or a folder with the newest run")
    add = group.add_argument
    add("--follow", action="store_true", help="write its page, follow_<i>.html beside the log, until it ends")
    about = "write its curves for TensorBoard into DIR; with --follow until it ends"
    add("--tensorboard", metavar="DIR", type=Path, help=about)


def run(options: argparse.Namespace) -> int:
    """Writes the page; returns the exit status. Raises UserError as the report or the page does."""
    if options.follow or options.tensorboard:
        options.result = options.path
        return command.run(options)
    from compliance.report import page

    options.output = options.output or _ENDED
    return page.run(options)
