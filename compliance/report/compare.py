"""Implements `timetotrain compare A B`: compares two runs or two folders of runs."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.report import charts
from compliance.report.output import aligned, minutes, value
from compliance.report.published import scores_beside
from compliance.submission.scores import ScoreCard, score_directory

_SIZES = ("global_batch_size", "train_samples", "eval_samples")
_LANES = ("init", "train", "eval", "gap")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", type=Path, help="a log, or a folder of result logs")
    parser.add_argument("b", metavar="B", type=Path, help="the same kind of thing")
    parser.add_argument("--all", action="store_true", help="show equal values too")


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; always returns 0, even if the two differ.

    Raises UserError if a side does not exist, or holds no result log.
    """
    sides = args.a, args.b
    cards = [score_directory(side) for side in sides]
    for side, card in zip(sides, cards):
        if not any(run.header for run in card.runs):
            raise UserError(f"{side}: no record of a log; name a log, or a folder of them")
    rows = compare(*cards)
    table_rows = [row for row in rows if args.all or row[1] != row[2]]
    table = [("", f"A {args.a}", f"B {args.b}", "B / A"), *table_rows] if table_rows else []
    print("\n".join(aligned([[cell[:60] or "-" for cell in row] for row in table])))
    if len(table_rows) < len(rows):
        print(f"{len(rows) - len(table_rows)} of {len(rows)} are equal or not given; --all shows them.")
    return 0


def compare(a: ScoreCard, b: ScoreCard) -> list[tuple[str, str, str, str]]:
    """Compares two folders of runs: header, times, quality, and every setting of either side.

    Returns (name, a's value, b's value, b / a of positive numbers), as text; "" for what a side does not have.
    """
    sides = [_facts(card) for card in (a, b)]
    rows = []
    for name in dict.fromkeys(name for side in sides for name in side):
        first, second = (side.get(name) for side in sides)
        form = minutes if name.endswith(" minutes") else value
        texts = ("" if one is None else form(one) for one in (first, second))
        rows.append((name, *texts, _ratio(first, second)))
    return rows


def _facts(card: ScoreCard) -> Mapping[str, object]:
    first, times = card.runs[0], [one for one in card.minutes if one is not None]
    timelines = [line for run in card.runs if (line := charts.timeline(run))]
    lanes = {
        f"{lane}, minutes": fmean(line.lanes[place].total_ms for line in timelines) / 60_000
        for place, lane in enumerate(_LANES if timelines else ())
    }
    quality = {
        f"quality {metric}".strip(): fmean(run.quality[metric] for run in card.runs if metric in run.quality)
        for metric in charts.metrics(card.runs)
        if any(metric in run.quality for run in card.runs)
    }
    return {
        "benchmark": card.benchmark, "organization": card.org, "system": card.system, "rules": card.ruleset,
        "division": first.header.get("submission_division"), "smoke run": "yes" if card.smoke else "no",
        "accelerators": scores_beside(card)[0], "runs": len(card.runs), "successful runs": card.converged,
        "score, minutes": card.score, "fastest, minutes": min(times, default=None),
        "slowest, minutes": max(times, default=None), "last epoch, mean": card.epochs, **lanes, **quality,
        **{key: first.header[key] for key in _SIZES if key in first.header}, **first.settings,
    }  # fmt: skip


def _ratio(a: object, b: object) -> str:
    """Returns the ratio b / a, or "" if it has no meaning."""
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) and one > 0 for one in (a, b))
    try:
        return f"{b / a:.4g}" if numbers and a != b else ""
    except OverflowError:  # An integer has hundreds of digits.
        return ""
