"""Answers for one folder of runs: go, no-go or open, with probability, factor, reasons and advice."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from compliance.acceptance import hull
from compliance.acceptance.hull import Both
from compliance.acceptance.probability import Estimate, Question, estimate, step_of
from compliance.submission import rcp
from compliance.submission.facts import Facts
from compliance.submission.rcp import Convergence, Point
from compliance.submission.scaling import NAME
from compliance.verdict import GO, NO_GO

OPEN = "open"  # beside the verdicts of `check`: runs are missing, or the committee decides
_LONGEST_DAYS = 14  # the longest published run since 1.0 took 50 hours (v1.1, Google, bert)
GO_ON, STOP = 0.95, 0.05  # above: nothing to do but to go on; below: the runs cannot be expected to pass

_SHOWN = 3  # logs, and rules of a log, that a reason names


class Log(NamedTuple):
    """One log: its facts, whether its run has ended, and the rules of its errors that no later line can mend."""

    facts: Facts
    ended: bool
    errors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.facts.path).name


def ended(facts: Facts, modified: float, now: float, stale_minutes: float, by_clock: bool = True) -> bool:
    """Whether a run has ended: it has run_stop, or nobody goes on writing its log.

    Args:
      facts: those of the log so far.
      modified: when the file was last written, in seconds since 1970.
      now: the time, likewise.
      stale_minutes: a log without run_stop that is older than this has ended.
      by_clock: whether the log's own times count; a log that was seen to grow may have a wrong clock.
    """
    if facts.stopped is not None or modified < now - 60 * stale_minutes:
        return True
    # A copy of an old log is a new file.
    return by_clock and facts.started is not None and facts.started / 1000 < now - 86_400 * _LONGEST_DAYS


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

    `probability` is None if no model gives one. `factor` is the (expected) factor of the score. `both` has the
    convergence test with both prunings, None if there is no test or too few runs are in.
    """

    name: str
    answer: str
    runs: int
    needed: int
    probability: float | None
    factor: float | None
    reasons: tuple[str, ...]
    advice: str
    both: Both | None = None
    estimate: Estimate | None = None


def answer(folder: Folder) -> Answer:
    """Answers for one folder of runs, complete or under way."""
    facts = [log.facts for log in folder.ended]
    point, kind = _reference(folder, facts)
    made = _Made(folder, facts, point, kind)
    if refused := _refused_anyway(folder):
        reasons, advice = zip(*refused)
        return made.answer(NO_GO, 0.0, None, reasons, "; ".join(advice))
    if len(facts) >= folder.needed:
        return _complete(made)
    return _under_way(made)


class _Made(NamedTuple):
    """The parts that every answer of a folder shares."""

    folder: Folder
    facts: list[Facts]
    point: Point | None
    kind: str

    def answer(
        self,
        word: str,
        probability: float | None,
        factor: float | None,
        reasons: Sequence[str],
        advice: str,
        both: Both | None = None,
        estimate: Estimate | None = None,
    ) -> Answer:
        name, needed, runs = self.folder.name, self.folder.needed, len(self.facts)
        return Answer(
            name, word, runs, needed, probability, factor, tuple(reasons), advice, both, estimate
        )  # fmt: skip


def _reference(folder: Folder, facts: Sequence[Facts]) -> tuple[Point | None, str]:
    batches = {one.batch for one in facts}
    if not folder.tested or len(batches) != 1 or None in batches:
        return None, ""
    kept = rcp.pruned(folder.benchmark, folder.ruleset)
    return rcp.find(folder.benchmark, folder.ruleset, batches.pop(), kept)


def _refused_anyway(folder: Folder) -> list[tuple[str, str]]:
    """Returns (why no further run can help, what to do instead); [] if one may help."""
    found = []
    if len(folder.logs) > folder.needed:
        reason = f"{len(folder.logs)} runs; a score takes {folder.needed} that follow each other"
        found.append((reason, f"keep {folder.needed} runs that follow each other, whatever their results"))
    broken = [log for log in folder.logs if log.errors or (log.ended and _missed(folder, log))]
    if len(broken) > folder.may_fail:
        named = ", ".join(f"{log.name} ({_why(log)})" for log in broken[:_SHOWN])
        named += f", and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        reason = f"{len(broken)} runs count for no score, at most {folder.may_fail} may: {named}"
        found.append((reason, "stop, mend what `check` says of these logs, and start a new series of runs"))
    batches = sorted({str(log.facts.batch) for log in folder.logs if log.facts.batch is not None})
    if folder.tested and len(batches) > 1:
        reason = f"the runs have different values of global_batch_size: {', '.join(batches[:5])}"
        found.append((reason, "run the whole series with one batch size"))
    return found


