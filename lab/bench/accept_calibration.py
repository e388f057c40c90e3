"""Measures how well the probabilities of `accept` hold on published folders.

`python -m lab.bench.accept_calibration FOLDER [--output FILE]`: FOLDER holds checkouts of the
public repositories mlcommons/training_results_v1.0 ... v6.0 (`ORG/results/`, `ORG/systems/`). Of every closed folder
with a reference point the script takes k = 1 ... n-1 of the n runs at random, says the probability that all n pass the
convergence test, and that their score is scaled, and compares with what the n runs gave. Peers: the base rate (the
share of all cases that passed), and the runs so far taken for all (1 if their mean passes, else 0). Folders whose logs
count epochs where the reference counts samples are left out: their answer is known at once.
"""

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tqdm import tqdm

from compliance.acceptance import probability as model
from compliance.acceptance.probability import Estimate, Question, step_of
from compliance.log.check_log import LogResult, check_log
from compliance.submission import rcp, rounds
from compliance.submission.tree import judge_tree
from compliance.submission.verdict import ResultFolder
from lab.bench.harness import scripts
from lab.bench.harness.scripts import head, write

FITTED = ((1, 0), (4, 1))  # the rounds that the model's constants come from
BINS = 10


class Case(NamedTuple):
    """One question and what happened: whether all runs passed, their factor, and what the runs so far would give."""

    round: str
    asked: Question
    passed: bool
    factor: float
    so_far: bool
    scaled_so_far: bool

    @property
    def fitted(self) -> bool:
        return FITTED[0] <= rounds.number(self.round) <= FITTED[1]


class Published(NamedTuple):
    """One published folder of runs; `org` is the submitter."""

    org: str
    folder: ResultFolder

    @property
    def other_unit(self) -> bool:
        """Whether the logs count epochs where the reference counts samples (bert in 1.0 and 1.1), or a part of both."""
        judged = self.folder.convergence
        return judged.reference is not None and judged.mean < judged.reference / 2

    @property
    def place(self) -> str:
        return f"{self.org}/results/{self.folder.system}/{self.folder.benchmark}"


def trees(folder: Path) -> list[Path]:
    """Returns the submitters' folders of all rounds that have convergence points."""
    found = [path for path in folder.glob("training_results_v*/*") if (path / "results").is_dir()]
    return sorted(path for path in found if "v0." not in path.parent.name)


def read(org: Path) -> list[Published]:
    """Returns the folders of one submitter that the rules compare with convergence points."""
    outcome = judge_tree(org, None, None, _in_this_process)
    return [
        Published(org.name, folder)
        for one in outcome.submissions
        for folder in one.folders
        if folder.convergence is not None
    ]


def _in_this_process(paths: Sequence[str], ruleset: str | None, division: str | None) -> list[LogResult]:
    return [check_log(path, ruleset, division) for path in paths]


def cases(published: Published) -> list[Case]:
    """Returns a case for each number of runs; [] if there is nothing to estimate."""
    folder, judged = published.folder, published.folder.convergence
    if judged.least is None or len(folder.runs) != folder.needed or published.other_unit:
        return []
    point, _ = rcp.find(folder.benchmark, folder.ruleset, folder.batch)
    draw = random.Random(f"{folder.ruleset} {published.place}")
    passed = judged.verdict == rcp.PASS
    drawn = []
    for count in range(1, folder.needed):
        facts = draw.sample(folder.runs, count)
        known = tuple(one.to_converge for one in facts)
        asked = Question(
            point.mean, point.stdev, point.least, folder.needed, folder.may_fail, known, 0, step_of(facts)
        )
        mean = fmean([one for one in known if one is not None] or [float("inf")])
        so_far = mean >= point.least
        scaled = so_far and mean < point.mean
        drawn.append(Case(folder.ruleset, asked, passed, judged.scaling if passed else 1.0, so_far, scaled))
    return drawn


def estimate(asked: Question) -> Estimate:
    """Returns the estimate of `accept`."""
    return model.estimate(asked, look_ahead=False)


class Event(NamedTuple):
    """Something that happens or not: what is said, what the peer says, what happened, in a case."""

    said: Callable[[Estimate], float]
    peer: Callable[[Case], bool]
    happened: Callable[[Case], bool]


EVENTS = {
    "passes": Event(lambda made: made.passes, lambda case: case.so_far, lambda case: case.passed),
    "scaled": Event(lambda made: made.scaled, lambda case: case.scaled_so_far, lambda case: case.factor > 1),
}


def calibration(asked: Sequence[Case], made: Sequence[Estimate], event: Event) -> dict:
    """Returns predicted and observed shares by bin, and Brier scores of the model, of the base rate and of the peer."""
    said = [event.said(one) for one in made]
    happened = [event.happened(case) for case in asked]
    base = fmean(happened)
    bins = []
    for index in range(BINS):
        inside = [at for at, value in enumerate(said) if min(int(value * BINS), BINS - 1) == index]
        row = {"from": index / BINS, "to": (index + 1) / BINS, "cases": len(inside)}
        if inside:
            row["predicted"] = round(fmean(said[at] for at in inside), 4)
            row["observed"] = round(fmean(happened[at] for at in inside), 4)
        bins.append(row)
    return {
        "cases": len(asked),
        "bins": bins,
        "brier": _brier(said, happened),
        "brier_base_rate": round(base * (1 - base), 5),
        "brier_runs_so_far": _brier([event.peer(case) for case in asked], happened),
        "base_rate": round(base, 4),
    }


def _brier(said: Sequence[float], happened: Sequence[bool]) -> float:
    return round(fmean((one - other) ** 2 for one, other in zip(said, happened)), 5)


def main() -> None:
    """Reads the trees, measures, prints a summary and writes the files."""
    parser = scripts.parser(__doc__, "accept_calibration.json")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = scripts.with_folder(parser, "the folder with training_results_v1.0 ... v6.0")
    with ProcessPoolExecutor(options.processes) as pool:
        orgs = trees(options.folder)
        folders = [
            one for group in tqdm(pool.map(read, orgs), total=len(orgs), unit=" trees") for one in group
        ]
        asked = [case for one in folders for case in cases(one)]
        done = pool.map(estimate, [case.asked for case in asked], chunksize=32)
        estimates = list(tqdm(done, total=len(asked), unit=" cases", mininterval=10))
    subsets = {
        "all": range(len(asked)),
        "fitted": [at for at, case in enumerate(asked) if case.fitted],
        "later": [at for at, case in enumerate(asked) if not case.fitted],
    }
    result = {
        **head(),
        "folders": len(folders),
        "calibration": {
            event: {
                part: calibration([asked[at] for at in chosen], [estimates[at] for at in chosen], how)
                for part, chosen in subsets.items()
                if chosen
            }
            for event, how in EVENTS.items()
        },
    }
    write(result, options.output)
    for event, rows in result["calibration"].items():
        print(
            event, {part: (row["cases"], row["brier"], row["brier_base_rate"]) for part, row in rows.items()}
        )


if __name__ == "__main__":
    main()
