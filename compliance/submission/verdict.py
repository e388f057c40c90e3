"""The typed result of a check of a tree: its submissions, their folders of runs, and one verdict with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compliance.findings import ERROR, Finding
from compliance.log.check_log import LogResult
from compliance.submission.rcp import Convergence

GO, NO_GO, NOT_CHECKED = "go", "no-go", "not checked"
_MOST_REASONS = 5


class TreeVerdict(NamedTuple):
    """`answer` is GO, NO_GO or NOT_CHECKED; `reasons` are short sentences, none for a GO without remarks."""

    answer: str
    reasons: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The verdict in one line."""
        shown = "; ".join(self.reasons[:_MOST_REASONS])
        more = len(self.reasons) - _MOST_REASONS
        return self.answer + (f": {shown}" if shown else "") + (f"; and {more} more" if more > 0 else "")

    @property
    def exit_status(self) -> int:
        """1 for a NO_GO, else 0."""
        return int(self.answer == NO_GO)


@dataclass(frozen=True)
class ResultFolder:
    """`results/<system>/<benchmark>/`: `runs` are its logs, `needed` as many as the round takes.

    `failed` are the paths of the logs that count for no score, of which the olympic mean drops `may_fail`;
    `convergence` is None where the round, the division or the benchmark has no such test.
    """

    path: Path
    system: str
    benchmark: str
    division: str
    ruleset: str
    runs: tuple[str, ...]
    needed: int
    failed: tuple[str, ...]
    may_fail: int
    convergence: Convergence | None
    batch: float | None

    @property
    def dropped(self) -> tuple[str, ...]:
        """The failed runs that are legally dropped; () where there are too many of them."""
        return self.failed if len(self.failed) <= self.may_fail else ()


@dataclass(frozen=True)
class Submission:
    """One submitter's folder: `results/`, `systems/`, `benchmarks/`."""

    path: Path
    ruleset: str
    folders: tuple[ResultFolder, ...]
    verdict: TreeVerdict


class TreeOutcome(NamedTuple):
    """What a check of a tree found. `findings` are those about the tree; each log has its own."""

    files: list[str]
    logs: list[LogResult]
    findings: list[Finding]
    submissions: list[Submission]
    verdict: TreeVerdict

    @property
    def dropped(self) -> frozenset[str]:
        """Logs that fail and are legally dropped: their errors do not make the tree a NO_GO."""
        return frozenset(
            path for one in self.submissions for folder in one.folders for path in folder.dropped
        )


def judge(findings: list[Finding], reasons: list[str], looked_at: bool, practice: bool) -> TreeVerdict:
    """The verdict of one submission from its findings.

    Args:
      findings: about the submission, without those of its logs.
      reasons: what is wrong with its logs; () where all pass or are dropped.
      looked_at: whether there was a folder of runs to judge.
      practice: whether a log is a smoke run.
    """
    errors = [finding for finding in findings if finding.severity == ERROR]
    every = list(dict.fromkeys([*reasons, *(_short(finding) for finding in errors)]))
    if every:
        return TreeVerdict(NO_GO, tuple(every))
    if practice:
        return TreeVerdict(NOT_CHECKED, ("smoke runs are practice, not results",))
    if not looked_at:
        return TreeVerdict(NOT_CHECKED, ("there is no results/<system>/<benchmark>/ with logs",))
    return TreeVerdict(GO)


def together(verdicts: list[TreeVerdict], names: list[str]) -> TreeVerdict:
    """The verdict of several submissions: NO_GO where one is."""
    if len(verdicts) == 1:
        return verdicts[0]
    bad = [
        f"{name}: {reason}"
        for verdict, name in zip(verdicts, names)
        if verdict.answer == NO_GO
        for reason in verdict.reasons
    ]
    if bad:
        return TreeVerdict(NO_GO, tuple(bad))
    open_ones = [
        f"{name}: {'; '.join(verdict.reasons)}"
        for verdict, name in zip(verdicts, names)
        if verdict.answer == NOT_CHECKED
    ]
    return TreeVerdict(NOT_CHECKED if open_ones else GO, tuple(open_ones))


def _short(finding: Finding) -> str:
    place = Path(finding.path)
    return f"{place.parent.name}/{place.name}: {finding.message.rstrip('.')} ({finding.found})"[:200]
