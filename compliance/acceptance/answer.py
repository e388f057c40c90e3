"""Answers for one folder of runs: go, no-go or open, with probability, factor, reasons and advice."""

from collections.abc import Sequence
from typing import NamedTuple

from compliance.acceptance.probability import Estimate, Question, estimate, step_of
from compliance.findings import Finding
from compliance.hints import listed
from compliance.submission import rcp
from compliance.submission.rcp import Convergence
from compliance.submission.runs import Run
from compliance.submission.scaling import NAME
from compliance.submission.verdict import ResultFolder
from compliance.verdict import GO, NO_GO

OPEN = "open"  # beside the verdicts of `check`: runs are missing, or the committee decides
_LONGEST_DAYS = 14  # the longest published run since 1.0 took 50 hours (v1.1, Google, bert)
GO_ON, STOP = 0.95, 0.05  # above: nothing to do but to go on; below: the runs cannot be expected to pass

_SHOWN = 3  # logs, and rules of a log, that a reason names


class Log(NamedTuple):
    """One log: its run, whether that has ended, and its errors that no later line can mend, one of each rule.

    `settled` is False for a run that has just ended and whose log still lacks a line: some log one behind run_stop.
    `dead` marks a launch that ended before run_start: it is neither a failed run nor a run of the score.
    """

    run: Run
    ended: bool
    errors: tuple[Finding, ...] = ()
    settled: bool = True
    dead: bool = False

    @property
    def name(self) -> str:
        return self.run.path.name


def ended(run: Run, modified: float, now: float, stale_minutes: float) -> bool:
    """Whether a run has ended: it has run_stop, or nobody goes on writing its log.

    Args:
      run: as the log has it so far.
      modified: when the file was last written, in seconds since 1970.
      now: the current time, in the same unit.
      stale_minutes: a run whose log has no run_stop and no new line for so long counts as ended.
    """
    if not run.began:
        return False  # a launch that has not reached run_start is not a run that failed
    if run.stopped is not None or modified < now - 60 * stale_minutes:
        return True
    # A copy of an old log is a new file.
    return run.started is not None and run.started / 1000 < now - 86_400 * _LONGEST_DAYS


def dead(run: Run, modified: float, now: float, stale_minutes: float) -> bool:
    """Whether a launch died before run_start: nobody has written to its log for so long; see `ended`."""
    return not run.began and modified < now - 60 * stale_minutes


