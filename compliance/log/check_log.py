"""Checks single logs, and many of them in as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from common.errors import UserError
from compliance.findings import ERROR, Finding, Groups, finding
from compliance.log import rules
from compliance.log.engine import StreamChecker
from compliance.log.logs import BadLine, guess_ruleset, read_log, shown
from compliance.log.story import Story

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
    """Checks a log of ruleset 1.0.0 or later: the stock checker in its own process, and our reader of lines."""
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
    ) as error:  # a bug here must not leave the rest of a tree unchecked, nor count this log as passed
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
