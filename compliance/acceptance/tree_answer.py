"""Answers for whole trees, every folder of runs and together, as text and JSON too."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from compliance.acceptance.answer import OPEN, Answer, Log, answer, dead, ended
from compliance.api import Outcome
from compliance.findings import ERROR, Finding, clean
from compliance.log.check_log import ASKED_FOR, LogResult
from compliance.log.find_round import NAMED
from compliance.submission import tree_params, tree_runs
from compliance.submission.runs import Run
from compliance.submission.scaling import factor
from compliance.submission.verdict import ResultFolder
from compliance.verdict import GO, NO_GO, Verdict

STALE_MINUTES = 60.0  # a log without run_stop that nobody has written to for so long has ended
# These findings of `check` are about the runs so far; `answer` judges them again, with the runs that are still to come.
_AGAIN = frozenset({"tree.run-count", "tree.score", "tree.rcp"})
# Seconds after the last line, until which a log may get the lines that some write behind run_stop.
_SETTLED = 5.0
# Errors that a person can mend until the upload, without another run.
_MENDABLE = (
    "system.",
    "tree.system-missing",
    "tree.file-missing",
    "tree.layout",
    "tree.name",
    "tree.link",
    "tree.size",
)
# Errors about a line that a later line may yet mend.
_YET = ("eval_accuracy.target", "eval_accuracy.twice", "aggregated_eval_accuracy.")


class TreeAnswer(NamedTuple):
    """The answer for a tree: `answers` for its folders of runs, and what they give together."""

    answer: str
    probability: float | None
    reasons: tuple[str, ...]
    answers: tuple[Answer, ...]

    @property
    def line(self) -> str:
        """Returns the answer in one line."""
        has_chance = self.answer == OPEN and self.probability is not None
        chance = f" (probability {self.probability:.2f})" if has_chance else ""
        return Verdict(self.answer + chance, self.reasons).line


def answer_tree(
    outcome: Outcome, now: float | None = None, stale_minutes: float = STALE_MINUTES
) -> TreeAnswer:
    """Answers for a checked tree.

    Args:
      outcome: what `compliance.check` says of it.
      now: seconds since 1970, to tell which logs are under way; None: the clock's.
      stale_minutes: a run whose log has no run_stop and no new line for so long counts as ended; without run_start,
        the log has to go.
    """
    clock = (time.time() if now is None else now), stale_minutes
    folders = list(folders_of(outcome, clock))
    errors = [one for one in outcome.findings if one.severity == ERROR]
    for _, folder, logs, *_ in folders:
        errors = _of_runs_so_far(errors, folder, logs)
    return _together(outcome, [answer(*one) for one in folders], errors)


def _of_runs_so_far(errors: list[Finding], folder: ResultFolder, logs: Sequence[Log]) -> list[Finding]:
    """Returns the errors without those about a folder of runs that logs under way may yet mend."""
    paths = {str(log.run.path) for log in logs if not log.ended}
    place = str(folder.path)
    if not any(log.ended or log.run.started is not None for log in logs):
        return [
            one for one in errors if one.path != place and one.path not in paths
        ]  # not even the round is known
    partial = {path for path in paths if not ends_a_line(path)}
    remaining = [one for one in errors if (one.path, one.rule) != (place, "tree.seed")]
    # A log under way may yet name its benchmark, and end its last line.
    stock = [
        one for one in remaining if one.rule == "tree.stock" and one.path in (partial if one.line else paths)
    ]
    remaining = [one for one in remaining if one not in stock]
    if len(remaining) < len(errors):
        runs = [log.run for log in logs if not log.dead and (log.ended or log.run.seeds or log.run.bad_seeds)]
        remaining += tree_runs.seeds(folder.path, runs, ERROR)
    return remaining


def folders_of(
    outcome: Outcome, clock: tuple[float, float]
) -> Iterator[tuple[str, ResultFolder, list[Log], bool, float]]:
    """Yields the arguments of `answer` for each folder of runs of a checked tree.

    `clock`: the time in seconds since 1970, and the minutes after which a log without run_stop has ended.
    """
    logs = {result.path: result for result in outcome.logs}
    for submission in outcome.submissions:
        org = f"{submission.path.name}/" if len(outcome.submissions) > 1 else ""
        for one in submission.folders:
            pairs = zip(one.paths, one.runs)
            of_runs = [_log(run, logs[path], clock) for path, run in pairs]
            bypass = tree_params.RCP_BYPASS in tree_params.flags(submission.path, one.path)
            scaling = factor(one.path, one.convergence).value
            yield f"{org}{one.system}/{one.benchmark}", one, of_runs, bypass, scaling


def _log(run: Run, result: LogResult, clock: tuple[float, float]) -> Log:
    modified = 0.0
    with suppress(OSError):
        modified = Path(result.path).stat().st_mtime
    has_ended = ended(run, modified, *clock)
    # What a log that still grows lacks, as a result that meets the target, may yet come; a broken line stays broken,
    # if it is whole. Before run_start the header is not complete, and the round may be another one.
    reason = result.ruleset_reason
    has_round = run.started is not None or reason == ASKED_FOR or NAMED in reason
    mendable = _YET if ends_a_line(result.path) else (*_YET, "line-")
    of_rules: dict[str, Finding] = {}
    settled, now = True, clock[0]
    for one in result.findings:
        is_error = one.severity == ERROR
        if is_error and has_ended and not one.line and now - _SETTLED < modified <= now:
            settled = False
        elif is_error and (has_ended or (one.line and has_round and not one.rule.startswith(mendable))):
            of_rules.setdefault(one.rule, one)
    return Log(run, has_ended, tuple(of_rules.values()), settled, dead(run, modified, *clock))


def ends_a_line(path: str) -> bool:
    """Whether the last line of a log is whole; True for an empty log, and for one that has gone."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
    except OSError:
        return True


