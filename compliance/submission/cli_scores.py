"""Implements `timetotrain scores`: the results table of a tree, as text or CSV."""

import argparse
import csv
import io
from pathlib import Path

from common.errors import UserError
from common.files import write_atomically
from compliance.log import rules
from compliance.report.output import aligned
from compliance.submission import summary
from compliance.submission.summary import System
from compliance.submission.tree import judge_tree
from compliance.submission.verdict import no_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", metavar="TREE", help="a submitter's folder, or a folder of several")
    parser.add_argument("--ruleset", choices=rules.RULESETS, help="default: what the tree and the logs say")
    parser.add_argument(
        "--csv", metavar="FILE", help="write the table; a second one, FILE_detailed, beside it"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the scores and writes the files. Returns 0 if every folder of runs has a score, else 1."""
    tree = Path(options.tree)
    if not tree.is_dir():
        raise UserError(f"{tree}: no such folder; name a submitter's folder with results/ and systems/")
    outcome = judge_tree(tree, options.ruleset)
    systems = summary.systems(outcome)
    if not systems:
        raise no_folders(tree, outcome.verdict)
    used = sorted({one.submission.ruleset for one in systems})
    if len(used) > 1:
        raise UserError(
            f"{tree}: submissions of rounds {', '.join(used)}; name one round's, or give --ruleset"
        )
    if options.csv:
        path = Path(options.csv)
        for place, detailed in ((path, False), (path.with_stem(f"{path.stem}_detailed"), True)):
            # A description may hold half of a surrogate pair, which has no UTF-8 form.
            write_atomically(place, _csv(systems, detailed).encode(errors="backslashreplace"))
    print(_text(systems, used[0]))
    for remark in (remark for one in systems for remark in one.remarks):
        print(f"note: {remark}")
    return int(any(result.card.score is None for one in systems for result in one.results.values()))


def _csv(systems: list[System], detailed: bool) -> str:
    """Returns the table with the stock summarizer's columns; an empty cell means no score."""
    text = io.StringIO()
    rows = [summary.row(one, detailed) for one in systems]
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _text(systems: list[System], ruleset: str) -> str:
    """Returns a line for each score: system, accelerators, benchmark, minutes, and how the score was computed."""
    lines = [
        ("division", "system", "accelerators", "benchmark", "minutes", "runs", "failed", "dropped")
        + ("scaling", "RCP")
    ]
    for one in systems:
        for benchmark, result in sorted(one.results.items()):
            score = "-" if result.card.score is None else f"{result.card.score:.4f}"
            runs = f"{len(result.card.runs)} of {result.card.needed}"
            failed = str(len(result.card.runs) - len(result.card.counted))
            lines.append(
                (
                    result.folder.division or "-", one.name, str(one.accelerators or "-"), benchmark, score, runs,
                    failed, str(len(result.card.left_out)), f"{result.scaling:.4f}", result.rcp or "-",
                )
            )  # fmt: skip
    head = f"Round {ruleset}; minutes; weak scaling is not covered, power is in `timetotrain power`"
    return "\n".join((head, *aligned(lines)))
