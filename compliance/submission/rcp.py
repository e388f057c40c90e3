"""Reference convergence points: does a submission converge no faster than the reference could?

The reference was run several times at some batch sizes (data/rcp.json, from mlperf_logging/rcp_checker). The check
compares a submission's olympic mean of epochs (or samples) to converge with the point of its batch size, or with the
line between the two nearest points. The rules: mlcommons/training_policies, training_rules.adoc, "Reference Convergence
Points"; the computation follows mlperf_logging/rcp_checker/rcp_checker.py 4.1.68.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import NamedTuple

from compliance.log.logs import text_of
from compliance.submission import rounds
from compliance.submission.runs import Run
from compliance.submission.students_t import quantile

UNREAD, NO_BATCH = "unread", "no batch"
PASS, FAIL, NO_REFERENCE, UNDECIDED = "pass", "fail", "no reference", "not checked"

_DATA = Path(__file__).parents[1] / "data" / "rcp.json"
_ALPHA = 0.05  # rcp_checker.py, RCP_Checker.alpha
_TOLERANCE = 0.0001  # rcp_checker.py, RCP_Checker.tolerance: stops its bisection
# rcp_checker.py, _eval_submission_record; training_rules.adoc, "v5.0 Specific Rules": count one evaluation earlier.
_EARLIER = {"llama31_405b": 46_080}
_EARLIER_FROM = (5, 0)
_FIRST_ROUND = (1, 0)
# Above the largest published ratio of a run's samples (or epochs) to converge to those of its folder's middle run.
_MOST_OF_MEDIAN = 10.0
# mean / reference below this: the logs count epochs where the reference counts samples (bert of 1.0 and 1.1).
_OTHER_UNIT = 0.01
_WITHOUT = frozenset({"minigo"})  # package_checker.py: minigo has no convergence points


class Point(NamedTuple):
    """The reference at one batch size: mean and standard deviation to converge, and the least accepted mean."""

    batch: float
    mean: float
    stdev: float
    least: float


class Convergence(NamedTuple):
    """The judgment of one folder of runs.

    `verdict` is PASS, FAIL, NO_REFERENCE or UNDECIDED; `reason` is a sentence. `mean` is the runs' olympic mean to
    converge; `reference` and `least` are the reference's mean and the least accepted mean at `batch`; each may be None.
    `scaling` is the factor of the score: the reference's mean over the runs' mean, at least 1. `kind` says what the
    runs were compared with: "point", "between" (two points), "smallest" (the point of the smallest batch), or "";
    UNREAD: a log hides when its run converged; NO_BATCH: the logs have no batch size.
    """

    verdict: str
    reason: str
    batch: float | None = None
    mean: float | None = None
    reference: float | None = None
    least: float | None = None
    scaling: float = 1.0
    kind: str = ""

    @property
    def margin(self) -> float | None:
        """Returns (mean - least) / least: how far the mean is above the least accepted one; negative if it fails."""
        return None if self.mean is None or not self.least else self.mean / self.least - 1


def applies(ruleset: str, benchmark: str, division: object) -> bool:
    """Whether the rules compare a folder of this round, benchmark and division with convergence points."""
    return rounds.number(ruleset) >= _FIRST_ROUND and division == "closed" and benchmark not in _WITHOUT


@cache
def reference() -> dict[str, dict]:
    """Returns {benchmark: {"source", "rounds"}} from data/rcp.json."""
    return json.loads(_DATA.read_text(encoding="utf-8"))


@cache
def table(benchmark: str, ruleset: str) -> tuple[tuple[float, tuple[float, ...]], ...]:
    """Returns the reference's (batch size, each run's epochs or samples to converge), by batch size; () if none."""
    tables = reference().get(benchmark, {}).get("rounds", {})
    rows = tables.get(ruleset, ())
    while isinstance(rows, str):  # refers to another round with the same table
        rows = tables[rows]
    return tuple((row["batch"], tuple(row["to_converge"])) for row in rows)


@cache
def points(benchmark: str, ruleset: str) -> tuple[Point, ...]:
    """Returns the reference's points by batch size, before pruning."""
    drop, runs = rounds.may_fail(benchmark), rounds.required_runs(benchmark, ruleset)
    rows = [(batch, olympic_mean(of, drop), pstdev(of), len(of)) for batch, of in table(benchmark, ruleset)]
    return tuple(Point(*row, _least(*row[1:], count - 2 * drop, runs)) for *row, count in rows)


@cache
def pruned(benchmark: str, ruleset: str) -> tuple[Point, ...]:
    """Returns the points that a submission is compared with.

    They start at the batch size of the fastest point. A point above the line between its neighbors is left out.
    """
    return prune(points(benchmark, ruleset), rounds.required_runs(benchmark, ruleset))


def prune(every: Sequence[Point], runs: int) -> tuple[Point, ...]:
    """Returns those of the points, by batch size, that a submission of `runs` runs is compared with."""
    fastest = min(every, key=lambda point: point.mean, default=None)
    line = [point for point in every if point.batch >= fastest.batch]
    at = 1
    while at < len(line) - 1:
        if line[at].mean > _between(line[at].batch, line[at - 1], line[at + 1], runs).mean:
            del line[at]
        else:
            at += 1
    return tuple(line)


