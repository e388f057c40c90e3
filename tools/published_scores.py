"""Computes compliance/data/published_scores_later.csv from the published results of rounds v1.0 to v5.1.

    python -m tools.published_scores FOLDER

FOLDER has one folder per round (v1.0, ..., v5.1), with the submitters' folders from the repository
mlcommons/training_results_<round>: `<org>/results/<system>/<benchmark>/result_*.txt` (and scaling.json, if the review
committee wrote one) and `<org>/systems/<system>.json`. Scores follow compliance/submission/scores.py: the olympic mean
of the runs that say success and reach the round's target, times the factor in scaling.json. Folders are left out and
counted if they have no score, belong to a division other than closed, or lack a number of accelerators.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common.errors import UserError
from common.files import write_csv
from compliance.submission import rounds
from compliance.submission.runs import number
from compliance.submission.scores import ScoreCard, result_folders, score_directory
from tools.published import command, folders

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
    for name, place in folders(root, ROUNDS):
        ruleset = f"{name[1:]}.0"
        for folder in result_folders(place):
            try:
                card = score_directory(folder, ruleset, results=[])
            except UserError:
                left_out["cannot be read"] += 1
                continue
            if reason := _unfit(card, ruleset):
                left_out[reason] += 1
                continue
            org = folder.relative_to(place).parts[0]
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
    return command(__doc__, arguments, 1, _write)


def _write(root: str) -> str:
    left_out: Counter = Counter()
    found = list(rows(Path(root), left_out))
    write_csv(TARGET, FIELDS, found, line_end="\n")
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    return f"Wrote {TARGET.name}: {len(found)} scores; left out: {reasons or 'none'}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
