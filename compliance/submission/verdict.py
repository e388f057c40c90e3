"""The typed result of a check of a tree: its submissions, their folders of runs, and one verdict with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compliance.findings import ERROR, Finding
from compliance.log.check_log import LogResult
from compliance.submission.rcp import Convergence
from compliance.verdict import GO, NO_GO, NOT_CHECKED, Verdict


def droppable(failed: int, runs: int, may_fail: int) -> bool:
    """Whether so many failed ones of `runs` are legally dropped: no more than may fail, and not all of them."""
    return failed <= may_fail and failed < runs


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
        """The failed runs that are legally dropped; () where there are too many of them, or no other run."""
        return self.failed if droppable(len(self.failed), len(self.runs), self.may_fail) else ()


@dataclass(frozen=True)
class Submission:
    """One submitter's folder: `results/`, `systems/`, `benchmarks/`."""

    path: Path
    ruleset: str
    folders: tuple[ResultFolder, ...]
    verdict: Verdict


class TreeOutcome(NamedTuple):
    """What a check of a tree found. `findings` are those about the tree; each log has its own."""

    files: list[str]
    logs: list[LogResult]
    findings: list[Finding]
    submissions: list[Submission]
    verdict: Verdict

    @property
    def dropped(self) -> frozenset[str]:
        """Logs that fail and are legally dropped: their errors do not make the tree a NO_GO."""
        return frozenset(
            path for one in self.submissions for folder in one.folders for path in folder.dropped
        )


def judge(findings: list[Finding], reasons: list[str], looked_at: bool, practice: bool) -> Verdict:
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
        return Verdict(NO_GO, tuple(every))
    if practice:
        return Verdict(NOT_CHECKED, ("smoke runs are practice, not results",))
    if not looked_at:
        return Verdict(NOT_CHECKED, ("there is no results/<system>/<benchmark>/ with logs",))
    return Verdict(GO)


def _short(finding: Finding) -> str:
    place = Path(finding.path)
    return f"{place.parent.name}/{place.name}: {finding.message.rstrip('.')} ({finding.found})"[:200]
