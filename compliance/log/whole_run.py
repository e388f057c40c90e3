"""Checks a run as a whole: faults that involve several lines, which no rule about a single key can find.

Errors: `run_stop` before `run_start`, `init_stop` before `init_start`, a status that contradicts the target, a target
that only work after `run_stop` meets, two results of one evaluation. Advice: the evaluation schedule, sample counts
against the known data sets, smoke runs, names that no reader sees whole, times in seconds.
"""

from collections.abc import Callable, Iterator

from compliance.findings import ADVICE, ERROR, Finding
from compliance.hints import hidden_characters
from compliance.log.evaluations import Evaluations
from compliance.log.logs import Record, text_of
from compliance.log.predicates import compile_predicate, describe
from compliance.log.relaunch import Runs

_INFINITY = float("inf")
# A time_ms in this range is 1970 as milliseconds, and 2001 to 2096 as seconds.
_SECONDS = (1e9, 4e9)
_YEAR_2100 = 4.1e12  # in ms
_MAX_EPOCHS = 10_000  # evaluated epochs kept for the schedule; no published run has a tenth as many


def _is_not_cleared(value: object) -> bool:
    """Whether cache_clear is not the JSON value true; many published logs of v0.6 and v0.7 have null."""
    return value is False or isinstance(value, str) or (value == 0 and value is not True)


# Key -> (rule, whether a value of it is advice, expected, found).
_OF_VALUES: dict[str, tuple[str, Callable[[object], bool], str, str]] = {
    "cache_clear": ("cache_clear.false", _is_not_cleared, "true", "{}"),
    # The stock seed checker reads a seed with int(), which takes 1309.5 and "1309".
    "seed": ("seed.whole", lambda value: isinstance(value, float), "a whole number", "{}"),
    "smoke_run": ("smoke_run", lambda value: value is not False, "no smoke_run in a submission", "{}"),
    "no_mlperf_result": ("no_mlperf_result", lambda value: True, "a run to a quality target", "{}"),
    "resumed_from_step": ("resumed_from_step", bool, "a run from its start to its end", "resumed from step {}"),
}  # fmt: skip


