"""Implements `timetotrain accept TREE`."""

import argparse
import sys
from pathlib import Path

from common.errors import UserError
from compliance.acceptance.answer import OPEN
from compliance.acceptance.tree_answer import STALE_MINUTES, answer_tree, as_json, as_text
from compliance.api import check
from compliance.log import rules
from compliance.submission import rounds
from compliance.submission.loose import with_loose_folders
from compliance.submission.verdict import no_folders
from compliance.verdict import GO, NO_GO, NOT_CHECKED

_EXIT = {GO: 0, OPEN: 0, NO_GO: 1, NOT_CHECKED: 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("tree", metavar="TREE", type=Path, help="a submission tree, complete or with runs under way")
    add("--ruleset", **rules.CHOICE, help="default: what the tree and the logs say")
    add("--format", choices=("text", "json"), default="text")
    stale = "after so long without a new line, a run counts as ended, and a launch before run_start as dead"
    stale += " (default: %(default)s)"
    add("--stale", type=float, default=STALE_MINUTES, metavar="MINUTES", help=stale)


def run(options: argparse.Namespace) -> int:
    """Prints the answer. Returns 1 for no-go, 2 for not checked, else 0.

    Raises UserError if the tree is not a folder, or holds no folder of runs.
    """
    if not options.tree.is_dir():
        what = "is a file" if options.tree.is_file() else "no such folder"
        raise UserError(f"{options.tree}: {what}; name a folder of runs, or a submitter's with results/")
    outcome = with_loose_folders(check([options.tree], options.ruleset), options.ruleset)
    if not outcome.submissions:
        raise no_folders(options.tree, outcome.verdict)
    folders = {(one.benchmark, one.ruleset) for tree in outcome.submissions for one in tree.folders}
    for line in sorted(filter(None, (rounds.retirement(*one) for one in folders))):
        print(line, file=sys.stderr)
    answer = answer_tree(outcome, stale_minutes=options.stale)
    print(as_json(answer) if options.format == "json" else as_text(answer))
    return _EXIT[answer.answer]
