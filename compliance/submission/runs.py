"""Reads one result log as a run: times, intervals, evaluations, final quality, what the checks of a folder compare."""

from dataclasses import dataclass
from pathlib import Path

from compliance.log.find_round import Choice, open_log
from compliance.log.logs import BadLine, Record, number, numeral, read_log, text_of
from compliance.log.rules import benchmark_section
from compliance.log.whole_run import Target
from compliance.submission.facts import OF_FACTS, FactsReader, Result, possible_number
from compliance.submission.intervals import MOST, Span, Spans

# Other names of benchmarks in v0.6 logs: Google's Mask R-CNN entries say "mask".
_OTHER_NAMES = {"mask": "maskrcnn"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One eval_accuracy. `values` maps metric names to values; a plain number has the name ""."""

    epoch: float | None
    time_ms: float
    values: dict[str, float]


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
    evaluations: tuple[Evaluation, ...]  # at most `intervals.MOST`, and the last one
    evaluated: int  # number of evaluations in the log
    best: Evaluation | None  # the last one that met the target
    unit: str  # of `Evaluation.epoch`: "epochs", "samples" or "steps", as the log counts
    bad_lines: int
    target: dict[str, float]  # to draw, by metric
    has_goal: bool  # whether the benchmark's rules fix a target
    # What the checks of a folder compare (facts.py).
    hyperparameters: dict[str, str]  # those logged before run_start, as text
    seeds: tuple[tuple[str, str, int], ...]  # (file, line, seed)
    bad_seeds: tuple[str, ...]  # seeds that are not whole numbers or name no place
    to_converge: float | None  # epochs or samples; None: it did not converge, or the log does not say when
    unread: str  # the number that hides when it converged; or ""
    results: tuple[Result, ...]  # the last evaluations, valid or not

    @property
    def batch(self) -> float | None:
        return number(self.header.get("global_batch_size"))

    @property
    def started(self) -> float | None:
        """Returns `run_start` if a run can have that time."""
        return possible_number(self.run_start)

    @property
    def stopped(self) -> float | None:
        return possible_number(self.run_stop)

    @property
    def began(self) -> bool:
        """Whether the log has reached run_start."""
        return self.started is not None or self.stopped is not None

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


_HEADER = frozenset((
    "submission_benchmark", "submission_division", "submission_org", "submission_platform", "submission_status",
    "global_batch_size", "seed", "smoke_run", "train_samples", "eval_samples", "opt_name", "resumed_from_step",
))  # fmt: skip
_SPANS = ("block", "eval", "epoch")
# The keys that count after run_start.
_LATER = _HEADER | {f"{kind}_{end}" for kind in (*_SPANS, "init", "run") for end in ("start", "stop")}
_LATER |= OF_FACTS | {"eval_result"}
_NO_SETTINGS = frozenset(("cache_clear", "submission_poc_name", "submission_poc_email", "submission_entry"))
_MAX_SETTINGS = 1000
_MAX_TEXT = 500  # characters of a setting
_HELD = 1000  # evaluations before which a log has its whole header


class RunReader:
    """Collects a run from the records of its log, in log order. `add` takes them, `run` returns the run.

    Memory is bounded for a log of any length: of many evaluations and intervals only a part is kept (intervals.py).
    """

    def __init__(self, path: str | Path, ruleset: str, bert_samples: bool = False) -> None:
        self._path, self._ruleset = Path(path), ruleset
        self._facts = FactsReader(ruleset, bert_samples)
        self._header: dict[str, object] = {}
        self._settings: dict[str, object] = {}
        self._marks: dict[str, float] = {}
        self._spans = {kind: Spans() for kind in _SPANS}
        self._judge = _EvaluationJudge(ruleset)
        self._end: Record | None = None  # the first eval_result
        self._status, self._bad = "", 0

    def add(self, record: Record | BadLine) -> None:
        """Takes the next record or bad line."""
        if isinstance(record, BadLine):
            self._bad += 1
            self._facts.bad(record)
            return
        key, marks = record.key, self._marks
        started = "run_start" in marks
        if started and key not in _LATER:
            self._bad += number(record.time_ms) is None
            return
        if not started or key in OF_FACTS:
            self._facts.take(record)
        if key in _HEADER:
            self._header[key] = _bounded(record.value)
        elif number(record.time_ms) is None:
            self._bad += 1
        elif key in ("init_start", "init_stop", "run_start", "run_stop"):
            if key == "run_stop" and "run_stop" not in marks:
                self._status = str(record.metadata.get("status", ""))
            marks.setdefault(key, record.time_ms)
        elif key == "eval_accuracy":
            self._judge.add(record, self._header)
        elif key == "eval_result":
            self._end = self._end or record
        elif (kind := key.rpartition("_"))[0] in self._spans and kind[2] in ("start", "stop"):
            place = next((record.metadata[name] for name in _PROGRESS if name in record.metadata), None)
            getattr(self._spans[kind[0]], kind[2])(number(place), record.time_ms)
        elif not started and key not in _NO_SETTINGS and len(self._settings) < _MAX_SETTINGS:
            self._settings.setdefault(key, _bounded(record.value))

    def run(self) -> Run:
        """Returns the run, after the last record."""
        header, marks, judge, facts = self._header, self._marks, self._judge, self._facts
        judge.settle(header)
        name, spec = judge.benchmark, judge.spec
        if (how := benchmark_section(self._ruleset, name).get("run_ends")) is not None:
            self._status = _end(how, self._end, marks)
        moments = (marks.get(key) for key in ("init_start", "init_stop", "run_start", "run_stop"))
        spans = {kind: spans.spans() for kind, spans in self._spans.items()}
        return Run(
            self._path, self._ruleset, name, header, self._settings, *moments, self._status,
            spans["block"] or spans["epoch"], spans["eval"], (*judge.first, *judge.last), judge.count, judge.best,
            judge.unit, self._bad, _bounds(spec, header.get("global_batch_size")), bool(spec),
            facts.hyperparameters, tuple(facts.seeds), tuple(facts.bad_seeds), facts.to_converge, facts.unread,
            tuple(facts.results),
        )  # fmt: skip


def _bounded(value: object) -> object:
    """Returns a value, as text if it may be deep or long: another process gets it, and trees have many logs."""
    deep = isinstance(value, (dict, list)) or (isinstance(value, str) and len(value) > _MAX_TEXT)
    return text_of(value) if deep else value


def read_run(path: str | Path, ruleset: str | None = None, bert_samples: bool = False) -> Run:
    """Reads one log of round v0.6 or later.

    Raises UserError if the file cannot be read. Odd lines are counted, never raised.
    """
    choice, records = (Choice(ruleset, ""), read_log(path, ruleset)) if ruleset else open_log(path)
    reader = RunReader(path, choice.ruleset, bert_samples)
    for record in records:
        reader.add(record)
    return reader.run()


def _end(how: dict, record: Record | None, marks: dict[str, float]) -> str:
    """Returns the status of a run whose end another record names, and sets `run_stop` in `marks`.

    The record gives the end as seconds after `run_start`. Minigo of v0.6 ends when it saves the model that met the
    target, and evaluates it afterwards; 0 seconds mean that no model met the target (mlperf_logging 4.1.68
    compliance_checker/training_0.6.0/minigo.yaml, `eval_result`).
    """
    marks.pop("run_stop", None)
    seconds = number(record.metadata.get(how["seconds"])) if record else None
    if seconds is None or seconds <= 0 or "run_start" not in marks:
        return "aborted"
    marks["run_stop"] = marks["run_start"] + seconds * 1000
    return "success"


class _EvaluationJudge:
    """Judges evaluations in log order; keeps a part of them, and the last one that met the target."""

    def __init__(self, ruleset: str) -> None:
        self.first: list[Evaluation] = []
        self.last: tuple[Evaluation, ...] = ()  # if `first` is full
        self.count = 0
        self.best: Evaluation | None = None
        self.unit = "epochs"
        self.benchmark, self.spec = "", None
        self._ruleset = ruleset
        self._waiting: list[Record] = []  # until the header, whose values choose the target, is complete

    def add(self, record: Record, header: dict[str, object]) -> None:
        """Takes the next `eval_accuracy`."""
        self._waiting.append(record)
        if len(self._waiting) >= _HELD:
            self.settle(header)

    def settle(self, header: dict[str, object]) -> None:
        """Judges what waits, by the target that the header chooses."""
        name = str(header.get("submission_benchmark", ""))
        self.benchmark = _OTHER_NAMES.get(name, name) if self._ruleset == "0.6.0" else name
        rule = benchmark_section(self._ruleset, self.benchmark)
        self.spec = rule.get("goal") or rule.get("keys", {}).get("eval_accuracy", {}).get("target")
        target = Target(self.spec, lenient=self._ruleset == "0.6.0") if self.spec else None
        for record in self._waiting:
            self._judge(record, target, header.get("global_batch_size"))
        self._waiting = []

    def _judge(self, record: Record, target: Target | None, batch: object) -> None:
        """Judges an evaluation; ignores one whose time or value is not a number."""
        values = _quality(record.value, self._ruleset)
        metric = record.metadata.get("metric")
        if isinstance(metric, str) and list(values) == [""]:  # stable_diffusion logs FID and CLIP separately
            values = {metric[:40]: values[""]}
        if not values or number(record.time_ms) is None:
            return
        counted_by = next((name for name in _UNITS if name in record.metadata), "epoch_num")
        self.unit = _UNITS[counted_by]
        evaluation = Evaluation(number(record.metadata.get(counted_by)), record.time_ms, values)
        self.count += 1
        if self.count <= MOST:
            self.first.append(evaluation)
        else:
            self.last = (evaluation,)
        if target and target.judge(record.value, batch):
            self.best = evaluation


def _bounds(spec: dict | None, batch: object) -> dict[str, float]:
    """Returns the target per metric as a number to draw: an upper bound if lower is better (`at_most`)."""
    if not spec:
        return {}
    if "by" in spec:  # the batch size chooses
        below = isinstance(batch, (int, float)) and batch < spec["less"]
        return _bounds(spec["then" if below else "else"], batch)
    if "fields" in spec:
        every = ((name, _bounds(part, batch)) for name, part in spec["fields"].items())
        return {name: bound for name, bounds in every for bound in bounds.values()}
    bound = spec.get("at_most", spec.get("at_least"))
    return {} if bound is None else {"": float(bound)}


# Training progress in the metadata. Language models count samples; if they log epochs too, it is a fraction of one.
_PROGRESS = ("epoch_num", "first_epoch_num", "samples_count", "step_num")
_UNITS = {"samples_count": "samples", "epoch_num": "epochs", "step_num": "steps"}


def _quality(value: object, ruleset: str) -> dict[str, float]:
    """Returns {metric: value}; a plain number has the name "". Published v0.6 logs also hold text and pairs."""
    if ruleset == "0.6.0" and isinstance(value, list) and len(value) == 2:
        value = dict(zip(("BBOX", "SEGM"), value))
    elif ruleset == "0.6.0" and isinstance(value, str) and len(value) < 40:
        value = numeral(value)
    if isinstance(value, dict):
        return {str(k): v for k, raw in list(value.items())[:8] if (v := number(raw)) is not None}
    plain = number(value)
    return {} if plain is None else {"": plain}
