"""Measures `accept` on published folders: calibration, and the two prunings.

`python -m lab.bench.accept_calibration FOLDER [--fit] [--kept FILE] [--output FILE]`: FOLDER holds checkouts of the
public repositories mlcommons/training_results_v1.0 ... v6.0 (`ORG/results/`, `ORG/systems/`). Of every closed folder
with a reference point the script takes k = 1 ... n-1 of the n runs at random, says the probability that all n pass the
convergence test, and that their score is scaled, and compares with what the n runs gave. Peers: the base rate (the
share of all cases that passed), and the runs so far taken for all (1 if their mean passes, else 0). Folders whose logs
count epochs where the reference counts samples are left out: their answer is known at once. --fit tries other constants
of the model on rounds 1.0 to 4.1, and writes nothing.
"""

import os
import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tqdm import tqdm

from compliance.acceptance import hull
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
# The constants that --fit varies, one after the other, and the values that it tries.
TRIED = {
    "NEAR_CENTRE": (1.0, 1.005, 1.01),
    "NEAR_TAU": (0.005, 0.01, 0.02),
    "FAR": (0.2, 0.3, 0.4, 0.5),
    "FAR_CENTRE": (1.03, 1.05, 1.08),
    "FAR_TAU": (0.05, 0.08),
    "NU": (4.0, 8.0, 16.0, 32.0),
    "FLOOR": (0.002, 0.005, 0.01, 0.02),
}


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


def read_all(folder: Path, kept: Path | None, pool: ProcessPoolExecutor) -> list[Published]:
    """Returns the folders of all submitters; `kept` is a pickle of this script that replaces or receives them."""
    if kept is not None and kept.is_file():
        return [Published(*one) for one in pickle.loads(kept.read_bytes())]
    orgs = trees(folder)
    found = [one for group in tqdm(pool.map(read, orgs), total=len(orgs), unit=" trees") for one in group]
    if kept is not None:
        kept.write_bytes(pickle.dumps([tuple(one) for one in found]))
    return found


def _in_this_process(paths: Sequence[str], ruleset: str | None, division: str | None) -> list[LogResult]:
    return [check_log(path, ruleset, division) for path in paths]


def cases(published: Published) -> list[Case]:
    """Returns a case for each number of runs; [] if there is nothing to estimate."""
    folder, judged = published.folder, published.folder.convergence
    if judged.least is None or len(folder.runs) != folder.needed or published.other_unit:
        return []
    kept = rcp.pruned(folder.benchmark, folder.ruleset)
    point, _ = rcp.find(folder.benchmark, folder.ruleset, folder.batch, kept)
    draw = random.Random(f"{folder.ruleset} {published.place}")
    passed = judged.verdict == rcp.PASS
    found = []
    for count in range(1, folder.needed):
        facts = draw.sample(folder.runs, count)
        known = tuple(one.to_converge for one in facts)
        asked = Question(
            point.mean, point.stdev, point.least, folder.needed, folder.may_fail, known, 0, step_of(facts)
        )
        mean = fmean([one for one in known if one is not None] or [float("inf")])
        so_far = mean >= point.least
        scaled = so_far and mean < point.mean
        found.append(Case(folder.ruleset, asked, passed, judged.scaling if passed else 1.0, so_far, scaled))
    return found


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


