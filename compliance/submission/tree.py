"""Checks submission trees: whether logs, their paths, system descriptions and the other files agree.

The layout is that of the rules (mlcommons/policies, submission_rules, 2020):
`<org>/results/<system>/<benchmark>/result_<i>.txt`, `<org>/systems/<system>.json`, and below
`<org>/benchmarks/<benchmark>/` a directory of the system, beside `implementations/` or inside it (both were
published), with the scripts, the README and `<system>_<implementation>.json`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from compliance.findings import ERROR, Finding, finding
from compliance.log.check_log import LogResult, check_logs
from compliance.submission import tree_files, tree_runs, tree_system


def check_tree(
    root: Path, ruleset: str | None, division: str | None
) -> tuple[list[str], list[LogResult], list[Finding]]:
    """(files looked at, results of the logs, findings about the tree) of everything below `root`."""
    logs, findings = tree_files.find_logs(root)
    results = check_logs(logs, ruleset, division)
    if not logs:
        findings.append(finding("tree.empty", ERROR, root, "result_*.txt", "none"))
    groups: dict[tuple[Path, Path], list[LogResult]] = defaultdict(list)
    for result in results:
        directory = Path(os.path.abspath(result.path)).parent
        groups[directory, Path(result.path).parent].append(result)
    orgs: dict[Path, set[str]] = defaultdict(set)
    descriptions: dict[Path, dict | None] = {}
    findings += tree_runs.duplicates(results)
    for (directory, shown_as), group in groups.items():
        place = tree_files.place_of(directory)
        findings += tree_runs.same_seed(shown_as, group)
        if place is None:
            continue
        org, system, benchmark = place
        findings += tree_runs.one_directory(shown_as, benchmark, group)
        path = org / "systems" / f"{system}.json"
        if path not in descriptions:
            descriptions[path], remarks = tree_system.read_description(path, shown_as, group[0].ruleset)
            findings += remarks
        findings += tree_system.disagreements(shown_as, system, descriptions[path], path, group)
        if benchmark is not None:
            orgs[org].add(f"{system}/{benchmark}")
    files = [*logs, *(str(path) for path, content in descriptions.items() if content is not None)]
    for org, pairs in orgs.items():
        findings += tree_files.missing_code(org, sorted(pairs))
    return files, results, _unique(findings)


def _unique(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))
