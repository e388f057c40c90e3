"""Detects a log to which a restarted job appended another run, and reports one finding instead of many."""

from dataclasses import dataclass

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.logs import Record

# Processes of one run log their starts within a second of each other; a job takes longer to start again.
_APART_MS = 1000
_HEADER = frozenset(
    ("cache_clear", "init_start", "submission_benchmark", "submission_division", "submission_org")
)
KEYS = (*_HEADER, "run_start", "run_stop")
_MAX_RUNS = 100
_SHOWN = 8
# Rules that a second run in a log breaks by itself, besides <key>.occurs and <key>.order.
_FOLLOW = frozenset((
    "line.order", "run.before-init", "init.reversed", "run.reversed", "interval.unpaired", "eval_accuracy.twice",
    "eval.schedule", "written.schedule", "eval.place", "run_stop.status", "run_stop.target-after",
))  # fmt: skip


@dataclass
class _Run:
    first: int
    start_ms: float
    end: str = "without run_stop"


class Runs:
    """Follows the starts of runs in one log; `add` takes each record of KEYS."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._header = 0  # the first line of a header after a run_start

    def add(self, record: Record) -> None:
        """Takes the next record."""
        runs = self._runs
        if record.key in _HEADER:
            self._header = self._header or record.line
        elif record.key == "run_stop":
            if runs:
                runs[-1].end = f"status {str(record.metadata.get('status'))[:20]}"
                self._header = 0
        elif not runs or (self._header and abs(record.time_ms - runs[-1].start_ms) > _APART_MS):
            if len(runs) < _MAX_RUNS:
                runs.append(_Run(self._header or record.line, record.time_ms))
            self._header = 0

    def one_finding(self, path: str, findings: list[Finding]) -> list[Finding]:
        """Returns the findings with those that the second run causes made one, which names the lines of each run."""
        if len(self._runs) < 2:
            return findings
        second = self._runs[1].first
        caused = [
            one
            for one in findings
            if one.rule in _FOLLOW
            or (one.rule.endswith((".occurs", ".order")) and max(one.lines, default=one.line) >= second)
        ]
        severity = ERROR if any(one.severity == ERROR for one in caused) else ADVICE
        ends = [f"to {later.first - 1:,}" for later in self._runs[1:]] + ["on"]
        spans = [f"line {run.first:,} {end} ({run.end})" for run, end in zip(self._runs, ends)]
        actual = "; ".join(spans[:_SHOWN]) + ("; ..." if len(spans) > _SHOWN else "")
        lines = [run.first for run in self._runs]
        about = finding("log.two-runs", severity, path, "one run", actual, line=second, count=len(self._runs))
        return [about._replace(lines=lines), *(one for one in findings if one not in caused)]