class WholeRun:
    """Follows one log: call `add(record)` for each record of `KEYS`, then `end()` once.

    Args:
      make: builds a finding: (rule, severity, record or None, expected, found, **wording and names).
    """

    def __init__(self, make: Callable[..., Finding], ruleset: str = ""):
        self._make = make
        # The earliest time of init_start, the first time of init_stop and run_start.
        self.times: dict[str, float] = {}
        self.stop: Record | None = None
        self.smoke = self._resumed = False
        self.last: dict[str, Record] = {}  # of the keys that `_keep` takes
        self.seed: object = None
        self.best: Record | None = None  # the record that met the target with the least work
        self.comparable = True  # False if an accuracy had a form that cannot be compared
        self.epochs: list[float] = []
        self._met_work = _INFINITY
        # Evaluations that have no accuracy yet: place -> time of eval_start.
        self._pending: dict[object, float] = {}
        self._reports: set[tuple[str, float]] = set()  # the evaluations that have reported so far
        self._scored = self._reach = -_INFINITY
        self._work_start = _INFINITY
        self.evaluations = Evaluations(make, ruleset)
        self.runs = Runs()
        count = self.evaluations.count
        self.handlers = {
            **dict.fromkeys(("epoch_stop", "block_stop", "eval_stop"), count),
            **dict.fromkeys(_OF_VALUES, self._remark_on_value), "eval_accuracy": self.evaluations.accuracy,
            "submission_benchmark": self.runs.add, "submission_division": self.runs.add,
            "submission_org": self._name, "submission_platform": self._name, "submission_status": self._keep,
            "config_digest": self._keep, "init_start": self._time, "init_stop": self._time,
            "run_start": self._time, "run_stop": self._stop,
            "train_samples": self._keep, "eval_samples": self._keep, "block_start": self._work,
            "epoch_start": self._work, "eval_start": self._evaluation,
        }  # fmt: skip

    def _time(self, record: Record) -> None:
        if record.key != "init_stop":
            self.runs.add(record)
        # NaN is not a time of init_start; the stock checker ignores it, too.
        if record.key == "init_start" and record.time_ms == record.time_ms:
            self.times[record.key] = min(record.time_ms, self.times.get(record.key, record.time_ms))
        elif record.key != "init_start":
            self.times.setdefault(record.key, record.time_ms)

    def _stop(self, record: Record) -> None:
        self.runs.add(record)
        # The first one counts, as in the stock summarizer: the score ignores what comes after it.
        self.stop = record if self.stop is None else self.stop

    def _remark_on_value(self, record: Record) -> Finding | None:
        """Takes a record whose value alone may be advice."""
        key, value = record.key, record.value
        if key == "cache_clear":
            self.runs.add(record)
        elif key == "seed":
            self.seed = value if self.seed is None else self.seed
        elif key == "smoke_run":
            self.smoke |= value is not False
        elif key == "no_mlperf_result":
            self._keep(record)
        elif key == "resumed_from_step":
            self._resumed = True  # It has its own advice.
        rule, odd, expected, actual = _OF_VALUES[key]
        if not odd(value):
            return None
        return self._make(rule, ADVICE, record, expected, actual.format(text_of(value)))

    def _name(self, record: Record) -> Finding | None:
        if record.key == "submission_org":
            self.runs.add(record)
        self.last.setdefault(record.key, record)
        if record.value is None or not str(record.value).strip():
            names = {"key": record.key, "wording": "submission_name.value"}
            return self._make(f"{record.key}.value", ERROR, record, "text", text_of(record.value), **names)
        if not isinstance(record.value, str) or not (characters := hidden_characters(record.value)):
            return None
        return self._make("name.hidden", ADVICE, record, "characters that a reader can see", characters)

    def _keep(self, record: Record) -> None:
        self.last[record.key] = record

    @property
    def aimless(self) -> bool:
        """Whether this project wrote the log of a run without a quality target, which so has none to miss.

        The checker judges any other log by its target, whatever the log says of itself.
        """
        success = self.stop is not None and self.stop.metadata.get("status") == "success"
        return {"no_mlperf_result", "config_digest"} <= self.last.keys() and not success

    def _work(self, record: Record) -> Finding | None:
        self.evaluations.count(record)
        first = self._reach == -_INFINITY and self.stop is None
        self._reached(record)
        if not first or self._resumed:
            return None
        epoch, count = (_number(record.metadata.get(name)) for name in ("first_epoch_num", "epoch_count"))
        # Published logs that name a block by its end have the block's length here.
        if epoch is None or epoch <= 1 or epoch == count:
            return None
        return self._make("run.first-epoch", ADVICE, record, "epoch 0 or 1", f"epoch {epoch:g}")

    def _reached(self, record: Record) -> None:
        """Notes the last epoch that this training reaches. Epochs count from 0 or 1, so it takes the larger bound."""
        if self.stop is None:
            self._work_start = record.time_ms
            start = _number(record.metadata.get("first_epoch_num", record.metadata.get("epoch_num")))
            count = _number(record.metadata.get("epoch_count")) or 1
            if start is not None:
                self._reach = max(self._reach, start + count)

    def _evaluation(self, record: Record) -> None:
        self.evaluations.begin(record)
        if len(self._pending) < _MAX_EPOCHS:
            self._pending.setdefault(_place(record), record.time_ms)

    def accuracy(self, record: Record, meets_target: bool) -> None:
        """Takes an evaluation's result, which the log may report long after the work."""
        epoch, place = _number(record.metadata.get("epoch_num")), _place(record)
        started = self._pending.pop(place, _INFINITY)
        # A second report of the same work after run_stop counts as work after run_stop, wherever it was announced.
        is_repeat = self.stop is not None and place in self._reports
        work = record.time_ms if is_repeat else min(record.time_ms, started)
        if place is not None and len(self._reports) < _MAX_EPOCHS:
            self._reports.add(place)
        if epoch is not None:
            if not is_repeat and self._scored < epoch <= self._reach:
                work = min(work, self._work_start)
            self._scored = max(self._scored, epoch)
            if len(self.epochs) < _MAX_EPOCHS:
                self.epochs.append(epoch)
        if meets_target and (self.best is None or work < self._met_work):
            self._met_work, self.best = work, record

    def minutes(self) -> float | None:
        """Returns run_stop - run_start in minutes; None if either is missing."""
        if self.stop is None or "run_start" not in self.times:
            return None
        return (self.stop.time_ms - self.times["run_start"]) / 60_000

    def end(self, info: dict, goal: dict | None) -> Iterator[Finding]:
        """Yields the findings about the whole run. `info`: the benchmark's section; `goal`: its target or None."""
        yield from self._order()
        if goal is not None and not self.aimless:
            yield from self._status(info)
        yield from self._schedule(info)
        yield from self.evaluations.end(None if info.get("offline_evaluation") else self.stop)
        for key, counts in info.get("samples", {}).items():
            record = self.last.get(key)
            if record is not None and record.value not in counts:
                about = " or ".join(f"{count:,}" for count in counts), text_of(record.value)
                yield self._make(f"{key}.count", ADVICE, record, *about, wording="count", key=key)

    def _order(self) -> Iterator[Finding]:
        begin, end = self.times.get("init_start"), self.times.get("init_stop")
        if begin is not None and end is not None and end < begin:
            early = f"{begin - end:.0f} ms too early"
            yield self._make("init.reversed", ERROR, None, "init_start before init_stop", early)
        start = self.times.get("run_start")
        if self.stop is not None and start is not None and not self.stop.time_ms > start:
            minutes = f"{(self.stop.time_ms - start) / 60_000:.4f} minutes"
            yield self._make("run.reversed", ERROR, self.stop, "run_stop after run_start", minutes)
        if start is not None and end is not None and start < end:
            early = f"{end - start:.0f} ms too early"
            yield self._make("run.before-init", ADVICE, None, "init_stop before run_start", early)
        if start is not None and (_SECONDS[0] <= start < _SECONDS[1] or start > _YEAR_2100):
            rule = "time.micro" if start > _YEAR_2100 else "time.seconds"
            actual = f"run_start at time_ms {start:.0f}"
            yield self._make(rule, ADVICE, None, "milliseconds since 1970", actual)

    def _status(self, info: dict) -> Iterator[Finding]:
        if self.stop is None or not self.comparable:
            return
        status = self.stop.metadata.get("status")
        meets_target = self.best is not None
        if status == "success" and not meets_target:
            yield self._make("run_stop.status", ERROR, self.stop, "status aborted", "status success")
        elif meets_target and isinstance(status, str) and status.lower().startswith(("abort", "fail")):
            about = ERROR, self.stop, "status success", f"status {status[:40]}"
            yield self._make("run_stop.status", *about, wording="run_stop.status.failed")
        elif status not in ("success", "aborted", "abort", None):
            yield self._make("run_stop.status-word", ADVICE, self.stop, "success or aborted", text_of(status))
        if meets_target and not info.get("offline_evaluation") and self._met_work > self.stop.time_ms:
            late = f"{(self.best.time_ms - self.stop.time_ms) / 1000:.1f} s after run_stop"
            expected = "an evaluation of an epoch trained before run_stop"
            yield self._make("run_stop.target-after", ERROR, self.best, expected, late)

    def _schedule(self, info: dict) -> Iterator[Finding]:
        schedule = info.get("schedule")
        epochs = sorted(set(self.epochs))
        if not schedule or not epochs or len(self.epochs) >= _MAX_EPOCHS:
            return
        if "epochs" in schedule:
            wrong, expected = _off_plan(schedule, epochs)
        else:
            every = schedule["every"]
            wrong = [later for epoch, later in zip(epochs, epochs[1:]) if later - epoch != every]
            wrong += [epoch for epoch in epochs[:1] if epoch > schedule["first_at_most"]]
            expected = "an evaluation after every epoch" if every == 1 else f"one after every {every} epochs"
        if wrong:
            actual = "epochs " + ", ".join(f"{epoch:g}" for epoch in epochs[:20])
            yield self._make("eval.schedule", ADVICE, None, expected, actual)


