"""Checks one log, or many logs in one process per core."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from common.errors import UserError
from compliance.findings import ERROR, Finding, FindingGroups, finding
from compliance.log import rules
from compliance.log.engine import StreamChecker
from compliance.log.find_round import Choice, open_log
from compliance.log.logs import read_log
from compliance.log.stock import Failure, StockReader
from compliance.submission.runs import Run, RunReader

# For fewer bytes than this, starting a process pool costs more than it saves.
_POOL_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20
_V05_TOKEN = b":::MLPv0.5"
HPC, V05 = "MLPerf HPC", "MLPerf Training v0.5"

ASKED_FOR = "asked for"


class LogResult(NamedTuple):
    """The result of checking one log: its findings, and the values that the checks of its directory compare."""

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
    ruleset_reason: str = ""
    org: object = None
    status: object = None
    family: str = ""  # MLPerf HPC or v0.5, for which there are no rules
    # What the stock programs refuse or end at, in counted and dropped runs alike.
    stock: tuple[Failure, ...] = ()
    run: Run | None = None  # None if the log cannot be read, or nobody asked for it

    @property
    def passes(self) -> bool:
        """Whether the log has no error of its own, and its run aimed at a target."""
        return not any(one.severity == ERROR or one.rule == "no_mlperf_result" for one in self.findings)


def check_log(
    path: str, ruleset: str | None = None, division: str | None = None, with_run: bool = True
) -> LogResult:
    """Checks one log against `ruleset` (None: `rounds.find` chooses); `with_run`: the result has the run, too.

    Raises UserError if the file cannot be read.
    """
    choice, records = (Choice(ruleset, ASKED_FOR), read_log(path, ruleset)) if ruleset else open_log(path)
    ruleset = choice.ruleset
    checker = StreamChecker(ruleset, division=division, path=path)
    groups = FindingGroups()
    reader = RunReader(path, ruleset)
    stock = StockReader(ruleset)
    feed, add, read, see = checker.feed, groups.add, reader.add, stock.take
    for record in records:
        see(record)
        if with_run:
            read(record)
        if broken := feed(record):
            add(broken)
    add(checker.finish())
    if not choice.certain:
        names = {"what": "the round of this log", "fix": "name the round by --ruleset"}
        expected = f"a log of one of the rulesets {', '.join(rules.RULESETS)}"
        add([finding("not-checked", ERROR, path, expected, choice.reason, **names)])
    whole_run = checker.whole_run
    findings = whole_run.runs.one_finding(path, groups.findings())
    family = ""
    org, platform, status = (
        whole_run.last[key].value if key in whole_run.last else None
        for key in ("submission_org", "submission_platform", "submission_status")
    )
    if not checker.records and (other := _other_form(path)):
        findings, family = [other], V05 if V05 in other.message else ""
    declared = checker.declared
    if (benchmark := declared.get("submission_benchmark")) in rules.HPC_BENCHMARKS:
        about = ("a log of MLPerf Training", f"{benchmark}, of MLPerf HPC")
        family, findings = HPC, [finding("not-checked", ERROR, path, *about, wording="not-checked.hpc")]
    return LogResult(
        path, ruleset, findings, benchmark, declared.get("submission_division"), platform, whole_run.seed,
        whole_run.smoke, whole_run.minutes(), whole_run.best is not None, choice.reason, org, status, family,
        stock.end(declared, checker.target and checker.target.spec), reader.run() if with_run else None,
    )  # fmt: skip


def _other_form(path: str) -> Finding | None:
    """Returns the finding about a log of v0.5, or one in UTF-16, whose token has zero bytes between its letters."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if _V05_TOKEN in head:
        about = "lines with :::MLL or :::MLLOG", "lines with :::MLPv0.5"
        return finding("no-records", ERROR, path, *about, wording="no-records.older")
    marks = (":::MLL".encode(coding) for coding in ("utf-16-le", "utf-16-be"))
    if not head.startswith((b"\xff\xfe", b"\xfe\xff")) and not any(mark in head for mark in marks):
        return None
    return finding("no-records", ERROR, path, "text in UTF-8", "UTF-16", wording="no-records.utf16")


def _check_safely(task: tuple[str, str | None, str | None, bool]) -> LogResult:
    path, ruleset, *_ = task
    try:
        return check_log(*task)
    except UserError as error:
        reason = str(error)
    except Exception as error:  # a bug here must not leave the rest of a tree unchecked, nor pass this log
        reason = f"the checker failed: {type(error).__name__}: {error}"[:300]
    names = {"what": "this file", "fix": "make the file readable; report a failure of the checker with it"}
    unchecked = finding("not-checked", ERROR, path, "a checked file", reason, **names)
    return LogResult(path, ruleset or "", [unchecked])


def check_logs(
    paths: Sequence[str], ruleset: str | None = None, division: str | None = None, with_runs: bool = True
) -> list[LogResult]:
    """Checks many logs, in one process per core when that pays off."""
    tasks = [(path, ruleset, division, with_runs) for path in paths]
    workers = min(len(tasks), os.cpu_count() or 1)
    if workers > 1 and sum(size_of(path) for path in paths) > _POOL_BYTES:
        from concurrent.futures import ProcessPoolExecutor

        # The largest first, so that no long log runs alone at the end; the results keep the order of `paths`.
        order = sorted(range(len(tasks)), key=lambda index: -size_of(paths[index]))
        with ProcessPoolExecutor(workers) as pool:
            done = pool.map(_check_safely, (tasks[index] for index in order), chunksize=1 + len(tasks) // 64)
            results = dict(zip(order, done))
        return [results[index] for index in range(len(tasks))]
    return [_check_safely(task) for task in tasks]


def size_of(path: str | os.PathLike) -> int:
    """Returns a file's bytes; -1 if it is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
