"""The speed of a program from its MLPerf log, or from a number: what the minutes of a whole run follow from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from common.errors import UserError
from compliance.log import rules
from compliance.log.find_round import find
from compliance.log.logs import Record, number, read_log
from systems.forecast import memory, scores

LEAST_STEPS = 20
_EVALUATIONS = 3  # That tell how long one takes.
# An evaluation's example takes the forward pass alone: a third of forward and backward.
FORWARD = 1 / 3


@dataclasses.dataclass(frozen=True)
class Speed:
    """Attributes:
    rate: training examples per second, of the whole machine, without evaluations.
    evaluation: seconds of an evaluation; None if none was seen.
    start: seconds from run_start to the first step, as far as the log tells.
    benchmark, batch, epoch: of the log's header; "" and None if it has none. epoch: its training examples.
    steps: that were seen.
    """

    rate: float
    evaluation: float | None = None
    start: float = 0.0
    benchmark: str = ""
    batch: float | None = None
    epoch: float | None = None
    steps: float = 0.0

    def minutes(self, examples: float, evaluations: float, of: float = 0.0) -> float:
        """Minutes of a run over `examples` with so many evaluations, of `of` examples each where none was timed."""
        each = self.evaluation if self.evaluation is not None else of / self.rate * FORWARD
        return (self.start + examples / self.rate + evaluations * each) / 60


def of_log(path: Path, most_steps: float = math.inf, most_spans: int | None = None) -> Speed:
    """The speed that a log shows, up to `most_steps` steps: of its steps' times where it has them, else of
    the time and the examples between evaluations.

    Raises UserError if it cannot be read, has no batch, too few steps, or sequences of another length.
    """
    ruleset = find(path).ruleset
    records = [one for one in read_log(path, ruleset) if isinstance(one, Record)]
    header = {one.key: one.value for one in records if one.key in _HEADER}
    batch, name = number(header.get("global_batch_size")), str(header.get("submission_benchmark", ""))
    if not batch:
        raise UserError(f"--log={path}: no global_batch_size; a log of MLPerf has it before run_start")
    length, ours = _equal(ruleset, name, _LENGTH), number(header.get(_LENGTH))
    if length and ours and length != ours:
        raise UserError(
            f"--log={path}: {_LENGTH}={ours:,.0f}, but the rules ask for {length:,}: a practice run's speed says "
            "nothing of a whole run; give a log at full size, or --throughput"
        )
    facts = memory.facts().get(scores.title(name, f"v{ruleset}"), {})
    epoch = facts.get("epoch") or number(header.get("train_samples"))
    offline = bool(rules.benchmark_section(ruleset, name).get("offline_evaluation"))
    log = _Log(records, batch, epoch, most_steps, most_spans, offline)
    rates = log.rates()
    if log.steps < LEAST_STEPS or not rates:
        raise UserError(
            f"--log={path}: {log.steps:.0f} steps with times; a speed needs at least {LEAST_STEPS}"
        )
    return Speed(median(rates), log.evaluation(), log.start(), name, batch, epoch, log.steps)


# Above it, epoch_num counts samples: the longest reference, unet3d, has 3,000 epochs.
MOST_EPOCHS = 1e4
_STARTS = ("block_start", "epoch_start")
_LENGTH = "max_sequence_length"
_HEADER = ("global_batch_size", "train_samples", "submission_benchmark", _LENGTH)
_STEP_TIMES = ("train_step_time", "step_time", "iteration_time")


def _equal(ruleset: str, benchmark: str, key: str) -> float | None:
    """The one value of a header's key that the rules allow, if there is one."""
    value = rules.benchmark_section(ruleset, benchmark).get("keys", {}).get(key, {}).get("value", {})
    return number(value.get("equal"))


@dataclasses.dataclass
class _Log:
    """The records of a log, as times and examples; `steps` are those that `rates` saw."""

    records: list[Record]
    batch: float
    epoch: float | None
    most_steps: float
    most_spans: int | None
    offline: bool
    steps: float = 0.0

    @property
    def since(self) -> float | None:
        """Seconds at the first run_start."""
        return next((one.time_ms / 1e3 for one in self.records if one.key == "run_start"), None)

    def at(self, metadata: Mapping[str, object]) -> float | None:
        """The examples that a record names: samples, or epochs times the examples of one; None if it names none.

        An epoch_num above MOST_EPOCHS counts samples.
        """
        if (samples := number(metadata.get("samples_count"))) is not None:
            return samples
        part = number(metadata.get("epoch_num"))
        if part is None or part > MOST_EPOCHS:
            return part
        return part * self.epoch if self.epoch else None

    def spans(self) -> list[tuple[float, float]]:
        """(examples, seconds) between evaluations; of blocks, if evaluations come after the run."""
        spans, done, since, after_start = [], 0.0, self.since, False
        for one in self.records:
            now = one.time_ms / 1e3
            if one.key in _STARTS and (since is None or not after_start):
                since, after_start = now, True
            elif one.key == "eval_stop" and since is None:
                since = now
            elif one.key == "eval_start" and since is not None:
                if (at := self._evaluated(one)) is not None and at > done:
                    spans.append((at - done, now - since))
                    done = at
                since = None
        return [] if self.offline else spans

    def blocks(self) -> list[tuple[float, float]]:
        """Returns (examples, seconds) from one block's start to the next."""
        starts = [(at, one.time_ms / 1e3) for one in self.records if one.key == "block_start"
                  and (at := self.at(one.metadata)) is not None]  # fmt: skip
        return [(b - a, later - before) for (a, before), (b, later) in pairwise(starts) if b > a]

    def _evaluated(self, start: Record) -> float | None:
        """Examples at an evaluation, by its own record, or by that of its result."""
        if (now := self.at(start.metadata)) is not None:
            return now
        later = (one for one in self.records if one.key == "eval_accuracy" and one.time_ms >= start.time_ms)
        return self.at(result.metadata) if (result := next(later, None)) else None

    def rates(self) -> list[float]:
        """Examples per second of steps, or of the spans between evaluations."""
        tracked = [one for one in self.records if one.key == "tracked_stats" and isinstance(one.value, dict)]
        times = [t for one in tracked for key in _STEP_TIMES if (t := number(one.value.get(key))) and t > 0]
        times = times[: int(min(self.most_steps, len(times)))]
        if len(times) >= LEAST_STEPS:
            # The first steps compile or warm up.
            self.steps = len(times)
            return [self.batch / fmean(times[len(times) // 4 :])]
        spans = (self.spans() or self.blocks())[: self.most_spans]
        self.steps = sum(examples for examples, _ in spans) / self.batch
        # The first span has what happens once.
        return [examples / seconds for examples, seconds in spans[1:] or spans if seconds > 0]

    def evaluation(self) -> float | None:
        """Seconds that the first evaluations take from training: until they stop, or the next block starts.

        None without any; 0 if they come after the run.
        """
        if self.offline:
            return 0.0
        ends = [one for one in self.records if one.key in ("eval_start", "eval_stop", *_STARTS)]
        pairs = [b.time_ms - a.time_ms for a, b in pairwise(ends) if a.key == "eval_start"]
        return median(pairs[:_EVALUATIONS]) / 1e3 if pairs else None

    def start(self) -> float:
        """Seconds from run_start to the first block or epoch."""
        first = next((one.time_ms / 1e3 for one in self.records if one.key in _STARTS), None)
        return max(0.0, first - self.since) if first is not None and self.since is not None else 0.0