def by_runs(asked: Sequence[Case], made: Sequence[Estimate]) -> list[dict]:
    """Returns Brier scores and the error of the expected factor by the share of runs that are in."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, case in enumerate(asked):
        runs, needed = len(case.asked.known), case.asked.runs
        name = "1 run" if runs == 1 else "all but one" if runs == needed - 1 else ""
        groups[name or ("up to half" if 2 * runs <= needed else "more than half")].append(at)
    rows = []
    for name in ("1 run", "up to half", "more than half", "all but one"):
        inside = groups[name]
        passed = [at for at in inside if asked[at].passed]
        row: dict = {"runs": name, "cases": len(inside)}
        for event, how in EVENTS.items():
            happened = [how.happened(asked[at]) for at in inside]
            base = fmean(happened)
            row[event] = {
                "brier": _brier([how.said(made[at]) for at in inside], happened),
                "base_rate": round(base * (1 - base), 5),
                "runs_so_far": _brier([how.peer(asked[at]) for at in inside], happened),
            }
        row["factor_error"] = round(fmean(abs(made[at].factor - asked[at].factor) for at in passed), 5)
        row["factor_error_of_1"] = round(fmean(abs(1 - asked[at].factor) for at in passed), 5)
        rows.append(row)
    return rows


def prunings(found: Sequence[Published]) -> dict:
    """Returns the tables and the published results in which the two prunings differ."""
    tables, every = [], 0
    for benchmark, entry in rcp.reference().items():
        for ruleset in entry["rounds"]:
            if not rcp.points(benchmark, ruleset):
                continue
            every += 1
            extra = hull.pruned_by_rule_alone(benchmark, ruleset)
            rows = [_by_both(benchmark, ruleset, point.batch) for point in extra]
            if rows:
                tables.append({"benchmark": benchmark, "round": ruleset, "points": rows})
    compared = [one for one in found if one.folder.convergence.reference is not None]
    results = [row for one in compared if (row := _difference(one))]
    return {"tables": every, "different": tables, "results": len(compared), "changed": results}


def _by_both(benchmark: str, ruleset: str, batch: float) -> dict:
    stock, _ = rcp.find(benchmark, ruleset, batch, rcp.pruned(benchmark, ruleset))
    rule, _ = rcp.find(benchmark, ruleset, batch, hull.written(benchmark, ruleset))
    means = {"batch": batch, "stock": stock.mean, "rule": rule.mean}
    return {**means, "stock_least": stock.least, "rule_least": rule.least}


def _difference(one: Published) -> dict | None:
    folder = one.folder
    values = [facts.to_converge for facts in folder.runs]
    both = hull.both(folder.benchmark, folder.ruleset, folder.convergence, values)
    if not both.note:
        return None
    place = {"round": folder.ruleset, "place": one.place, "batch": folder.batch}
    sides = {
        name: {"verdict": judged.verdict, "factor": round(hull.factor(judged), 6)}
        for name, judged in both._asdict().items()
    }
    return {**place, **sides}


def fit(asked: Sequence[Case]) -> Iterator[str]:
    """Yields a line for each constant: the values tried, best first, with the sum of both Brier scores."""
    sample = [case for case in asked if len(case.asked.known) in (1, 3, 5, 9)]
    for name, values in TRIED.items():
        scores = []
        for value in values:
            setattr(model, name, value)
            made = [model.estimate(case.asked, 300, look_ahead=False) for case in sample]
            score = sum(
                _brier([how.said(one) for one in made], [how.happened(case) for case in sample])
                for how in EVENTS.values()
            )
            scores.append((round(score, 5), value))
        setattr(model, name, min(scores, key=lambda one: (one[0], -one[1]))[1])
        yield f"{name}: " + ", ".join(f"{value:g} ({score})" for score, value in sorted(scores))


def failures(found: Sequence[Published]) -> dict[str, int]:
    """Returns how many published runs did not converge."""
    runs = [facts for one in found for facts in one.folder.runs]
    return {"runs": len(runs), "not_converged": sum(one.to_converge is None for one in runs)}


def main() -> None:
    """Reads the trees, measures, prints a summary and writes the files."""
    parser = scripts.parser(__doc__, "accept_calibration.json")
    parser.add_argument("--fit", action="store_true", help="try other constants on rounds 1.0 to 4.1")
    parser.add_argument(
        "--kept", type=Path, help="where the read folders are kept, for another run of this script"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = scripts.with_folder(parser, "the folder with training_results_v1.0 ... v6.0")
    with ProcessPoolExecutor(options.processes) as pool:
        found = read_all(options.folder, options.kept, pool)
        asked = [case for one in found for case in cases(one)]
        if options.fit:
            for line in fit([case for case in asked if case.fitted]):
                print(line)
            return
        done = pool.map(estimate, [case.asked for case in asked], chunksize=32)
        made = list(tqdm(done, total=len(asked), unit=" cases", mininterval=10))
    parts = {
        "all": range(len(asked)),
        "fitted": [at for at, case in enumerate(asked) if case.fitted],
        "later": [at for at, case in enumerate(asked) if not case.fitted],
    }
    result = {
        **head(),
        "folders": len(found),
        "predicted": sum(bool(cases(one)) for one in found),
        "other_unit": sum(one.other_unit for one in found),
        "rounds": sorted({one.folder.ruleset for one in found}),
        "runs": failures(found),
        "calibration": {
            event: {
                part: calibration([asked[at] for at in chosen], [made[at] for at in chosen], how)
                for part, chosen in parts.items()
                if chosen
            }
            for event, how in EVENTS.items()
        },
        "by_runs": by_runs(asked, made),
        "prunings": prunings(found),
    }
    write(result, options.output)
    for event, rows in result["calibration"].items():
        print(
            event, {part: (row["cases"], row["brier"], row["brier_base_rate"]) for part, row in rows.items()}
        )


if __name__ == "__main__":
    main()