def describe_schedule(schedule: dict) -> str:
    """Describes in words the epochs of a schedule that lists them."""
    places = [" to ".join(map(str, one)) if isinstance(one, list) else str(one) for one in schedule["epochs"]]
    every = schedule.get("then_every")
    return ", ".join(places) + (f", then every {every}" if every else "")


def _off_plan(schedule: dict, epochs: list[float]) -> tuple[list, str]:
    """Returns the epochs that deviate from the schedule (extra or missing), and what the schedule expects.

    A schedule entry is an epoch, or [first, last] if logs number the same place differently.
    """
    spans = [one if isinstance(one, list) else [one, one] for one in schedule["epochs"]]
    end, every = spans[-1][1], schedule.get("then_every")
    within, later = [e for e in epochs if e <= end], [e for e in epochs if e > end]
    wrong = [epoch for epoch in within if not any(low <= epoch <= high for low, high in spans)]
    past = [span for span in spans if span[1] < epochs[-1]]
    wrong += [low for low, high in past if not any(low <= epoch <= high for epoch in within)]
    wrong += [epoch for n, epoch in enumerate(later, 1) if not every or epoch != end + n * every]
    return wrong, "evaluations after epochs " + describe_schedule(schedule)


def _number(value: object) -> float | None:
    """Returns an epoch number; None if it is not one (NaN, text, a number too large for a float)."""
    return value if isinstance(value, (int, float)) and -1e12 < value < 1e12 else None


