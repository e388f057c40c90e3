"""Answers for whole trees, every folder of runs and together, as text and JSON too."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from compliance.acceptance.answer import OPEN, Answer, Log, answer, ended
from compliance.api import Outcome
from compliance.findings import ERROR, Finding
from compliance.log.check_log import LogResult
from compliance.sarif import clean
from compliance.submission import tree_params
from compliance.submission.runs import Run
from compliance.submission.scaling import factor
from compliance.submission.verdict import ResultFolder, Submission
from compliance.verdict import GO, NO_GO, Verdict

STALE_MINUTES = 60.0  # a log without run_stop that nobody has written to for so long has ended
# These findings of `check` are about the runs so far; `answer` judges them again, with the runs that are still to come.
_AGAIN = frozenset({"tree.run-count", "tree.score", "tree.rcp"})
_YET = "eval_accuracy.target"


class Whole(NamedTuple):
    """The answer for a tree: `answers` for its folders of runs, and what they give together."""

    answer: str
    probability: float | None
    reasons: tuple[str, ...]
    answers: tuple[Answer, ...]

    @property
    def line(self) -> str:
        """Returns the answer in one line."""
        told = self.answer == OPEN and self.probability is not None
        chance = f" (probability {self.probability:.2f})" if told else ""
        return Verdict(self.answer + chance, self.reasons).line


def whole(outcome: Outcome, now: float | None = None, stale_minutes: float = STALE_MINUTES) -> Whole:
    """Answers for a checked tree.

    Args:
      outcome: what `compliance.check` says of it.
      now: seconds since 1970, to tell which logs are under way; None: the clock's.
      stale_minutes: a run whose log has no run_stop and no new line for so long counts as ended.
    """
    clock = (time.time() if now is None else now), stale_minutes
    errors: dict[str, list[Finding]] = defaultdict(list)
    for one in outcome.findings:
        if one.severity == ERROR:
            errors[one.path].append(one)
    folders = folders_of(outcome.submissions, outcome.logs, clock)
    return _together(outcome, [answer(*one) for one in folders], errors)


def folders_of(
    submissions: Sequence[Submission],
    results: Sequence[LogResult],
    clock: tuple[float, float],
    growing: Collection[str] = (),
) -> Iterator[tuple[str, ResultFolder, list[Log], bool, float]]:
    """Yields the arguments of `answer` for each folder of runs.

    Args:
      submissions, results: of a checked tree.
      clock: the time in seconds since 1970, and the minutes after which a log without run_stop has ended.
      growing: the logs that were seen to grow, whatever their own times say.
    """
    logs = {result.path: result for result in results}
    for submission in submissions:
        org = f"{submission.path.name}/" if len(submissions) > 1 else ""
        for one in submission.folders:
            pairs = zip(one.paths, one.runs)
            of_runs = [_log(run, logs[path], clock, path in growing) for path, run in pairs]
            bypass = tree_params.RCP_BYPASS in tree_params.flags(submission.path, one.path)
            scaling = factor(one.path, one.convergence).value
            yield f"{org}{one.system}/{one.benchmark}", one, of_runs, bypass, scaling


def _log(run: Run, result: LogResult, clock: tuple[float, float], growing: bool) -> Log:
    modified = 0.0
    with suppress(OSError):
        modified = Path(result.path).stat().st_mtime
    over = ended(run, modified, *clock, by_clock=not growing)
    # What a log that still grows lacks, as a result that meets the target, may yet come; a broken line stays broken.
    of_rules: dict[str, Finding] = {}
    for one in result.findings:
        if one.severity == ERROR and (over or (one.line and one.rule != _YET)):
            of_rules.setdefault(one.rule, one)
    return Log(run, over, tuple(of_rules.values()))


def _together(outcome: Outcome, answers: list[Answer], errors: dict[str, list[Finding]]) -> Whole:
    reasons = [f"{one.name}: {reason}" for one in answers if one.answer == NO_GO for reason in one.reasons]
    of_logs = {result.path for result in outcome.logs}
    for path, found in errors.items():
        if path not in of_logs:
            reasons += [f"{Path(path).name}: {one.message}" for one in found if one.rule not in _AGAIN]
    if reasons:
        return Whole(NO_GO, 0.0, tuple(dict.fromkeys(reasons)), _held(answers))
    chances = [one.probability for one in answers]
    probability = None if None in chances or not chances else math.prod(chances)
    waiting = [f"{one.name}: {reason}" for one in answers if one.answer == OPEN for reason in one.reasons]
    if waiting:
        return Whole(OPEN, probability, tuple(waiting), tuple(answers))
    if not outcome.submissions or outcome.verdict.answer != GO:
        reasons = list(outcome.verdict.reasons) or ["the folder holds no submission"]
        return Whole(outcome.verdict.answer, probability, tuple(reasons), _held(answers))
    return Whole(GO, 1.0, (), tuple(answers))


def _held(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """Returns the answers with none that says to submit a folder of a tree that is not a go."""
    wait = "these runs are fine; the tree is not, see the last line"
    return tuple(
        one._replace(answer=OPEN, advice=one.advice.replace("submit it", wait)) if one.answer == GO else one
        for one in answers
    )


def as_text(tree: Whole) -> str:
    """Formats an answer for people: a block for each folder, the answer for the tree on the last line."""
    lines = [line for one in tree.answers for line in [*folder_lines(one), ""]]
    return "\n".join(clean(line) for line in [*lines, tree.line])


def folder_lines(one: Answer) -> list[str]:
    """Returns the lines about one folder: answer, reasons, advice."""
    lines = [f"{one.name}: {short(one)}"]
    lines += [f"  because {reason}" for reason in one.reasons]
    return [*lines, f"  next: {one.advice}"]


def short(one: Answer) -> str:
    """Returns answer, runs, probability and factor in a few words."""
    text = f"{one.answer}, {one.runs} of {one.needed} runs"
    if one.answer == OPEN and one.probability is not None:
        text += f", probability {one.probability:.2f}"
    if one.factor is not None and one.factor >= 1.00005:
        text += f", factor {one.factor:.4f}" + (" expected" if one.answer == OPEN else "")
    return text


def as_json(tree: Whole) -> str:
    """Formats an answer for programs."""
    folders = [one._asdict() | {"estimate": one.estimate and one.estimate._asdict()} for one in tree.answers]
    content = tree._asdict()
    del content["answers"]
    return json.dumps(content | {"folders": folders}, indent=1)
