"""Implements `python -m compliance check`: options, output forms and exit status."""

from __future__ import annotations

import argparse
import os
import sys

from compliance.check import check
from compliance.findings import ERROR, Finding
from compliance.formats import FORMATS
from compliance.log import rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `check`."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a log, a results folder or a submission tree"
    )
    parser.add_argument("--ruleset", choices=rules.RULESETS, help="default: guessed from each log's form")
    parser.add_argument(
        "--division", choices=rules.DIVISIONS, help="what the logs must be; default: what they say"
    )
    parser.add_argument("--format", choices=tuple(FORMATS), default="text")
    parser.add_argument("--output", "-o", metavar="FILE", help="write there instead of to standard output")
    parser.add_argument("--strict", action="store_true", help="exit 1 on advice, too")
    parser.add_argument(
        "--cross-check",
        action="store_true",
        help="run the stock checker beside ours and show each disagreement",
    )


def run(options: argparse.Namespace) -> int:
    """Checks the paths, prints or writes the findings, and returns the exit status."""
    outcome = check(options.paths, options.ruleset, options.division)
    findings = list(outcome.findings)
    if options.cross_check:
        findings += _cross_check(outcome.logs)
    text = FORMATS[options.format](findings, outcome.files)
    if options.output:
        from compliance.report.output import write  # imports what a check without --output does not need

        write(options.output, text + "\n")
    else:
        # A terminal that cannot show a character shows its escape.
        sys.stdout.reconfigure(errors="backslashreplace")
        print(text)
    bad = bool(findings) if options.strict else any(finding.severity == ERROR for finding in findings)
    return 1 if bad else 0


def _cross_check(logs) -> list[Finding]:
    from concurrent.futures import ThreadPoolExecutor

    from compliance import stock

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # each waits for a process of its own
        # A log without a ruleset could not be read, which its findings say already.
        read = [log for log in logs if log.ruleset and os.access(log.path, os.R_OK)]
        found = pool.map(lambda log: stock.cross_check(log.path, log.ruleset, log.passes), read)
        return [finding for group in found for finding in group]
