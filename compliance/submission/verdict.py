"""Defines the result of checking a tree: its submissions, their folders of runs, and one verdict with reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from compliance.findings import ERROR, Finding
from compliance.log.check_log import LogResult
from compliance.submission.rcp import Convergence
from compliance.submission.runs import Run
from compliance.verdict import GO, NO_GO, NOT_CHECKED, PRACTICE, Verdict


@dataclass(frozen=True)
class ResultFolder:
    """`results/<system>/<benchmark>/`: `paths` are its logs, `needed` is the number of runs that the round requires.

    `failed` holds the paths of logs that count for no score; the olympic mean drops up to `may_fail` of them.
    `convergence` is None if the round, the division or the benchmark has no such test. `runs` has each log's run.
    """

    path: Path
    system: str
    benchmark: str
    division: str
    ruleset: str
    paths: tuple[str, ...]
    needed: int
    failed: tuple[str, ...]
    may_fail: int
    convergence: Convergence | None
    batch: float | None
    runs: tuple[Run, ...] = ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Returns the failed runs that are legally dropped; () if there are too many, or no other run."""
        failed = len(self.failed)
        return self.failed if failed <= self.may_fail and failed < len(self.paths) else ()


@dataclass(frozen=True)
class Submission:
    """One submitter's folder: `results/`, `systems/`, `benchmarks/`."""

    path: Path
    ruleset: str
    folders: tuple[ResultFolder, ...]
    verdict: Verdict


class Outcome(NamedTuple):
    """The outcome of a check: files, findings, the result of each log, submitters' folders, and one verdict.

    If the olympic mean drops a run, `findings` lists the run's errors as advice; `logs` keeps them as errors.
    """

    files: list[str]
    findings: list[Finding]
    logs: list[LogResult]
    submissions: Sequence[Submission] = ()
    verdict: Verdict = Verdict(GO)

    @property
    def dropped(self) -> frozenset[str]:
        """Returns the failed logs that are legally dropped: their errors do not make a tree a NO_GO."""
        return frozenset(path for tree in self.submissions for one in tree.folders for path in one.dropped)

    @property
    def errors(self) -> list[Finding]:
        """Findings that make a submission be refused."""
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def advice(self) -> list[Finding]:
        """Findings that are worth knowing but refuse nothing."""
        return [finding for finding in self.findings if finding.severity != ERROR]


def no_folders(root: Path, verdict: Verdict | None = None) -> UserError:
    """Builds the error about a tree without a folder of runs: why it was not checked, else what to name."""
    reason = "no results/<system>/<benchmark>/ with logs; name the folder above results/"
    return UserError(f"{root}: {verdict.reasons[0] if verdict and verdict.answer == NOT_CHECKED else reason}")


def judge(findings: list[Finding], reasons: list[str], looked_at: bool, practice: bool) -> Verdict:
    """Returns the verdict of one submission.

    Args:
      findings: the findings about the submission, without those about its logs.
      reasons: what is wrong with its logs; () if all pass or are dropped.
      looked_at: whether there was a folder of runs to judge.
      practice: whether a log is from a smoke run.
    """
    every = dict.fromkeys(reasons)
    for one in findings:
        if one.severity == ERROR:
            place = f"{Path(one.path).parent.name}/{Path(one.path).name}"
            every[f"{place}: {one.message.rstrip('.')} ({one.found})"[:200]] = None
    if every:
        return Verdict(NO_GO, tuple(every))
    if practice:
        return Verdict(NOT_CHECKED, (PRACTICE,))
    if not looked_at:
        return Verdict(NOT_CHECKED, ("there is no results/<system>/<benchmark>/ with logs",))
    return Verdict(GO)
