"""Checks logs, results folders and whole submission trees: the library behind `timetotrain check`.

`check` returns an `Outcome`: the verdict, the files, the findings, and the result of each log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from compliance.findings import ADVICE, ERROR
from compliance.log import rules
from compliance.log.check_log import LogResult, check_logs
from compliance.submission.verdict import Outcome
from compliance.verdict import GO, NO_GO, Verdict, merge, of_findings  # noqa: F401 (part of the library)

# `check` reports these rules as advice, `package` as errors: a submission needs them, a published log may lack them.
PACKAGING_ERRORS = frozenset((
    "line.order", "eval.schedule", "train_samples.count", "eval_samples.count", "smoke_run", "no_mlperf_result",
    "resumed_from_step", "run.before-init", "tree.duplicate", "tree.seed", "tree.run-count", "tree.score",
    "tree.file-missing", "tree.system-missing", "system.count", "system.field", "tree.system-unclear", "tree.layout",
))  # fmt: skip


def check(
    paths: Sequence[str | os.PathLike],
    ruleset: str | None = None,
    division: str | None = None,
    packaging: bool = False,
) -> Outcome:
    """Checks logs, results folders and trees.

    Args:
      paths: files (each is read as a log) and directories.
      ruleset: one of `rules.RULESETS`; None: find it from the tree and the logs (log/find_round.py).
      division: the division that every log must be in; None: the division that each log names.
      packaging: report PACKAGING_ERRORS as errors instead of advice.

    Raises UserError if a path does not exist, or the ruleset or division is unknown.
    """
    if ruleset is not None and ruleset not in rules.RULESETS:
        raise UserError(f"unknown ruleset {ruleset!r}; known: {', '.join(rules.RULESETS)}")
    if division is not None and division not in rules.DIVISIONS:
        raise UserError(f"unknown division {division!r}; known: {', '.join(rules.DIVISIONS)}")
    if "" in paths:
        raise UserError("an empty path; name a log, a results folder or a tree ('.' is the current one)")
    places = [Path(path) for path in paths]
    singles = [_is_log(path) for path in places]
    logs = [str(path) for path, single in zip(places, singles) if single]
    results = iter(check_logs(logs, ruleset, division, with_runs=False))
    outcomes = [
        _one_path(path, next(results) if single else None, ruleset, division, packaging)
        for path, single in zip(places, singles)
    ]
    verdict = merge([one.verdict for one in outcomes], [str(path) for path in paths])
    every = ([part for one in outcomes for part in one[field]] for field in range(4))
    return Outcome(*every, verdict)


def _is_log(path: Path) -> bool:
    """True for a file, False for a directory. Raises UserError for anything else."""
    if path.is_dir():
        return False
    if path.is_file():
        return True
    what = "is not a plain file" if path.exists() else "no such file or directory"
    raise UserError(f"{path}: {what}; name a log, a results folder or a tree")


def _one_path(
    path: Path, log: LogResult | None, ruleset: str | None, division: str | None, packaging: bool
) -> Outcome:
    if log is None:
        from compliance.submission.tree import judge_tree  # not needed for a log

        outcome = judge_tree(path, ruleset, division)
    else:
        outcome = Outcome([str(path)], [], [log])
    # The olympic mean drops one failed run (unet3d: four), so its errors do not refuse the submission.
    dropped = outcome.dropped
    findings = [
        one._replace(severity=ADVICE) if log.path in dropped and one.rule != "not-checked" else one
        for log in outcome.logs
        for one in log.findings
    ]
    findings += outcome.findings
    if packaging:
        findings = [one._replace(severity=ERROR) if one.rule in PACKAGING_ERRORS else one for one in findings]
    verdict, by_findings = outcome.verdict, of_findings(findings, any(log.smoke for log in outcome.logs))
    if log is not None or GO != by_findings.answer != verdict.answer != NO_GO:
        verdict = by_findings
    return outcome._replace(findings=findings, verdict=verdict)