def _place(record: Record) -> tuple[str, float] | None:
    """Returns an evaluation's training progress, in the log's unit; None if the record does not give it."""
    for unit in ("epoch_num", "samples_count", "step_num"):
        if (number := _number(record.metadata.get(unit))) is not None:
            return unit, number
    return None


class Target:
    """Judges accuracies against a benchmark's target.

    Args:
      spec: the `target` or `goal` of a benchmark's section; in `{"by": key, "less": bound, "then": ..., "else": ...}`
        the value of another key chooses the target.
      lenient: also read numbers in strings and [BBOX, SEGM] lists (round v0.6, where no rule fixes the form).
    """

    def __init__(self, spec: dict, lenient: bool = False):
        self.spec, self._lenient = spec, lenient
        self.by = spec.get("by")
        self._fields = tuple(spec.get("fields", ()))
        if self.by is None:
            self.holds, self.expected = compile_predicate(spec), describe(spec)
        else:
            self._cases = compile_predicate(spec["then"]), compile_predicate(spec["else"])
            self.holds = self._cases[0]
            then, other = describe(spec["then"]), describe(spec["else"])
            self.expected = f"{then} ({other} from {self.by} {spec['less']} on)"

    def judge(self, value: object, chooser: object = None) -> bool | None:
        """Returns whether the value meets the target; None if it cannot be compared."""
        holds = self.holds
        if self.by is not None:
            try:
                holds = self._cases[0] if chooser < self.spec["less"] else self._cases[1]
            except TypeError:
                return None
        value = self._read(value) if self._lenient else value
        numbers = [value]
        if self._fields:
            if not isinstance(value, dict) or any(name not in value for name in self._fields):
                return None
            numbers = [value[name] for name in self._fields]
        if any(isinstance(part, bool) or not isinstance(part, (int, float)) for part in numbers):
            return None
        return holds(value) and self._possible(value)

    def nearer(self, value: object, other: object) -> bool:
        """Whether `value` is nearer the target than `other`: for a loss (1e-9 meets the target), the lower value is."""
        try:
            return value < other if self.holds(1e-9) else value > other
        except TypeError:
            return False

    def _possible(self, value: object) -> bool:
        """Whether a value that meets the target can be one: a loss is 0 or more, a share at most 1, a BLEU 100."""
        specs = self.spec.get("fields", {"": self.spec})
        for name, spec in specs.items():
            number, spec = value[name] if name else value, spec.get("then", spec)
            bounded = "at_most" in spec or "less" in spec  # a loss, or a share whose bound the rules give
            least = None if bounded else spec.get("at_least", spec.get("greater")) or None
            if not (number >= 0 and (least is None or number <= (1 if least <= 1 else 100))):
                return False
        return True

    def _read(self, value: object) -> object:
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return value
        if isinstance(value, list) and len(value) == len(self._fields):
            return dict(zip(self._fields, value))
        return value
