"""Decides whether `package` accepts a finished tree: what `check` finds in it, and which runs may fail."""

import os
import sys
from pathlib import Path

from compliance.api import PACKAGING_ERRORS, check
from compliance.findings import ERROR, Finding

# Advice that refuses a package even for other submitters' logs: such runs are not results, or not what they seem.
_NEVER = frozenset(
    ("smoke_run", "no_mlperf_result", "resumed_from_step")
    + ("tree.duplicate", "tree.alike", "tree.seed", "tree.run-count")
)


def accept(tree: Path, ruleset: str | None, own_runs: bool, smoke: bool) -> bool:
    """Checks the finished tree as a submission and prints what it finds.

    Args:
      tree: the submitter's folder.
      ruleset: the round; None: find it from the tree and the logs.
      own_runs: True for runs of this repository, which must have no finding. For other logs advice is only printed.
      smoke: True for a practice tree, which is accepted whatever the findings.
    """
    outcome = check([tree], ruleset, packaging=own_runs)
    folders = [folder for submission in outcome.submissions for folder in submission.folders]
    dropped = {path for folder in folders for path in folder.dropped}
    findings = [finding for finding in outcome.findings if not _allowed(finding, dropped)]
    bad = [finding for finding in findings if own_runs or finding.severity == ERROR or finding.rule in _NEVER]
    shown = sys.stdout if smoke or not bad else sys.stderr
    for finding in findings:
        place = os.path.relpath(finding.path, tree.parent)
        line = f":{finding.line}" if finding.line else ""
        print(f"{place}{line}: {finding.message} {finding.fix[:1].upper()}{finding.fix[1:]}.", file=shown)
    for path in sorted(dropped):
        place = os.path.relpath(path, tree.parent)
        print(f"{place}: does not count; the score drops it as the slowest run.", file=shown)
    if bad and smoke:
        print(f"A submission would be refused for {len(bad)} findings; this is a practice tree.")
    elif bad:
        print(f"Refused: {len(bad)} findings, nothing written.", file=sys.stderr)
    return smoke or not bad


def _allowed(finding: Finding, dropped: set[str]) -> bool:
    """Whether a finding only reports the failure of a run that may fail (`ResultFolder.dropped`)."""
    if finding.path in dropped:
        return finding.rule not in PACKAGING_ERRORS and finding.rule != "not-checked"
    return finding.rule == "tree.score" and finding.path in {os.path.dirname(path) for path in dropped}
