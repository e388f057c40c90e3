"""Implements `timetotrain review TREE...`: a round as its chairs get it, as one page and a CSV file."""

from __future__ import annotations

import argparse
import csv
import io
from collections import Counter
from datetime import date
from pathlib import Path

from common.errors import UserError
from compliance.log import rules
from compliance.report.output import render, write
from compliance.review import points
from compliance.review.table import COLUMNS, Review, review
from compliance.sarif import clean
from compliance.verdict import GO


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    trees = "a round's folder, or submitters' folders; of two with one name the later replaces the earlier"
    add("trees", nargs="+", metavar="TREE", type=Path, help=trees)
    add("-o", "--output", metavar="FILE", type=Path, default=Path("review.html"))
    add("--csv", metavar="FILE", type=Path, help="default: beside the page, review.csv")
    add("--ruleset", choices=rules.RULESETS, help="default: what the folders and logs say")
    last = "the last day of submissions; default: the round's, if known"
    add("--deadline", metavar="YYYY-MM-DD", help=last)


def run(options: argparse.Namespace) -> int:
    """Writes the page and the CSV file, and prints a summary; returns 1 if a submission is not go, or one vanished.

    Raises UserError: a tree holds no submission, the deadline is not a date, or a file cannot be written.
    """
    try:
        deadline = date.fromisoformat(options.deadline) if options.deadline else None
    except ValueError:
        raise UserError(f"--deadline {options.deadline}: not a date; write it as 2026-10-16") from None
    whole = review(options.trees, options.ruleset, deadline)
    table = options.csv or options.output.with_suffix(".csv")
    if table.resolve() == options.output.resolve():
        raise UserError(f"{table}: the page and the table need two names")
    write(options.output, page(whole))
    write(table, as_csv(whole.rows))
    print("\n".join(map(clean, lines(whole))))
    print(f"Wrote {options.output} and {table}.")
    return int(bool(whole.vanished) or any(one.answer != GO for one in whole.verdicts.values()))


def lines(whole: Review) -> list[str]:
    """Returns the summary: what changed between uploads, who is not go, which points came late, and the totals."""
    text = [f"{one.kind}: {one.organisation}: {one.name}: {one.text}" for one in whole.changes]
    text += [f"{name}: {one.line}" for name, one in whole.verdicts.items() if one.answer != GO]
    text += whole.remarks
    too_late = (row for row in whole.rows if row["in_time"] == "no")
    late = Counter((row["benchmark"], one) for row in too_late for one in row["points"].split("; "))
    text += [f"points not in time: {name}: {one}, for {count} folders" for (name, one), count in late.items()]
    answers = Counter(row["verdict"] for row in whole.rows)
    told = ", ".join(f"{count} {answer}" for answer, count in sorted(answers.items()))
    text.append(
        f"round {whole.ruleset or 'unknown'}: {len(whole.verdicts)} organisations, {len(whole.rows)} folders of runs"
        f" ({told or 'none'}), {len(whole.vanished)} vanished"
    )
    return text


def as_csv(rows: list[dict[str, object]]) -> str:
    """Returns the table; text that a spreadsheet would compute gets an apostrophe in front."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        odd = {name: f"'{cell}" for name, cell in row.items() if str(cell)[:1] in ("=", "+", "-", "@")}
        writer.writerow(row | {name: cell for name, cell in odd.items() if isinstance(row[name], str)})
    return text.getvalue()


def page(whole: Review) -> str:
    """Returns the HTML of the review; it needs no network."""
    origins = sorted(whole.origins.items(), key=lambda pair: (pair[0].benchmark, pair[0].batch))
    used = []
    for one, count in origins:
        last = points.due(one.benchmark, whole.ruleset, whole.deadline)
        used.append({"point": one, "folders": count, "due": last, "in_time": points.in_time((one,), last)})
    return render("review.html", review=whole, points=used, summary=lines(whole)[-1])