def judge(benchmark: str, ruleset: str, batch: object, to_converge: Sequence[float | None]) -> Convergence:
    """Judges the runs of one folder.

    Args:
      benchmark: as the logs name it.
      ruleset: the round, "1.0.0" or later.
      batch: `global_batch_size` of all runs; None if they have none.
      to_converge: epochs (or samples) of each run; None for a run that did not converge.
    """
    drop = rounds.may_fail(benchmark)
    if batch is None:
        return Convergence(FAIL, "the logs give no global_batch_size", kind=NO_BATCH)
    if isinstance(batch, bool) or not isinstance(batch, (int, float)) or not 0 < batch < 1e18:
        return Convergence(
            FAIL, f"global_batch_size is {text_of(batch, 40)}, which is not a batch size", kind=NO_BATCH
        )
    failed = sum(value is None for value in to_converge)
    if failed > drop:
        return Convergence(FAIL, f"{failed} runs did not converge; at most {drop} may", batch)
    if len(to_converge) <= 2 * drop:
        requirement = f"the olympic mean takes more than {2 * drop}"
        runs = "1 run" if len(to_converge) == 1 else f"{len(to_converge)} runs"
        return Convergence(UNDECIDED, f"{runs}; {requirement}", batch)
    mean = olympic_mean([math.inf if value is None else value for value in to_converge], drop)
    point, kind = find(benchmark, ruleset, batch)
    if point is None:
        reason = f"the round has no convergence points of {benchmark}"
        if candidates := pruned(benchmark, ruleset):
            reason = f"no reference for batch size {batch:g}; the largest has {candidates[-1].batch:g}"
        return Convergence(NO_REFERENCE, reason, batch, mean)
    least = point.least
    scaling = max(1.0, point.mean / mean) if mean > 0 else 1.0
    facts = (batch, mean, point.mean, least, scaling, kind)
    if mean >= least:
        return Convergence(PASS, "converges no faster than the reference may", *facts)
    if kind == "smallest":
        reason = "faster than the reference at its smallest batch size, and there is none for this batch size"
        return Convergence(NO_REFERENCE, reason, *facts)
    if mean < _OTHER_UNIT * point.mean:
        return Convergence(FAIL, "the logs count epochs, the reference counts samples", *facts)
    return Convergence(FAIL, "converges faster than the reference may", *facts)


def of_runs(benchmark: str, ruleset: str, runs: Sequence[Run]) -> Convergence:
    """Judges the runs of one folder.

    A run whose log hides when it converged fails the test: a run that is left out would lower the factor.
    """
    batches = {one.batch for one in runs}
    if len(batches) > 1:
        sizes = ", ".join(sorted(str(batch) for batch in batches)[:5])
        return Convergence(FAIL, f"the runs have different values of global_batch_size: {sizes}")
    for one in runs:
        if one.unread:
            return Convergence(FAIL, f"{Path(one.path).name}: {one.unread}", kind=UNREAD)
    lengths = {one.path: one.to_converge for one in runs if one.to_converge is not None}
    for path, value in lengths.items():
        if value > _MOST_OF_MEDIAN * (usual := median(lengths.values())):
            reason = f"{Path(path).name} converges after {value:,.6g}, the middle run after {usual:,.6g}"
            return Convergence(FAIL, reason, kind=UNREAD)
    batch = runs[0].header.get("global_batch_size") if runs[0].batch is None else runs[0].batch
    return judge(benchmark, ruleset, batch, [one.to_converge for one in runs])


def olympic_mean(values: Sequence[float], drop: int) -> float:
    """Returns the mean without the `drop` lowest and the `drop` highest values; needs more than 2 * `drop` values."""
    return fmean(sorted(values)[drop : len(values) - drop])


def find(benchmark: str, ruleset: str, batch: float) -> tuple[Point | None, str]:
    """Returns (point to compare with, kind). A batch above all points has none, one below all gets the smallest."""
    point, kind = nearest(pruned(benchmark, ruleset), batch, rounds.required_runs(benchmark, ruleset))
    if point is not None and rounds.number(ruleset) >= _EARLIER_FROM:
        point = point._replace(least=point.least - _EARLIER.get(benchmark, 0))
    return point, kind


def nearest(points: Sequence[Point], batch: float, runs: int) -> tuple[Point | None, str]:
    """Returns (point to compare `runs` runs with, kind), of pruned points, as `find` does."""
    for point in points:
        if point.batch == batch:
            return point, "point"
    below = [point for point in points if point.batch < batch]
    above = [point for point in points if point.batch > batch]
    if not above:
        return None, ""
    if not below:
        return above[0], "smallest"
    return _between(batch, below[-1], above[0], runs), "between"


def _between(batch: float, low: Point, high: Point, runs: int) -> Point:
    """Returns the point on the line between two others, as if its reference had twice as many runs as a score needs."""
    part = (batch - low.batch) / (high.batch - low.batch)
    mean = low.mean + (high.mean - low.mean) * part
    stdev = low.stdev + (high.stdev - low.stdev) * part
    return Point(batch, mean, stdev, _least(mean, stdev, 2 * runs, runs))


def _least(mean: float, stdev: float, reference_runs: int, runs: int) -> float:
    """Returns the least mean of `runs - 2` runs that a one-sided t-test at 0.05 cannot tell from the reference's mean.

    Both sides have the standard deviation `stdev`. The search copies rcp_checker.py's, including its tolerance, so that
    verdicts agree to the last digit.
    """
    if stdev == 0:
        return mean
    ours = runs - 2
    error = stdev * math.sqrt(1 / reference_runs + 1 / ours)
    bound = mean - quantile(1 - _ALPHA, reference_runs + ours - 2) * error
    low, high = 0.0, mean
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if middle > bound else (middle, high)
    return (low + high) / 2
