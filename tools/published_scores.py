"""Computes compliance/data/published_scores_later.csv from the published results of rounds v1.0 to v5.1.

    python -m tools.published_scores FOLDER

FOLDER has one folder per round (v1.0, ..., v5.1), with the submitters' folders from the repository
mlcommons/training_results_<round>: `<org>/results/<system>/<benchmark>/result_*.txt` (and scaling.json, if the review
committee wrote one) and `<org>/systems/<system>.json`. Scores follow compliance/submission/scores.py: the olympic mean
of the runs that say success and reach the round's target, times the factor in scaling.json. Folders are left out and
counted if they have no score, belong to a division other than closed, or lack a number of accelerators.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common.errors import UserError
from common.files import write_csv
from compliance.submission import rounds
from compliance.submission.runs import number
from compliance.submission.scores import ScoreCard, result_folders, score_directory

ROUNDS = ("v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1")
FIELDS = (
    "round",
    "org",
    "system",
    "benchmark",
    "n_accelerators",
    "score_minutes",
    "global_batch_size",
    "to_converge",
)
TARGET = Path(__file__).resolve().parents[1] / "compliance" / "data" / "published_scores_later.csv"


def rows(root: Path, left_out: Counter) -> Iterator[tuple[str, ...]]:
    """The rows of all rounds below `root`, in order; `left_out` counts, by reason, the folders that give no row."""
    for name in ROUNDS:
        if not (root / name).is_dir():
            raise UserError(f"{root / name}: no such folder; it has the results of training_results_{name}")
        ruleset = f"{name[1:]}.0"
        for folder in result_folders(root / name):
            try:
                card = score_directory(folder, ruleset, results=[])
            except UserError:
                left_out["cannot be read"] += 1
                continue
            if reason := _unfit(card, ruleset):
                left_out[reason] += 1
                continue
            org = folder.relative_to(root / name).parts[0]
            batch = number(card.runs[0].header.get("global_batch_size"))
            yield (
                name, org, card.system, card.benchmark, str(card.accelerators), f"{card.score:.4f}",
                "" if batch is None else f"{batch:.10g}", "" if card.epochs is None else f"{card.epochs:.10g}",
            )  # fmt: skip


def _unfit(card: ScoreCard, ruleset: str) -> str:
    if card.benchmark not in rounds.benchmarks(ruleset):
        return "no benchmark of the round"
    if card.score is None:
        return "no score"
    if any(run.header.get("submission_division") != "closed" for run in card.runs):
        return "not closed"
    return "" if card.accelerators else "no number of accelerators"


def main(arguments: list[str]) -> int:
    """Writes the table and reports what was left out."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    left_out: Counter = Counter()
    try:
        found = list(rows(Path(arguments[0]), left_out))
        write_csv(TARGET, FIELDS, found, line_end="\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    print(f"Wrote {TARGET.name}: {len(found)} scores; left out: {reasons or 'none'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
