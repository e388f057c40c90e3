"""`check`: logs, results folders and whole submission trees in, findings out.

`check_paths` is the library call; `check` also says which files were looked at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from compliance import rules
from compliance.engine import StreamChecker
from compliance.findings import ADVICE, ERROR, Finding, Groups, finding
from compliance.logs import BadLine, guess_ruleset, read_log, shown
from compliance.story import Story

# Advice in `check`, errors for the packager: what a submission needs and a published log may lack.
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
# Below this a pool of processes costs more than it saves.
_POOL_BYTES = 8 << 20


class LogResult(NamedTuple):
    """One checked log: its findings and what the checks of its directory compare."""

    path: str
    ruleset: str
    findings: list[Finding]
    benchmark: object = None
    division: object = None
    platform: object = None
    seed: object = None
    smoke: bool = False
    minutes: float | None = None
    met: bool = False

    @property
    def passes(self) -> bool:
        """Whether the log itself has no error."""
        return not any(finding.severity == ERROR for finding in self.findings)


class Outcome(NamedTuple):
    """What was looked at and what was found."""

    files: list[str]
    findings: list[Finding]
    logs: list[LogResult]


def check_log(path: str, ruleset: str | None = None, division: str | None = None) -> LogResult:
    """Checks one log against its ruleset (guessed from its form when None).

    Raises:
      UserError: the file cannot be read, or a ruleset that needs the stock checker finds none installed.
    """
    ruleset = ruleset or guess_ruleset(path)
    if ruleset not in rules.OWN_RULESETS:
        return _check_later(path, ruleset, division)
    checker = StreamChecker(ruleset, division=division, path=path)
    groups = Groups()
    feed, add = checker.feed, groups.add
    for record in read_log(path, ruleset):
        if found := feed(record):
            add(found)
    add(checker.finish())
    story = checker.story
    named = checker.declared
    return LogResult(
        path, ruleset, groups.findings(), named.get("submission_benchmark"), named.get("submission_division"),
        checker.platform, story.seed, story.smoke, story.minutes(), story.best is not None,
    )  # fmt: skip


def _check_later(path: str, ruleset: str, division: str | None) -> LogResult:
    """Rulesets from 1.0.0 on: the stock checker in its own process, beside our reading of the lines."""
    from compliance import stock

    def make(rule, severity, record, expected, found, **names):
        line, text = (record.line, record.text) if record is not None else (0, "")
        return finding(rule, severity, path, expected, found, line=line, text=text, **names)

    story, groups, named = Story(make), Groups(), {}
    for record in read_log(path, ruleset):
        if record.__class__ is BadLine:
            names = {"wording": record.wording, **record.names}
            groups.add([make(record.rule, record.severity, record, record.expected, record.found, **names)])
            continue
        if record.key.startswith("submission_"):
            named.setdefault(record.key, record.value)
        if (handler := story.handlers.get(record.key)) and (remark := handler(record)):
            groups.add([remark])
    if division is not None and named.get("submission_division") != division:
        found = shown(named.get("submission_division"))
        groups.add([make("submission_division.asked", ERROR, None, division, found, wording="asked")])
    groups.add(story.end({}, None))
    groups.add(stock.findings(path, ruleset))
    return LogResult(
        path, ruleset, groups.findings(), named.get("submission_benchmark"), named.get("submission_division"),
        named.get("submission_platform"), story.seed, story.smoke, story.minutes(), True,
    )  # fmt: skip


def _check_safely(task: tuple[str, str | None, str | None]) -> LogResult:
    path, ruleset, division = task
    try:
        return check_log(path, ruleset, division)
    except UserError as error:
        reason = str(error)
    except (
        Exception
    ) as error:  # a fault of ours must not leave the rest of a tree unchecked, nor this log "passed"
        reason = f"the checker failed: {type(error).__name__}: {error}"[:300]
    names = {"what": "this file", "fix": "make the file readable; report a failure of the checker with it"}
    unchecked = finding("not-checked", ERROR, path, "a checked file", reason, **names)
    return LogResult(path, ruleset or "", [unchecked])


def check_logs(
    paths: Sequence[str], ruleset: str | None = None, division: str | None = None
) -> list[LogResult]:
    """Checks many logs, in as many processes as there are cores when that pays."""
    tasks = [(path, ruleset, division) for path in paths]
    stock_runs = ruleset is not None and ruleset not in rules.OWN_RULESETS
    workers = min(len(tasks), os.cpu_count() or 1)
    if workers > 1 and (stock_runs or sum(_size(path) for path in paths) > _POOL_BYTES):
        from concurrent.futures import ProcessPoolExecutor

        # The largest first, so that no long log is left for the end; the results keep the order of `paths`.
        order = sorted(range(len(tasks)), key=lambda index: -_size(paths[index]))
        with ProcessPoolExecutor(workers) as pool:
            done = pool.map(_check_safely, (tasks[index] for index in order), chunksize=1 + len(tasks) // 64)
            results = dict(zip(order, done))
        return [results[index] for index in range(len(tasks))]
    return [_check_safely(task) for task in tasks]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


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
      division: what every log must be; None: what it says.
      packaging: advice that a submission must not have becomes an error.

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
    for path in map(Path, paths):
        if path.is_dir():
            from compliance import tree

            looked_at, results, about_tree = tree.check_tree(path, ruleset, division)
        elif path.is_file():
            looked_at, about_tree = [str(path)], []
            results = [_check_safely((str(path), ruleset, division))]
        else:
            what = "is not a plain file" if path.exists() else "no such file or directory"
            raise UserError(f"{path}: {what}; name a log, a results folder or a tree")
        files += looked_at
        logs += results
        for result in results:
            findings += result.findings
        findings += about_tree
    if packaging:
        findings = [
            finding._replace(severity=ERROR)
            if finding.severity == ADVICE and finding.rule in PACKAGING_ERRORS
            else finding
            for finding in findings
        ]
    return Outcome(files, findings, logs)


def check_paths(
    paths: Sequence[str | os.PathLike],
    ruleset: str | None = None,
    division: str | None = None,
    packaging: bool = False,
) -> list[Finding]:
    """The findings of `check`, equal ones grouped (their `lines` has every line)."""
    return check(paths, ruleset, division, packaging).findings
