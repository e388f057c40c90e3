"""Reads one result log as a run: start and stop, blocks and evaluations, and the final quality."""

import math
from dataclasses import dataclass
from pathlib import Path

from compliance.log.find_round import find
from compliance.log.logs import BadLine, Record, read_log
from compliance.log.rules import metric
from compliance.log.whole_run import Target
from compliance.submission.downsampling import Span, Spans, Thinned

# Other names of benchmarks in v0.6 logs: Google's Mask R-CNN entries say "mask".
_OTHER_NAMES = {"mask": "maskrcnn"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One eval_accuracy. `values` maps metric names to values; a plain number has the name "".

    `met`: whether it meets the target in the benchmark's rules; None if the rules fix no target.
    """

    epoch: float | None
    time_ms: float
    values: dict[str, float]
    met: bool | None


@dataclass(frozen=True)
class Run:
    """The contents of one log. Times are in milliseconds since the epoch, or None if not logged."""

    path: Path
    ruleset: str
    benchmark: str
    header: dict[str, object]
    settings: dict[str, object]  # other single values logged before run_start: hyperparameters
    init_start: float | None
    init_stop: float | None
    run_start: float | None
    run_stop: float | None
    status: str
    blocks: tuple[Span, ...]
    evals: tuple[Span, ...]
    evaluations: tuple[Evaluation, ...]  # above `downsampling.MOST`: every n-th and the last
    evaluated: int  # number of evaluations in the log
    best: Evaluation | None  # the last one that met the target
    unit: str  # of `Evaluation.epoch`: "epochs", "samples" or "steps", as the log counts
    bad_lines: int
    target: dict[str, float]  # to draw, by metric
    has_goal: bool  # whether the benchmark's rules fix a target

    @property
    def smoke(self) -> bool:
        return bool(self.header.get("smoke_run", False))

    @property
    def minutes(self) -> float | None:
        """Returns run_stop - run_start; None if either is missing or they are reversed."""
        if self.run_start is None or self.run_stop is None or self.run_stop < self.run_start:
            return None
        return (self.run_stop - self.run_start) / 60_000

    @property
    def quality(self) -> dict[str, float]:
        """Returns the values of the last evaluation that met the target, else of the last evaluation; {} if none."""
        if self.best is not None:
            return self.best.values
        return self.evaluations[-1].values if self.evaluations else {}

    @property
    def epochs(self) -> float | None:
        """Returns epochs (or samples, see `unit`) at the last evaluation, as logged: submitters count from 0 or 1."""
        return self.evaluations[-1].epoch if self.evaluations else None

    @property
    def complies(self) -> bool:
        """Whether the run counts for the score: it has a time to train (a resumed run has none), its status is
        "success", and it met its target.

        If the rules check no target (v0.6), or a different target applies (a smoke run), the status decides.
        """
        if self.minutes is None or self.status != "success" or self.header.get("resumed_from_step"):
            return False
        by_status = self.ruleset == "0.6.0" or self.smoke or not self.has_goal
        return by_status or self.best is not None


_HEADER = frozenset(
    (
        "submission_benchmark", "submission_division", "submission_org", "submission_platform",
        "submission_status",
    )
    + (
        "global_batch_size", "seed", "smoke_run", "train_samples", "eval_samples", "opt_name",
        "resumed_from_step",
    )
)  # fmt: skip
_NO_SETTINGS = frozenset(("cache_clear", "submission_poc_name", "submission_poc_email", "submission_entry"))
_MAX_SETTINGS = 200


def read_run(path: str | Path, ruleset: str | None = None) -> Run:
    """Reads one log of round v0.6 or later.

    Memory is bounded for a log of any length: of many evaluations and intervals only a part is kept (downsampling.py).

    Raises UserError if the file cannot be read. Odd lines are counted, never raised.
    """
    path = Path(path)
    ruleset = ruleset or find(path).ruleset
    header: dict[str, object] = {}
    settings: dict[str, object] = {}
    marks: dict[str, float] = {}
    spans = {"block": Spans(), "eval": Spans(), "epoch": Spans()}
    evaluations: Thinned[Record] = Thinned()
    results: dict[str, Record] = {}
    status, bad = "", 0
    for record in read_log(path, ruleset):
        if isinstance(record, BadLine):
            bad += 1
            continue
        key = record.key
        if key in _HEADER:
            header[key] = record.value
        elif number(record.time_ms) is None:
            bad += 1
        elif key in ("init_start", "init_stop", "run_start", "run_stop"):
            if key == "run_stop" and "run_stop" not in marks:
                status = str(record.metadata.get("status", ""))
            marks.setdefault(key, record.time_ms)
        elif key == "eval_accuracy":
            evaluations.add(record)
        elif key == "eval_result":
            results.setdefault(key, record)
        elif (kind := key.rpartition("_"))[0] in spans and kind[2] in ("start", "stop"):
            getattr(spans[kind[0]], kind[2])(_epoch(record), record.time_ms)
        elif "run_start" not in marks and key not in _NO_SETTINGS and len(settings) < _MAX_SETTINGS:
            settings[key] = record.value
    name = _benchmark(header, ruleset)
    rule = metric(ruleset, name)
    if "run_ends" in rule:
        status = _end(rule["run_ends"], results, marks)
    spec = rule.get("goal") or rule.get("keys", {}).get("eval_accuracy", {}).get("target")
    judge = _Judge(ruleset, spec, header.get("global_batch_size"))
    if evaluations.count > len(evaluations.items):  # only a part was kept, so they were judged one by one
        records = read_log(path, ruleset)
    else:
        records = evaluations.items
    for record in records:
        if isinstance(record, Record) and record.key == "eval_accuracy":
            judge.add(record)
    moments = (marks.get(key) for key in ("init_start", "init_stop", "run_start", "run_stop"))
    blocks, evals = spans["block"].spans() or spans["epoch"].spans(), spans["eval"].spans()
    return Run(
        path, ruleset, name, header, settings, *moments, status, blocks, evals, tuple(judge.kept.items),
        judge.kept.count, judge.best, judge.unit, bad, _bounds(spec, header.get("global_batch_size")), bool(spec),
    )  # fmt: skip


def _end(how: dict, results: dict[str, Record], marks: dict[str, float]) -> str:
    """Returns the status of a run whose end another record names, and sets `run_stop` in `marks`.

    The record gives the end as seconds after `run_start`. Minigo of v0.6 ends when it saves the model that met the
    target, and evaluates it afterwards; 0 seconds mean that no model met the target (mlperf_logging 4.1.68
    compliance_checker/training_0.6.0/minigo.yaml, `eval_result`).
    """
    marks.pop("run_stop", None)
    record = results.get(how["key"])
    seconds = number(record.metadata.get(how["seconds"])) if record else None
    if seconds is None or seconds <= 0 or "run_start" not in marks:
        return "aborted"
    marks["run_stop"] = marks["run_start"] + seconds * 1000
    return "success"


def _benchmark(header: dict[str, object], ruleset: str) -> str:
    name = str(header.get("submission_benchmark", ""))
    return _OTHER_NAMES.get(name, name) if ruleset == "0.6.0" else name


class _Judge:
    """Judges evaluations in log order; keeps a part of them, and the last one that met the target."""

    def __init__(self, ruleset: str, spec: dict | None, batch: object) -> None:
        self.kept: Thinned[Evaluation] = Thinned()
        self.best: Evaluation | None = None
        self.unit = "epochs"
        self._ruleset, self._batch = ruleset, batch
        self._target = Target(spec, lenient=ruleset == "0.6.0") if spec else None

    def add(self, record: Record) -> None:
        """Takes the next `eval_accuracy`; ignores one whose time or value is not a number."""
        values = _quality(record.value, self._ruleset)
        metric = record.metadata.get("metric")
        if isinstance(metric, str) and list(values) == [""]:  # stable_diffusion logs FID and CLIP separately
            values = {metric[:40]: values[""]}
        if not values or number(record.time_ms) is None:
            return
        met = self._target.judge(record.value, self._batch) if self._target else None
        at, self.unit = _converged_at(record)
        evaluation = Evaluation(at, record.time_ms, values, met)
        self.kept.add(evaluation)
        if met:
            self.best = evaluation


def _bounds(spec: dict | None, batch: object) -> dict[str, float]:
    """Returns the target per metric as a number to draw: an upper bound if lower is better (`at_most`)."""
    if not spec:
        return {}
    if "by" in spec:  # the batch size chooses
        below = isinstance(batch, (int, float)) and batch < spec["less"]
        return _bounds(spec["then"] if below else spec["else"], batch)
    if "fields" in spec:
        return {
            name: bound for name, part in spec["fields"].items() for bound in _bounds(part, batch).values()
        }
    bound = spec.get("at_most", spec.get("at_least"))
    return {} if bound is None else {"": float(bound)}


# Training progress in the metadata. Language models count samples; if they log epochs too, it is a fraction of one.
_PROGRESS = ("epoch_num", "first_epoch_num", "samples_count", "step_num")
_UNITS = {"samples_count": "samples", "epoch_num": "epochs", "step_num": "steps"}


def _epoch(record: Record) -> float | None:
    return number(next((record.metadata[name] for name in _PROGRESS if name in record.metadata), None))


def _converged_at(record: Record) -> tuple[float | None, str]:
    """Returns (progress, unit) of an evaluation."""
    for name, unit in _UNITS.items():
        if name in record.metadata:
            return number(record.metadata[name]), unit
    return None, "epochs"


def _quality(value: object, ruleset: str) -> dict[str, float]:
    """Returns {metric: value}; a plain number has the name "". Published v0.6 logs also hold text and pairs."""
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
    """Returns a finite float, or None for anything else (booleans, text, NaN, integers beyond a float)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        plain = float(value)
    except OverflowError:
        return None
    return plain if math.isfinite(plain) else None
