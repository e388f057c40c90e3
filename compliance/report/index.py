"""Groups the findings of a check by folder of runs, and builds the rows of the report's index."""

from math import isfinite
from pathlib import Path

from compliance.api import Outcome
from compliance.findings import Finding
from compliance.formats import counts
from compliance.submission.scores import ScoreCard
from compliance.submission.verdict import ResultFolder
from compliance.verdict import of_findings


def row(
    card: ScoreCard, findings: list[Finding] | None, folder: ResultFolder | None = None
) -> dict[str, object]:
    """Builds a folder's row. A `failed` run counts for no score. The score leaves out the `dropped` runs.

    Args:
      card: its score.
      findings: its findings from `by_folder`; None if `check` did not run, which leaves no verdict.
      folder: the judgment of `check`; without a convergence test `to_converge` is the mean of the runs.
    """
    convergence = folder.convergence if folder else None
    mean = convergence.mean if convergence else None
    errors, advice = counts(findings or ())
    return {
        "verdict": None if findings is None else of_findings(findings, card.smoke), "errors": errors, "advice": advice,
        "runs": len(card.runs), "needed": folder.needed if folder else card.needed,
        "failed": max(len(card.runs) - card.converged, len(folder.failed) if folder else 0),
        "dropped": len(card.left_out), "convergence": convergence,
        "to_converge": card.epochs if mean is None or not isfinite(mean) else mean,
    }  # fmt: skip


def folders_by_path(outcome: Outcome) -> dict[Path, ResultFolder]:
    """Returns what `check` found for each folder of a submission: {resolved path: result}."""
    folders = (folder for submission in outcome.submissions for folder in submission.folders)
    return {Path(folder.path).resolve(): folder for folder in folders}


def by_folder(outcome: Outcome, folders: list[Path]) -> tuple[list[list[Finding]], list[Finding]]:
    """Returns (the findings of each folder, the findings about the tree as a whole).

    A finding belongs to a folder if it is about a file in the folder, the description of its system, or the code of its
    benchmark on that system. A finding about a description belongs to every folder of the system.
    """
    places = [folder.resolve() for folder in folders]
    of_folders: list[list[Finding]] = [[] for _ in folders]
    rest = []
    for finding in outcome.findings:
        path = Path(finding.path).resolve()
        owners = [index for index, place in enumerate(places) if _belongs(path, place)]
        for index in owners:
            of_folders[index].append(finding)
        if not owners:
            rest.append(finding)
    return of_folders, rest


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