def _why(log: Log) -> str:
    """Returns the rules that a log breaks, the first few by name."""
    more = len(log.errors) - _SHOWN
    rules = ", ".join(log.errors[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return rules or "not converged"


def _missed(folder: Folder, log: Log) -> bool:
    return folder.tested and log.facts.to_converge is None


def _complete(made: _Made) -> Answer:
    folder, facts = made.folder, made.facts
    if not folder.tested:
        return made.answer(
            GO,
            1.0,
            folder.scaling,
            ["all runs are in, and the rules have no convergence test here"],
            "submit it",
        )
    judged = rcp.of_facts(folder.benchmark, folder.ruleset, facts)
    both = hull.both(folder.benchmark, folder.ruleset, judged, [one.to_converge for one in facts])
    if judged.verdict == rcp.PASS:
        reasons = [_passes(judged)]
        advice = "submit it"
        scaling = max(judged.scaling, folder.scaling)
        if scaling > 1:
            own = "because the runs converge faster than the reference"
            why = own if scaling == judged.scaling else f"as {NAME} says"
            advice += f"; the score is multiplied by {scaling:.4f}, {why}"
        return made.answer(GO, 1.0, scaling, reasons, advice, both)
    if judged.verdict == rcp.NO_REFERENCE:
        advice = (
            "send the working group reference runs at this batch size, or use a batch size that has a point"
        )
        return made.answer(OPEN, None, None, [judged.reason], advice, both)
    advice = (
        "the reference's hyperparameters make the runs slower; or justify the result to the review committee"
    )
    if folder.bypass and judged.mean is not None:
        return made.answer(
            OPEN, None, None, [_fails(judged), "rcp-bypass is set: the committee decides"], advice, both
        )
    return made.answer(NO_GO, 0.0, None, [_fails(judged)], f"{advice}, with rcp-bypass", both)


def _passes(judged: Convergence) -> str:
    reference = f"(reference {judged.reference:,.6g})"
    return f"the mean to converge, {judged.mean:,.6g}, is at least {judged.least:,.6g} {reference}"


def _fails(judged: Convergence) -> str:
    if judged.mean is None or judged.least is None:
        return judged.reason
    return f"{judged.reason}: the mean is {judged.mean:,.6g}, at least {judged.least:,.6g} is needed"


def _under_way(made: _Made) -> Answer:
    folder, facts = made.folder, made.facts
    left = folder.needed - len(facts)
    more = f"{left} more run{'' if left == 1 else 's'}"
    if not folder.tested:
        return made.answer(
            OPEN, None, None, [f"{len(facts)} of {folder.needed} runs are in"], f"go on: {more}"
        )
    if not facts:
        return made.answer(OPEN, None, None, ["no run has ended"], f"go on: {more}")
    batch = facts[0].batch
    if made.point is None:
        largest = rcp.pruned(folder.benchmark, folder.ruleset)
        reason = (
            f"no reference for batch size {batch:g}"
            if batch is not None and largest
            else "the round has no reference here"
        )
        return made.answer(
            OPEN, None, None, [reason], "stop: ask for a convergence point at this batch size first"
        )
    found = estimate(_question(folder, facts, made.point))
    reasons = [_expected(folder, found, made.point)]
    advice = _advise(found, more)
    if made.kind == "smallest":
        advice += "; below the smallest batch size of the reference, a faster mean needs a point of its own"
    return made.answer(OPEN, found.passes, found.factor, reasons, advice, None, found)


def _question(folder: Folder, facts: Sequence[Facts], point: Point) -> Question:
    known = tuple(one.to_converge for one in facts)
    spoiled = sum(bool(log.errors) and log.facts.to_converge is not None for log in folder.ended)
    return Question(
        point.mean, point.stdev, point.least, folder.needed, folder.may_fail, known, spoiled, step_of(facts)
    )


def _expected(folder: Folder, found: Estimate, point: Point) -> str:
    if found.low is None:
        return "more runs are expected to fail than may"
    return (
        f"the mean of all {folder.needed} runs will be {found.low:,.6g} to {found.high:,.6g} (90 %); "
        f"at least {point.least:,.6g} is needed (reference {point.mean:,.6g})"
    )


def _advise(found: Estimate, more: str) -> str:
    if found.passes >= GO_ON:
        return f"go on: {more}"
    if found.passes > STOP:
        return f"go on with care: {more}; the runs converge close to the limit"
    if found.most <= STOP:
        return "stop: one more run cannot help; the runs converge faster than the reference may, or fail too often"
    return f"stop, unless the next run is a slow one: then the probability is {found.most:.2f}"