def _together(outcome: Outcome, answers: list[Answer], errors: Sequence[Finding]) -> TreeAnswer:
    reasons = [f"{one.name}: {reason}" for one in answers if one.answer == NO_GO for reason in one.reasons]
    missing = any(one.runs < one.needed for one in answers)
    of_logs = {(result.path, one.rule) for result in outcome.logs for one in result.findings}
    later = []
    for one in errors:
        if one.rule not in _AGAIN and (one.path, one.rule) not in of_logs:
            mendable = missing and one.rule.startswith(_MENDABLE)
            (later if mendable else reasons).append(f"{Path(one.path).name}: {one.message}")
    if reasons:
        return TreeAnswer(NO_GO, 0.0, tuple(dict.fromkeys(reasons)), _hold_back(answers))
    chances = [one.probability for one in answers]
    probability = None if None in chances or not chances else math.prod(chances)
    waiting = [f"{one.name}: {reason}" for one in answers if one.answer == OPEN for reason in one.reasons]
    if waiting:
        before = [f"before the upload: {reason}" for reason in dict.fromkeys(later)]
        return TreeAnswer(OPEN, probability, (*waiting, *before), tuple(answers))
    if not outcome.submissions or outcome.verdict.answer != GO:
        reasons = list(outcome.verdict.reasons) or ["the folder holds no submission"]
        return TreeAnswer(outcome.verdict.answer, probability, tuple(reasons), _hold_back(answers))
    return TreeAnswer(GO, 1.0, (), tuple(answers))


def _hold_back(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """Returns the answers with none that says to submit a folder of a tree that is not a go."""
    wait = "these runs are fine; the tree is not, see the last line"
    return tuple(
        one._replace(answer=OPEN, advice=one.advice.replace("submit it", wait)) if one.answer == GO else one
        for one in answers
    )


def as_text(tree: TreeAnswer) -> str:
    """Formats an answer for people: a block for each folder, the answer for the tree on the last line."""
    lines: list[str] = []
    for one in tree.answers:
        lines += [f"{one.name}: {_in_short(one)}", *(f"  because {reason}" for reason in one.reasons)]
        lines += [f"  next: {one.advice}", ""]
    return "\n".join(clean(line) for line in [*lines, tree.line])


def _in_short(one: Answer) -> str:
    """Returns answer, runs, probability and factor in a few words."""
    text = f"{one.answer}, {one.runs} of {one.needed} runs" + (
        f", {one.under_way} under way" if one.under_way else ""
    )
    if one.answer == OPEN and one.probability is not None:
        text += f", probability {one.probability:.2f}"
    if one.factor is not None and one.factor >= 1.00005:
        text += f", factor {one.factor:.4f}" + (" expected" if one.answer == OPEN else "")
    return text


def as_json(tree: TreeAnswer) -> str:
    """Formats an answer for programs."""
    folders = [one._asdict() | {"estimate": one.estimate and one.estimate._asdict()} for one in tree.answers]
    content = tree._asdict()
    del content["answers"]
    return json.dumps(content | {"folders": folders}, indent=1)
