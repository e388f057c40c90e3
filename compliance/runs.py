"""One result log as a run: when it started and stopped, what it did in between, what it reached."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from compliance.logs import BadLine, Record, guess_ruleset, read_log

# Quality that a run must reach, as logged under ruleset 0.7.0:
# mlperf_logging/compliance_checker/training_0.7.0/{closed,open}_<benchmark>.yaml (equal).
TARGETS: dict[str, dict[str, float]] = {
    "resnet": {"": 0.759},
    "ssd": {"": 0.23},
    "maskrcnn": {"BBOX": 0.377, "SEGM": 0.339},
    "transformer": {"": 0.25},
    "gnmt": {"": 0.24},
    "bert": {"": 0.712},
    "dlrm": {"": 0.8025},
    "minigo": {"": 0.5},
}
_PERCENT_IN_06 = {"transformer", "gnmt"}  # v0.6 logs BLEU on the scale 0 to 100
# What v0.6 logs may call a benchmark: Google's Mask R-CNN entries say "mask".
_OTHER_NAMES = {"mask": "maskrcnn"}


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the run, in milliseconds since the epoch; `stop` is None when its end was never logged."""

    start: float
    stop: float | None
    epoch: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One eval_accuracy; `values` has the key "" for a plain number, the metric's names for several."""

    epoch: float | None
    time_ms: float
    values: dict[str, float]


@dataclass(frozen=True)
class Run:
    """What one log tells. Times in milliseconds since the epoch, None where not logged."""

    path: Path
    ruleset: str
    header: dict[str, object]
    init_start: float | None
    init_stop: float | None
    run_start: float | None
    run_stop: float | None
    status: str
    blocks: tuple[Span, ...]
    evals: tuple[Span, ...]
    evaluations: tuple[Evaluation, ...]
    bad_lines: int
    target: dict[str, float]

    @property
    def benchmark(self) -> str:
        name = str(self.header.get("submission_benchmark", ""))
        return _OTHER_NAMES.get(name, name) if self.ruleset == "0.6.0" else name

    @property
    def smoke(self) -> bool:
        return bool(self.header.get("smoke_run", False))

    @property
    def minutes(self) -> float | None:
        """run_stop - run_start; None when either is missing or they are reversed."""
        if self.run_start is None or self.run_stop is None or self.run_stop < self.run_start:
            return None
        return (self.run_stop - self.run_start) / 60_000

    @property
    def quality(self) -> dict[str, float]:
        """The last evaluation that reached the target, or else the last one; {} without any."""
        reached = [e.values for e in self.evaluations if self._meets(e)]
        return reached[-1] if reached else self.evaluations[-1].values if self.evaluations else {}

    @property
    def epochs(self) -> float | None:
        """epoch_num of the last evaluation, as logged (submitters count from 0 or from 1)."""
        return self.evaluations[-1].epoch if self.evaluations else None

    @property
    def complies(self) -> bool:
        """Whether the run counts for the score: it has a time, says success and reached its target.

        Round v0.6 goes by the status alone: its rules check no quality.
        """
        if self.minutes is None or self.status != "success":
            return False
        return self.ruleset == "0.6.0" or not self.target or any(map(self._meets, self.evaluations))

    def _meets(self, evaluation: Evaluation) -> bool:
        values = evaluation.values
        return bool(self.target) and all(values.get(name, -math.inf) >= t for name, t in self.target.items())


_HEADER = frozenset(
    (
        "submission_benchmark",
        "submission_division",
        "submission_org",
        "submission_platform",
        "submission_status",
    )
    + ("global_batch_size", "seed", "smoke_run", "train_samples", "eval_samples", "opt_name")
)


def read_run(path: str | Path, ruleset: str | None = None) -> Run:
    """Reads one log, of round v0.6 or later.

    Raises UserError when the file cannot be read; odd lines are counted, never raised.
    """
    path = Path(path)
    ruleset = ruleset or guess_ruleset(path)
    header: dict[str, object] = {}
    marks: dict[str, float] = {}
    events: dict[str, list[Record]] = {"block": [], "eval": [], "epoch": []}
    evaluations: list[Evaluation] = []
    status, bad = "", 0
    for record in read_log(path, ruleset):
        if isinstance(record, BadLine):
            bad += 1
            continue
        key = record.key
        if key in _HEADER:
            header[key] = record.value
        elif key in ("init_start", "init_stop", "run_start", "run_stop"):
            if key == "run_stop" and "run_stop" not in marks:
                status = str(record.metadata.get("status", ""))
            marks.setdefault(key, record.time_ms)
        elif key == "eval_accuracy":
            if values := _quality(record.value, ruleset):
                evaluations.append(Evaluation(_epoch(record), record.time_ms, values))
        elif key.endswith(("_start", "_stop")) and (kind := key.rpartition("_")[0]) in events:
            events[kind].append(record)
    run = Run(
        path, ruleset, header, marks.get("init_start"), marks.get("init_stop"), marks.get("run_start"),
        marks.get("run_stop"), status, _spans(events["block"] or events["epoch"]), _spans(events["eval"]),
        tuple(evaluations), bad, {},
    )  # fmt: skip
    object.__setattr__(run, "target", _target(run.benchmark, ruleset))
    return run


def _target(benchmark: str, ruleset: str) -> dict[str, float]:
    target = TARGETS.get(benchmark, {})
    if ruleset == "0.6.0" and benchmark in _PERCENT_IN_06:
        return {name: 100 * value for name, value in target.items()}
    return target


def _spans(records: list[Record]) -> tuple[Span, ...]:
    """Starts matched with the stop of the same epoch: asynchronous evaluation reports them out of order."""
    open_spans: dict[float | None, float] = {}
    spans: list[Span] = []
    for record in records:
        epoch = _epoch(record)
        if record.key.endswith("_start"):
            open_spans.setdefault(epoch, record.time_ms)
        elif epoch in open_spans:
            spans.append(Span(open_spans.pop(epoch), record.time_ms, epoch))
    spans += [Span(start, None, epoch) for epoch, start in open_spans.items()]
    return tuple(sorted(spans, key=lambda span: span.start))


def _epoch(record: Record) -> float | None:
    return number(record.metadata.get("epoch_num", record.metadata.get("first_epoch_num")))


def _quality(value: object, ruleset: str) -> dict[str, float]:
    """Metric -> value; "" is the name of a plain number. Published v0.6 logs also hold text and pairs."""
    if ruleset == "0.6.0":
        if isinstance(value, list) and len(value) == 2:
            value = dict(zip(("BBOX", "SEGM"), value))
        elif isinstance(value, str) and len(value) < 40:
            try:
                value = float(value)
            except ValueError:
                return {}
    if isinstance(value, dict):
        return {str(k): v for k, raw in list(value.items())[:8] if (v := number(raw)) is not None}
    plain = number(value)
    return {} if plain is None else {"": plain}


def number(value: object) -> float | None:
    """A finite float, or None for anything else (booleans, text, NaN, integers beyond a float)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        plain = float(value)
    except OverflowError:
        return None
    return plain if math.isfinite(plain) else None
