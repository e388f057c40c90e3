"""Compares plans with published results: python -m lab.bench.plan_published FOLDER

FOLDER has one folder per round (v3.1 to v6.0), with the submitters' folders of mlcommons/training_results_<round>.

speed: of the first log of each closed folder with a score, minutes of the whole run from its first 20 to 200 steps (or
the first three spans between evaluations, if it has no steps) and its samples to converge, `run`; and minutes of
the folder's score from the reference's samples alone, `score`: median and 90th percentile of the larger over the
smaller, less one, in percent.

later: the 20 scores of v6.0, each planned from the scores of earlier rounds alone.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError, answering
from common.files import ROOT
from compliance.report.published import published_score
from compliance.submission import rcp
from compliance.submission.runs import read_run
from compliance.submission.scores import result_files, result_folders
from lab.bench import kernel_fit
from lab.bench.harness import scripts
from lab.bench.harness.scripts import head
from systems.forecast import accelerators, law, scores
from systems.forecast.machine import Machine
from timetotrain.forecast import measured, plan_round, plan_time

RESULTS = ROOT / "lab/bench/results/plan.json"
_STEPS, _SPANS = 200, 3
_NEWEST = "v6.0"


def speeds(place: Path, name: str) -> tuple[dict[str, Any], Counter]:
    """The errors of a round's logs, and why others were left out."""
    runs, means, left_out = [], [], Counter()
    for folder in result_folders(place):
        path, ruleset = result_files(folder)[0], f"{name[1:]}.0"
        try:
            run = read_run(path, ruleset)
            speed = measured.of_log(path, _STEPS, _SPANS)
        except UserError as error:
            left_out["few steps" if "steps" in str(error) else "cannot be read"] += 1
            continue
        batches = [
            one
            for one in plan_round.batches(run.benchmark, ruleset, None, [int(run.batch or 0)])
            if one.size == run.batch
        ]
        if not run.complies or run.to_converge is None or not batches:
            left_out["no result"] += 1
            continue
        counted = run.to_converge > measured.MOST_EPOCHS or batches[0].unit != "epochs"
        examples = run.to_converge * (1.0 if counted else speed.epoch or 0.0)
        runs.append(math.log(speed.minutes(examples, run.evaluated) / run.minutes))
        org, system = folder.relative_to(place).parts[0], folder.parts[-2]
        score = published_score(ruleset, org, system, run.benchmark)
        if score and batches[0].mean:
            plan = plan_time.from_speed(run.benchmark, ruleset, batches[0], speed)
            means.append((math.log(plan.minutes / score), plan.low <= score <= plan.high))
    inside = sum(within for _, within in means) / len(means) if means else None
    wrong = [error for error, _ in means]
    return {
        "logs": len(runs),
        "run": _error(runs),
        "scores": len(means),
        "score": _error(wrong),
        "inside": inside,
    }, left_out


def _error(logs: Sequence[float]) -> list[float]:
    each = [100 * math.expm1(abs(value)) for value in logs]
    return [round(float(np.percentile(each, share)), 1) for share in (50, 90)] if each else []


def later() -> Iterator[dict[str, Any]]:
    """The scores of the newest round, beside plans from earlier rounds alone."""
    earlier = [row for row in scores.rows() if row.year < scores.ROUNDS[_NEWEST]]
    fitted, ruleset = law.Law.fit(earlier, kernel_fit.fit(earlier)), f"{_NEWEST[1:]}.0"
    chips = {(row.org, row.system): row.chip for row in scores.published() if row.round == _NEWEST}
    with (scores.DATA / f"published_scores_{_NEWEST}.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            name, many = chips[row["org"], row["system"]], int(row["n_accelerators"])
            chip = accelerators.table()[name] | {"name": name}
            machine = Machine(row["system"], many, min(many, chip["per_node"]), chip)
            size = int(float(row["global_batch_size"] or 0))
            plan = plan_time.from_scores(row["benchmark"], ruleset, machine, fitted)
            by_size = {
                one.size: one
                for one in plan_round.batches(row["benchmark"], ruleset, None, [size] if size else [])
            }
            if plan and size:
                plan = plan_time.with_batch(plan, row["benchmark"], ruleset, machine, by_size[size])
            minutes = float(row["score_minutes"])
            yield {
                "org": row["org"], "benchmark": row["benchmark"], "accelerators": f"{many} x {name}",
                "minutes": minutes,
                "plan": plan and [round(x, 2) for x in (plan.minutes, plan.low, plan.high)],
                "inside": plan and plan.low <= minutes <= plan.high,
                "batch": size or None, "admitted": by_size[size].admitted if size else None,
                "point": size in {point.batch for point in rcp.pruned(row["benchmark"], ruleset)} if size else None,
            }  # fmt: skip


@answering()
def main() -> int:
    """Writes the results. Raises UserError if the folder holds no round."""
    folder = scripts.with_folder(scripts.parser(__doc__), "the folder with v3.1 ... v6.0").folder
    rounds = {}
    for place in sorted(folder.glob("v*.*")):
        if place.is_dir():
            rounds[place.name], left_out = speeds(place, place.name)
            print(place.name, rounds[place.name], dict(left_out), flush=True)
    if not rounds:
        raise UserError(f"{folder}: holds no round; name the folder with v3.1 ... v6.0")
    content = head() | {"speed": rounds, "later": list(later())}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
