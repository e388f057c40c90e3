"""Sorts the outcome of a check by folder of runs, and builds the rows of the report's index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compliance.api import Outcome
from compliance.findings import Finding
from compliance.submission.rcp import Convergence
from compliance.submission.scores import ScoreCard
from compliance.submission.verdict import ResultFolder
from compliance.verdict import Verdict, of_findings


@dataclass(frozen=True)
class Row:
    """One folder of runs in the index. `failed` runs do not count for a score, `dropped` ones leave it."""

    verdict: Verdict | None  # None where `check` did not run
    errors: int
    advice: int
    runs: int
    needed: int
    failed: int
    dropped: int
    convergence: Convergence | None  # None where there is no such test


def row(card: ScoreCard, findings: list[Finding] | None, folder: ResultFolder | None = None) -> Row:
    """The index's row of a folder; `findings` as `by_folder` gives them, `folder` what `check` says of its runs."""
    outcome = Outcome([], findings or [], [])
    return Row(
        None if findings is None else of_findings(findings, card.smoke),
        len(outcome.errors),
        len(outcome.advice),
        len(card.runs),
        folder.needed if folder else card.needed,
        max(len(card.runs) - card.converged, len(folder.failed) if folder else 0),
        len(card.dropped),
        folder.convergence if folder else None,
    )


def judged(outcome: Outcome) -> dict[Path, ResultFolder]:
    """What `check` says of each folder of a submission, by its resolved path."""
    folders = (folder for submission in outcome.submissions for folder in submission.folders)
    return {Path(folder.path).resolve(): folder for folder in folders}


def by_folder(outcome: Outcome, folders: list[Path]) -> tuple[list[list[Finding]], list[Finding]]:
    """(the findings of each folder, those about the tree as a whole).

    A finding belongs to a folder when it is about a file in it, the description of its system, or the code of
    its benchmark on that system; one about the description belongs to every folder of the system.
    """
    places = [folder.resolve() for folder in folders]
    found: list[list[Finding]] = [[] for _ in folders]
    rest = []
    for finding in outcome.findings:
        path = Path(finding.path).resolve()
        owners = [index for index, place in enumerate(places) if _belongs(path, place)]
        for index in owners:
            found[index].append(finding)
        if not owners:
            rest.append(finding)
    return found, rest


def _belongs(path: Path, place: Path) -> bool:
    if path == place or place in path.parents:
        return True
    if len(place.parents) < 3:
        return False
    org, system, benchmark = place.parents[2], place.parent.name, place.name
    if path == org / "systems" / f"{system}.json":
        return True
    code = org / "benchmarks" / benchmark / system
    return path == code or code in path.parents
