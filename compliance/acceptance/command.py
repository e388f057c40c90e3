"""Implements `timetotrain accept TREE`."""

import argparse
import sys
from pathlib import Path

from common.errors import UserError
from compliance.acceptance.answer import OPEN
from compliance.acceptance.whole import STALE_MINUTES, as_json, as_text, whole
from compliance.api import check
from compliance.log import rules
from compliance.submission import rounds
from compliance.submission.verdict import no_folders
from compliance.verdict import GO, NO_GO, NOT_CHECKED

_EXIT = {GO: 0, OPEN: 0, NO_GO: 1, NOT_CHECKED: 2}
_LONGEST = 86_400.0  # seconds between two looks at the logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("tree", metavar="TREE", type=Path, help="a submission tree, complete or with runs under way")
    add("--ruleset", choices=rules.RULESETS, help="default: what the tree and the logs say")
    add("--format", choices=("text", "json"), default="text")
    add("--watch", action="store_true", help="follow the logs while they grow; end when all runs are in")
    add("--every", type=float, default=5.0, metavar="SECONDS", help="pause of --watch (default: %(default)s)")
    stale = "after so long without a new line, a run counts as ended (default: %(default)s)"
    add("--stale", type=float, default=STALE_MINUTES, metavar="MINUTES", help=stale)


def run(options: argparse.Namespace) -> int:
    """Prints the answer. Returns 1 for no-go, 2 for not checked, else 0.

    Raises UserError: the tree does not exist, or has no results/<system>/<benchmark>/, or --every is not a time.
    """
    if not options.tree.is_dir():
        raise UserError(f"{options.tree}: no such folder; name a submitter's folder with results/")
    if not 0 < options.every <= _LONGEST:
        raise UserError(f"--every={options.every:g}: must be more than 0 and at most {_LONGEST:g} seconds")
    if options.watch:
        from compliance.acceptance import watch

        return _EXIT[watch.follow(options.tree, options.ruleset, options.every, options.stale)]
    outcome = check([options.tree], options.ruleset)
    if not outcome.submissions:
        raise no_folders(options.tree, outcome.verdict)
    folders = {(one.benchmark, one.ruleset) for tree in outcome.submissions for one in tree.folders}
    for line in sorted(filter(None, (rounds.retirement(*one) for one in folders))):
        print(line, file=sys.stderr)
    found = whole(outcome, stale_minutes=options.stale)
    print(as_json(found) if options.format == "json" else as_text(found))
    return _EXIT[found.answer]
