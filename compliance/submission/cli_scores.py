"""Implements `timetotrain scores`: the results table of a tree, as text or CSV."""

import argparse
from pathlib import Path

from common.errors import UserError
from common.files import write_csv
from compliance.log import rules
from compliance.report.output import aligned
from compliance.submission import summary
from compliance.submission.loose import with_loose_folders
from compliance.submission.summary import System
from compliance.submission.tree import judge_tree
from compliance.submission.verdict import no_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", metavar="TREE", help="a submitter's folder, or a folder of several")
    parser.add_argument("--ruleset", **rules.CHOICE, help="default: what the tree and the logs say")
    beside = "write the table; a second one, FILE_detailed, beside it"
    parser.add_argument("--csv", metavar="FILE", help=beside)


def run(options: argparse.Namespace) -> int:
    """Prints the scores and writes the files. Returns 0 if every folder of runs has a score, else 1.

    Raises UserError if the tree holds no folder of runs or several rounds, or a file cannot be written.
    """
    tree = Path(options.tree)
    if not tree.is_dir():
        what = "is a file" if tree.is_file() else "no such folder"
        raise UserError(f"{tree}: {what}; name a folder of runs, or a submitter's with results/ and systems/")
    outcome = with_loose_folders(judge_tree(tree, options.ruleset), options.ruleset)
    systems = summary.systems(outcome)
    if not systems:
        raise no_folders(tree, outcome.verdict)
    used = sorted({one.submission.ruleset for one in systems})
    if len(used) > 1:
        reason = f"submissions of rounds {', '.join(used)}"
        raise UserError(f"{tree}: {reason}; name one round's, or give --ruleset")
    if options.csv:
        path = Path(options.csv)
        # The stock summarizer's columns; an empty cell means no score.
        for place, detailed in ((path, False), (path.with_stem(f"{path.stem}_detailed"), True)):
            rows = [summary.row(one, detailed) for one in systems]
            write_csv(place, [*rows[0]], [row.values() for row in rows], line_end="\n")
    print(_text(systems, used[0]))
    for remark in (remark for one in systems for remark in one.remarks):
        print(f"note: {remark}")
    for one in outcome.findings:
        if one.rule == "tree.benchmark":
            print(f"note: {Path(one.path).name}: {one.message}")
    for result in (result for one in systems for result in one.results.values() if result.card.score is None):
        for run in result.card.runs:
            minutes = "no time" if run.minutes is None else f"{run.minutes:.4f} minutes"
            end = "did not converge" if run.to_converge is None else f"converged after {run.to_converge:,.6g}"
            end = end if run.began else "never reached run_start"
            print(f"{run.path.name}: {minutes}, {end}")
    return int(any(result.card.score is None for one in systems for result in one.results.values()))


def _text(systems: list[System], ruleset: str) -> str:
    """Returns a line for each score: system, accelerators, benchmark, minutes, and how the score was computed."""
    head = f"Round {ruleset}; minutes; weak scaling is not covered"
    lines = [
        ("division", "system", "accelerators", "benchmark", "minutes", "runs", "failed", "dropped", "scaling", "RCP")
    ]  # fmt: skip
    for one in systems:
        for benchmark, result in sorted(one.results.items()):
            card = result.card
            score = "-" if card.score is None else f"{card.score:.4f}"
            runs, failed = f"{len(card.runs)} of {card.needed}", str(len(card.runs) - len(card.counting_runs))
            place = result.folder.division or "-", one.name, str(one.accelerators or "-"), benchmark
            left_out, factor = str(len(card.left_out)), f"{card.scaling:.4f}"
            lines.append([*place, score, runs, failed, left_out, factor, result.rcp or "-"])
    return "\n".join((head, *aligned(lines)))