class Answer(NamedTuple):
    """The answer for one folder.

    `runs` have ended, `under_way` go on. `probability` is None if no model gives one. `factor` is the (expected) factor
    of the score.
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
    under_way: int = 0


def answer(name: str, folder: ResultFolder, logs: Sequence[Log], bypass: bool, scaling: float) -> Answer:
    """Answers for one folder of runs, complete or under way. It names the logs that have to go (`Log.dead`).

    A complete folder with such a log is a no-go, as the stock package checker counts the log.

    Args:
      name: the folder's name for people.
      folder: what `check` found. Without a convergence test of it (`folder.convergence`) the runs alone count.
      logs: its logs.
      bypass: the submitter set rcp-bypass, so that a failed test does not stop the upload.
      scaling: the score's factor so far: the convergence test's, or that of scaling.json.
    """
    remove = [log.name for log in logs if log.dead]
    logs = [log for log in logs if not log.dead]
    ended_logs = [log for log in logs if log.ended]
    runs = [log.run for log in ended_logs]
    if refused := _refused_anyway(folder, logs):
        reasons, advice = zip(*refused)
        fields = NO_GO, 0.0, None, reasons, "; ".join(advice)
    elif len(runs) >= folder.needed and not all(log.settled for log in logs):
        reason = "the last run has just ended; its log may get further lines"
        fields = OPEN, None, None, [reason], "ask again soon"
    elif len(runs) >= folder.needed:
        # Not of the folder's other logs, which have to go.
        convergence = folder.convergence and rcp.of_runs(folder.benchmark, folder.ruleset, runs)
        fields = _complete(convergence, bypass, scaling)
    else:
        fields = _under_way(folder, ended_logs, len(logs) - len(ended_logs))
    word, chance, factor, reasons, *advice = fields
    result = Answer(name, word, len(runs), folder.needed, chance, factor, tuple(reasons), *advice)
    return _with_dead(result._replace(under_way=len(logs) - len(ended_logs)), remove)


def _with_dead(result: Answer, names: Sequence[str]) -> Answer:
    """Returns an answer that also names the logs to remove."""
    if not names:
        return result
    reasons = [f"{name} never reached run_start: remove this log" for name in names[:_SHOWN]]
    reasons += [f"{len(names) - _SHOWN} more logs never reached run_start"] if len(names) > _SHOWN else []
    result = result._replace(advice=f"remove {listed(names, _SHOWN)}; then {result.advice}")
    if result.answer == GO:
        return result._replace(answer=NO_GO, probability=0.0, reasons=tuple(reasons))
    return result._replace(reasons=(*result.reasons, *reasons))


def _refused_anyway(folder: ResultFolder, logs: Sequence[Log]) -> list[tuple[str, str]]:
    """Returns (why no further run can help, what to do instead); [] if one may help."""
    reasons, has_test = [], folder.convergence is not None
    if len(logs) > folder.needed:
        reason = f"{len(logs)} runs; a score takes {folder.needed} that follow each other"
        reasons.append((reason, f"keep {folder.needed} runs that follow each other, whatever their results"))
    missed = [log for log in logs if log.ended and has_test and log.run.to_converge is None]
    broken = [log for log in logs if log.errors or log in missed]
    if len(broken) > folder.may_fail:
        names = ", ".join(f"{log.name} ({_why(log)})" for log in broken[:_SHOWN])
        names += f", and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        reason = f"{len(broken)} runs count for no score, at most {folder.may_fail} may: {names}"
        reasons.append((reason, "stop, fix what `check` says of these logs, and start a new series of runs"))
    batches = sorted({str(log.run.batch) for log in logs if log.run.batch is not None})
    if has_test and len(batches) > 1:
        reason = f"the runs have different values of global_batch_size: {', '.join(batches[:5])}"
        reasons.append((reason, "run the whole series with one batch size"))
    return reasons


def _why(log: Log) -> str:
    """Returns the rules that a log breaks, the first few by name."""
    return listed([error.rule for error in log.errors], _SHOWN) or "not converged"


def _complete(test: Convergence | None, bypass: bool, scaling: float) -> tuple:
    """Returns what `Answer` has from `answer` on, without the runs; `test`: the convergence test of all runs."""
    if test is None:
        return GO, 1.0, scaling, ["all runs are in, and the rules have no convergence test here"], "submit it"
    if test.verdict == rcp.PASS:
        reference = f"(reference {test.reference:,.6g})"
        reason = f"the mean to converge, {test.mean:,.6g}, is at least {test.least:,.6g} {reference}"
        advice = "submit it"
        scaling = max(test.scaling, scaling)
        if scaling > 1:
            faster = "because the runs converge faster than the reference"
            why = faster if scaling == test.scaling else f"as {NAME} says"
            advice += f"; the score is multiplied by {scaling:.4f}, {why}"
        return GO, 1.0, scaling, [reason], advice
    if test.verdict == rcp.NO_REFERENCE:
        advice = (
            "send the working group reference runs at this batch size, or use a batch size that has a point"
        )
        return OPEN, None, None, [test.reason], advice
    advice = (
        "the reference's hyperparameters make the runs slower; or justify the result to the review committee"
    )
    if bypass and test.mean is not None:
        return OPEN, None, None, [_fails(test), "rcp-bypass is set: the committee decides"], advice
    return NO_GO, 0.0, None, [_fails(test)], f"{advice}, with rcp-bypass"


def _fails(test: Convergence) -> str:
    if test.mean is None or test.least is None:
        return test.reason
    return f"{test.reason}: the mean is {test.mean:,.6g}, at least {test.least:,.6g} is needed"


def _under_way(folder: ResultFolder, logs: Sequence[Log], under_way: int) -> tuple:
    """Returns what `_complete` does, from the logs of the runs that have ended; `under_way`: how many others go on."""
    runs, rest = [log.run for log in logs], folder.needed - len(logs) - under_way
    more = f"{rest} more run{'' if rest == 1 else 's'}" if rest else "the last runs are under way"
    more += f" besides {under_way} under way" if under_way and rest else ""
    if folder.convergence is None:
        return OPEN, None, None, [f"{len(runs)} of {folder.needed} runs are in"], f"go on: {more}"
    if not runs:
        return OPEN, None, None, ["no run has ended"], f"go on: {more}"
    batch, point, kind = runs[0].batch, None, ""
    if batch is not None and len({one.batch for one in runs}) == 1:
        point, kind = rcp.find(folder.benchmark, folder.ruleset, batch)
    if point is None:
        reason = "the round has no reference here"
        if batch is not None and rcp.pruned(folder.benchmark, folder.ruleset):
            reason = f"no reference for batch size {batch:g}"
        return OPEN, None, None, [reason], "stop: ask for a convergence point at this batch size first"
    ends = tuple(one.to_converge for one in runs)
    spoiled = sum(bool(log.errors) and log.run.to_converge is not None for log in logs)
    reference = point.mean, point.stdev, point.least
    chances = estimate(Question(*reference, folder.needed, folder.may_fail, ends, spoiled, step_of(runs)))
    reasons = ["more runs are expected to fail than may"]
    failing = 2 * chances.lost > 1 - chances.passes and chances.passes < GO_ON  # more than half of the risk
    if chances.low is not None and not failing:
        least = f"at least {point.least:,.6g} is needed (reference {point.mean:,.6g})"
        span = f"{chances.low:,.6g} to {chances.high:,.6g} (90 %)"
        reasons = [f"the mean of all {folder.needed} runs will be {span}; {least}"]
    elif chances.lost:
        share = f"with probability {chances.lost:.2f} more runs fail than the score drops ({folder.may_fail})"
        reasons = [share] if chances.passes else reasons
    last = max(runs, key=lambda one: one.stopped or 0)
    converged = "did not converge" if last.to_converge is None else f"converged after {last.to_converge:,.6g}"
    reasons.append(f"{last.path.name}, the last to end, {converged}")
    advice = _advise(chances, more)
    if kind == "smallest":
        advice += "; below the smallest batch size of the reference, a faster mean needs a point of its own"
    return OPEN, chances.passes, chances.factor, reasons, advice, chances


def _advise(chances: Estimate, more: str) -> str:
    if chances.passes >= GO_ON:
        return f"go on: {more}"
    if chances.passes > STOP:
        return f"go on with care: {more}; the runs converge close to the limit"
    if chances.most <= STOP:
        return "stop: one more run cannot help; the runs converge faster than the reference may, or fail too often"
    return f"stop, unless the next run is a slow one: then the probability is {chances.most:.2f}"
