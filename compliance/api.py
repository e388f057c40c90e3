"""Checks logs, results folders and whole submission trees: the library behind `python -m compliance check`.

`check` returns an `Outcome`: the verdict, the files, the findings and the result of each log; `check_paths` the
findings alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from common.errors import UserError
from compliance.findings import ADVICE, ERROR, Finding
from compliance.log import rules
from compliance.log.check_log import LogResult, check_logs

if TYPE_CHECKING:
    from compliance.submission.verdict import Submission

# Rules that give advice in `check` and errors in `package`: a submission needs them, a published log may lack them.
PACKAGING_ERRORS = frozenset(
    {
        *(
            "line.order",
            "eval.schedule",
            "train_samples.count",
            "eval_samples.count",
            "smoke_run",
            "resumed_from_step",
            "run.before-init",
        ),
        *(
            "tree.duplicate",
            "tree.seed",
            "tree.run-count",
            "tree.score",
            "tree.file-missing",
            "tree.system-missing",
        ),
        *("system.count", "system.field", "tree.system-unclear", "tree.layout"),
    }
)


GO, NO_GO, NOT_CHECKED = "go", "no-go", "not checked"
_UNCHECKED = "not-checked"  # the rule of findings about files that are there and could not be judged


class Verdict(NamedTuple):
    """The answer of a whole check.

    `answer` is "go" (nothing that a submission is refused for), "no-go" (at least one error) or "not checked" (no error
    was found, but some of the files could not be judged). `reasons` names the rules that were broken, the most frequent
    first; `not_checked` the files that could not be judged.
    """

    answer: str
    reasons: list[str]
    not_checked: list[str]

    @property
    def go(self) -> bool:
        """Whether the answer is "go"."""
        return self.answer == GO


class Outcome(NamedTuple):
    """The checked files, the findings, the result of each log, and the submitters' folders with their scores' runs.

    The errors of a run that the olympic mean drops are advice here; `logs` has them as they are.
    """

    files: list[str]
    findings: list[Finding]
    logs: list[LogResult]
    submissions: Sequence[Submission] = ()

    @property
    def errors(self) -> list[Finding]:
        """The findings that a submission would be refused for."""
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def advice(self) -> list[Finding]:
        """The findings that are worth knowing."""
        return [finding for finding in self.findings if finding.severity != ERROR]

    @property
    def verdict(self) -> Verdict:
        """The answer of the whole check, with its reasons."""
        broken: dict[str, int] = {}
        unchecked: list[str] = []
        for finding in self.errors:
            if finding.rule == _UNCHECKED:
                unchecked.append(finding.path)
            else:
                broken[finding.rule] = broken.get(finding.rule, 0) + 1
        answer = NO_GO if broken else NOT_CHECKED if unchecked else GO
        return Verdict(answer, sorted(broken, key=lambda rule: -broken[rule]), unchecked)


def check(
    paths: Sequence[str | os.PathLike],
    ruleset: str | None = None,
    division: str | None = None,
    packaging: bool = False,
) -> Outcome:
    """Checks logs, results folders and trees.

    Args:
      paths: files (each is taken as a log) and directories.
      ruleset: one of `rules.RULESETS`; None: each log's own form decides between 0.6.0 and 0.7.0.
      division: the division that every log must be in; None: the one that the log names.
      packaging: report PACKAGING_ERRORS as errors instead of advice.

    Raises:
      UserError: a path does not exist, or the ruleset or division is unknown.
    """
    if ruleset is not None and ruleset not in rules.RULESETS:
        raise UserError(f"unknown ruleset {ruleset!r}; known: {', '.join(rules.RULESETS)}")
    if division is not None and division not in rules.DIVISIONS:
        raise UserError(f"unknown division {division!r}; known: {', '.join(rules.DIVISIONS)}")
    if "" in paths:
        raise UserError("an empty path; name a log, a results folder or a tree ('.' is the current one)")
    files: list[str] = []
    findings: list[Finding] = []
    logs: list[LogResult] = []
    dropped: set[str] = set()
    submissions: list[Submission] = []
    for path in map(Path, paths):
        if path.is_dir():
            from compliance.submission.tree import judge_tree  # not needed for a log

            tree = judge_tree(path, ruleset, division)
            looked_at, results, about_tree = tree.files, tree.logs, tree.findings
            dropped |= tree.dropped
            submissions += tree.submissions
        elif path.is_file():
            looked_at, about_tree = [str(path)], []
            results = check_logs([str(path)], ruleset, division)
        else:
            what = "is not a plain file" if path.exists() else "no such file or directory"
            raise UserError(f"{path}: {what}; name a log, a results folder or a tree")
        files += looked_at
        logs += results
        for result in results:
            # The olympic mean drops a failed run or two: their errors refuse nothing.
            findings += _as_advice(result.findings) if result.path in dropped else result.findings
        findings += about_tree
    if packaging:
        findings = [
            finding._replace(severity=ERROR)
            if finding.severity == ADVICE and finding.rule in PACKAGING_ERRORS
            else finding
            for finding in findings
        ]
    return Outcome(files, findings, logs, submissions)


def _as_advice(findings: list[Finding]) -> list[Finding]:
    return [one if one.rule == _UNCHECKED else one._replace(severity=ADVICE) for one in findings]


def check_paths(
    paths: Sequence[str | os.PathLike],
    ruleset: str | None = None,
    division: str | None = None,
    packaging: bool = False,
) -> list[Finding]:
    """Returns the findings of `check`; equal ones are grouped, with every line in `lines`."""
    return check(paths, ruleset, division, packaging).findings
