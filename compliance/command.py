"""Implements `timetotrain check`: options, output forms and exit status."""

import argparse

from compliance.api import check
from compliance.formats import FORMATS
from compliance.log import rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="a log, a results folder or a submission tree")
    add("--ruleset", **rules.CHOICE, help="default: what the tree and the log say")
    add("--division", choices=rules.DIVISIONS, help="what the logs must be; default: what they say")
    add("--format", choices=tuple(FORMATS), default="text")
    add("--output", "-o", metavar="FILE", help="write there instead of to standard output")
    add("--strict", action="store_true", help="exit 1 on advice, too")


def run(options: argparse.Namespace) -> int:
    """Checks the paths, prints or writes the outcome. Returns the exit status; with --strict, 1 for any finding."""
    outcome = check(options.paths, options.ruleset, options.division)
    text = FORMATS[options.format](outcome)
    if options.output:
        from compliance.report.output import write  # a check without --output does not need these imports

        write(options.output, text + "\n")
    else:
        print(text)
    return 1 if options.strict and outcome.findings else outcome.verdict.exit_status
