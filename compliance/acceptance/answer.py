"""Answers for one folder of runs: go, no-go or open, with probability, factor, reasons and advice."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from compliance.acceptance.probability import Estimate, Question, estimate, step_of
from compliance.findings import Finding
from compliance.submission import rcp
from compliance.submission.rcp import Convergence, Point
from compliance.submission.runs import Run
from compliance.submission.scaling import NAME
from compliance.verdict import GO, NO_GO

OPEN = "open"  # beside the verdicts of `check`: runs are missing, or the committee decides
_LONGEST_DAYS = 14  # the longest published run since 1.0 took 50 hours (v1.1, Google, bert)
GO_ON, STOP = 0.95, 0.05  # above: nothing to do but to go on; below: the runs cannot be expected to pass

_SHOWN = 3  # logs, and rules of a log, that a reason names


class Log(NamedTuple):
    """One log: its run, whether that has ended, and its errors that no later line can mend, one of each rule."""

    run: Run
    ended: bool
    errors: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        return self.run.path.name


def ended(run: Run, modified: float, now: float, stale_minutes: float, by_clock: bool = True) -> bool:
    """Whether a run has ended: it has run_stop, or nobody goes on writing its log.

    Args:
      run: as the log has it so far.
      modified: when the file was last written, in seconds since 1970.
      now: the time, likewise.
      stale_minutes: a log without run_stop that is older than this has ended.
      by_clock: whether the log's own times count; a log that was seen to grow may have a wrong clock.
    """
    if run.stopped is not None or modified < now - 60 * stale_minutes:
        return True
    # A copy of an old log is a new file.
    return by_clock and run.started is not None and run.started / 1000 < now - 86_400 * _LONGEST_DAYS


class Folder(NamedTuple):
    """One folder of runs.

    `needed` runs make a score, of which `may_fail` may fail. `tested`: the rules have a convergence test for it.
    `bypass`: the submitter set rcp-bypass, so that a failed test does not stop the upload. `scaling` is the score's
    factor so far: the convergence test's, or that of scaling.json.
    """

    name: str
    benchmark: str
    ruleset: str
    needed: int
    may_fail: int
    tested: bool
    logs: tuple[Log, ...]
    bypass: bool = False
    scaling: float = 1.0

    @property
    def ended(self) -> list[Log]:
        return [log for log in self.logs if log.ended]


class Answer(NamedTuple):
    """The answer for one folder.

    `probability` is None if no model gives one. `factor` is the (expected) factor of the score.
    """

    name: str
    answer: str
    runs: int
    needed: int
    probability: float | None
    factor: float | None
    reasons: tuple[str, ...]
    advice: str
    estimate: Estimate | None = None


def answer(folder: Folder) -> Answer:
    """Answers for one folder of runs, complete or under way."""
    runs = [log.run for log in folder.ended]

    def say(
        word: str,
        chance: float | None,
        factor: float | None,
        reasons: Sequence[str],
        *advice_and_more: object,
    ) -> Answer:
        about = folder.name, word, len(runs), folder.needed
        return Answer(*about, chance, factor, tuple(reasons), *advice_and_more)

    if refused := _refused_anyway(folder):
        reasons, advice = zip(*refused)
        return say(NO_GO, 0.0, None, reasons, "; ".join(advice))
    return (_complete if len(runs) >= folder.needed else _under_way)(folder, runs, say)


def _refused_anyway(folder: Folder) -> list[tuple[str, str]]:
    """Returns (why no further run can help, what to do instead); [] if one may help."""
    reasons = []
    if len(folder.logs) > folder.needed:
        reason = f"{len(folder.logs)} runs; a score takes {folder.needed} that follow each other"
        reasons.append((reason, f"keep {folder.needed} runs that follow each other, whatever their results"))
    missed = [log for log in folder.ended if folder.tested and log.run.to_converge is None]
    broken = [log for log in folder.logs if log.errors or log in missed]
    if len(broken) > folder.may_fail:
        named = ", ".join(f"{log.name} ({_why(log)})" for log in broken[:_SHOWN])
        named += f", and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        reason = f"{len(broken)} runs count for no score, at most {folder.may_fail} may: {named}"
        reasons.append((reason, "stop, mend what `check` says of these logs, and start a new series of runs"))
    batches = sorted({str(log.run.batch) for log in folder.logs if log.run.batch is not None})
    if folder.tested and len(batches) > 1:
        reason = f"the runs have different values of global_batch_size: {', '.join(batches[:5])}"
        reasons.append((reason, "run the whole series with one batch size"))
    return reasons


def _why(log: Log) -> str:
    """Returns the rules that a log breaks, the first few by name."""
    more = len(log.errors) - _SHOWN
    rules = ", ".join(error.rule for error in log.errors[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return rules or "not converged"


def _complete(folder: Folder, runs: Sequence[Run], say: Callable[..., Answer]) -> Answer:
    if not folder.tested:
        reasons = ["all runs are in, and the rules have no convergence test here"]
        return say(GO, 1.0, folder.scaling, reasons, "submit it")
    judged = rcp.of_runs(folder.benchmark, folder.ruleset, runs)
    if judged.verdict == rcp.PASS:
        reference = f"(reference {judged.reference:,.6g})"
        reasons = [f"the mean to converge, {judged.mean:,.6g}, is at least {judged.least:,.6g} {reference}"]
        advice = "submit it"
        scaling = max(judged.scaling, folder.scaling)
        if scaling > 1:
            faster = "because the runs converge faster than the reference"
            why = faster if scaling == judged.scaling else f"as {NAME} says"
            advice += f"; the score is multiplied by {scaling:.4f}, {why}"
        return say(GO, 1.0, scaling, reasons, advice)
    if judged.verdict == rcp.NO_REFERENCE:
        advice = (
            "send the working group reference runs at this batch size, or use a batch size that has a point"
        )
        return say(OPEN, None, None, [judged.reason], advice)
    advice = (
        "the reference's hyperparameters make the runs slower; or justify the result to the review committee"
    )
    if folder.bypass and judged.mean is not None:
        return say(OPEN, None, None, [_fails(judged), "rcp-bypass is set: the committee decides"], advice)
    return say(NO_GO, 0.0, None, [_fails(judged)], f"{advice}, with rcp-bypass")


def _fails(judged: Convergence) -> str:
    if judged.mean is None or judged.least is None:
        return judged.reason
    return f"{judged.reason}: the mean is {judged.mean:,.6g}, at least {judged.least:,.6g} is needed"


def _under_way(folder: Folder, runs: Sequence[Run], say: Callable[..., Answer]) -> Answer:
    left = folder.needed - len(runs)
    more = f"{left} more run{'' if left == 1 else 's'}"
    if not folder.tested:
        return say(OPEN, None, None, [f"{len(runs)} of {folder.needed} runs are in"], f"go on: {more}")
    if not runs:
        return say(OPEN, None, None, ["no run has ended"], f"go on: {more}")
    batch, points = runs[0].batch, rcp.pruned(folder.benchmark, folder.ruleset)
    point, kind = None, ""
    if batch is not None and len({one.batch for one in runs}) == 1:
        point, kind = rcp.find(folder.benchmark, folder.ruleset, batch, points)
    if point is None:
        without = f"no reference for batch size {batch:g}" if batch is not None and points else ""
        reason = without or "the round has no reference here"
        return say(OPEN, None, None, [reason], "stop: ask for a convergence point at this batch size first")
    known = tuple(one.to_converge for one in runs)
    spoiled = sum(bool(log.errors) and log.run.to_converge is not None for log in folder.ended)
    asked = Question(
        point.mean, point.stdev, point.least, folder.needed, folder.may_fail, known, spoiled, step_of(runs)
    )
    chances = estimate(asked)
    advice = _advise(chances, more)
    if kind == "smallest":
        advice += "; below the smallest batch size of the reference, a faster mean needs a point of its own"
    return say(OPEN, chances.passes, chances.factor, [_expected(folder, chances, point)], advice, chances)


def _expected(folder: Folder, chances: Estimate, point: Point) -> str:
    if chances.low is None:
        return "more runs are expected to fail than may"
    return (
        f"the mean of all {folder.needed} runs will be {chances.low:,.6g} to {chances.high:,.6g} (90 %); "
        f"at least {point.least:,.6g} is needed (reference {point.mean:,.6g})"
    )


def _advise(chances: Estimate, more: str) -> str:
    if chances.passes >= GO_ON:
        return f"go on: {more}"
    if chances.passes > STOP:
        return f"go on with care: {more}; the runs converge close to the limit"
    if chances.most <= STOP:
        return "stop: one more run cannot help; the runs converge faster than the reference may, or fail too often"
    return f"stop, unless the next run is a slow one: then the probability is {chances.most:.2f}"
