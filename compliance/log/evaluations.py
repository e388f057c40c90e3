"""Compares a log's evaluations with each other: intervals without a partner, and two results of one evaluation."""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from compliance.findings import ADVICE, ERROR, Finding
from compliance.log.logs import Record, text_of

_UNITS = ("samples_count", "epoch_num", "step_num")
_MAX_KEPT = 10_000  # evaluations; no published log has a tenth as many
# From this round on every published log has eval_start; many logs of bert and gpt3 before it have none.
_ALL_HAVE_STARTS = "5.0.0"
# Logs of stable diffusion round a result to 7 digits where they repeat it.
_CLOSE = 1e-6
_APART_MS = 30_000  # between two evaluations of one number; two results of one evaluation are closer
_INTERVALS = ("block", "epoch", "eval")


def places(record: Record) -> dict[str, float]:
    """Returns the training progress that a record gives, by unit; only finite numbers count."""
    values = ((unit, record.metadata.get(unit)) for unit in _UNITS)
    return {
        unit: at
        for unit, at in values
        if isinstance(at, (int, float)) and not isinstance(at, bool) and -1e15 < at < 1e15
    }


class Evaluations:
    """Follows the evaluations of one log; `end` yields what several of its lines tell together.

    Args:
      make: builds a finding: (rule, severity, record or None, expected, found, **wording and names).
    """

    def __init__(self, make: Callable[..., Finding], ruleset: str):
        self._make, self._ruleset = make, ruleset
        self.at: dict[str, list[float]] = {unit: [] for unit in _UNITS}
        self._counts: Counter[str] = Counter()
        self._latest: dict[str, str] = {}  # interval -> the key of its latest record
        self._open: Record | None = None  # the latest eval_start without a result
        self._started: Counter[tuple[str, float]] = Counter()
        self._results: dict[tuple, Record] = {}
        self._reports: Counter[tuple] = Counter()
        self._moved: tuple[Record, Record] | None = None
        self._moves = 0
        self._twice: list[tuple[Record, Record]] = []

    def begin(self, record: Record) -> None:
        """Takes eval_start."""
        self.count(record)
        self._open = record
        if len(self._started) < _MAX_KEPT:
            self._started.update(places(record).items())

    def count(self, record: Record) -> None:
        """Takes the start or stop of a block, an epoch or an evaluation."""
        self._counts[record.key] += 1
        self._latest[record.key.partition("_")[0]] = record.key

    def accuracy(self, record: Record) -> None:
        """Takes the result of an evaluation."""
        self._counts["eval_accuracy"] += 1
        at = places(record)
        start = self._compare(record, at)
        for unit, value in (at | {unit: start[unit] for unit in at.keys() & start.keys()}).items():
            if len(self.at[unit]) < _MAX_KEPT:
                self.at[unit].append(value)
        if len(self._results) >= _MAX_KEPT:
            return
        metric = record.metadata.get("metric")
        key = (*at.items(), metric if isinstance(metric, str) else None)
        self._reports[key] += 1
        before = self._results.setdefault(key, record)
        if before is not record and at and self._differ(before.value, record.value):
            self._twice.append((before, record))

    @staticmethod
    def _differ(one: object, other: object) -> bool:
        if isinstance(one, float) and isinstance(other, float):
            return not math.isclose(one, other, rel_tol=_CLOSE) and one == one and other == other
        return isinstance(one, (int, float, dict, list)) and isinstance(other, type(one)) and one != other

    def _compare(self, record: Record, at: dict[str, float]) -> dict[str, float]:
        """Compares a result's place with that of the evaluation that began last.

        Returns the place where the evaluation began, if the result names another one; else {}.
        """
        if self._open is None:
            return {}
        start = places(self._open)
        shared = start.keys() & at.keys()
        if any(start[unit] == at[unit] for unit in shared):
            self._open = None
        elif shared and not any(self._started[unit, at[unit]] for unit in shared):
            self._moves += 1
            self._moved = self._moved or (self._open, record)
            self._open = None
            return start
        return {}

    def end(self, stop: Record | None) -> Iterator[Finding]:
        """Yields the findings; call it once, after the last record. `stop`: run_stop, if the log has it."""
        yield from self._contradictions()
        if stop is not None:
            yield from self._behind(stop)
        if self._moved is not None:
            start, result = self._moved
            unit = next(unit for unit in places(start) if unit in places(result))
            expected = f"{unit} {text_of(start.metadata[unit])}, as at its eval_start in line {start.line}"
            actual = f"{unit} {text_of(result.metadata[unit])}"
            actual += f", and {self._moves - 1} more like it" if self._moves > 1 else ""
            yield self._make("eval.place", ADVICE, result, expected, actual)
        if stop is not None:  # a run that broke off leaves intervals open
            yield from self._unpaired()

    def _behind(self, stop: Record) -> Iterator[Finding]:
        """run_stop with less training than an evaluation before it: some log the samples of the last block there."""
        for unit, value in places(stop).items():
            evaluated = max(self.at[unit], default=value)
            if value < evaluated:
                expected = f"{unit} {evaluated:,.10g}, as at the last evaluation"
                yield self._make("run_stop.place", ADVICE, stop, expected, f"{value:,.10g}")

    def _contradictions(self) -> Iterator[Finding]:
        """Two results of one evaluation: the log has fewer evaluations at this place than results."""
        for before, repeat in self._twice[:1]:
            at = places(repeat)
            unit, value = next(iter(at.items()))
            key = (*at.items(), repeat.metadata.get("metric") if "metric" in repeat.metadata else None)
            every = sum(self._reports.values())
            # Some logs of early rounds number every evaluation alike; their number is no place. Of two evaluations the
            # times tell: 16 logs of bert have both at epoch 1, a minute apart (training_results_v0.7, NVIDIA).
            is_apart = self._ruleset < _ALL_HAVE_STARTS and not self._counts["eval_start"]
            is_apart = is_apart and repeat.time_ms - before.time_ms > _APART_MS
            if every == self._reports[key] and (every > 2 or is_apart):
                return
            if self._started and self._started[unit, value] >= self._reports[key]:
                return
            expected = f"one result at {unit} {text_of(value)}: {text_of(before.value)} in line {before.line}"
            yield self._make("eval_accuracy.twice", ERROR, repeat, expected, text_of(repeat.value))

    def _unpaired(self) -> Iterator[Finding]:
        counts = self._counts
        for name in _INTERVALS:
            starts, stops = counts[f"{name}_start"], counts[f"{name}_stop"]
            # A run may end inside its last interval.
            cut = starts == stops + 1 > 1 and self._latest.get(name) == f"{name}_start"
            if starts != stops and not cut:
                expected = f"as many {name}_stop as {name}_start"
                actual = f"{starts} {name}_start, {stops} {name}_stop"
                yield self._make("interval.unpaired", ADVICE, None, expected, actual, name=name)
        starts, results = counts["eval_start"], len({key[:-1] for key in self._results})
        if starts < results and (starts or counts["eval_stop"] or self._ruleset >= _ALL_HAVE_STARTS):
            actual = f"{starts} eval_start for {results} evaluations with a result"
            expected = "an eval_start before each result"
            yield self._make("interval.unpaired", ADVICE, None, expected, actual, name="eval")
