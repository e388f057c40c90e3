"""Reads from a log what the checks of a whole folder compare: when its run converged, seeds, hyperparameters."""

import math
import re
from collections import deque
from typing import NamedTuple

from compliance.log.logs import BadLine, Record, number, text_of
from compliance.log.stock import CLIP_AT_LEAST, FID_AT_MOST, SAMPLES

_SETTING = re.compile(
    r"(.*_)?opt_.*|global_batch_size|gradient_accumulation_steps|max_sequence_length|lora_.*|(train|eval)_samples"
)
# The lines that say when a run converged.
_ENDS = re.compile(r'"key": ?"(eval_accuracy|eval_error|run_stop|train_samples)"')
# The keys that `FactsReader.take` uses after run_start.
OF_FACTS = frozenset(("seed", "train_samples", "eval_accuracy", "eval_error", "run_start", "run_stop"))
_MAX_SEEDS = 64
_MAX_SETTINGS = 200
_MAX_SCORED = 10_000  # evaluations of stable diffusion; no published run has a hundredth as many
_MOST = 1e15  # above any count of samples or epochs and any time in ms; its square is a float
_MAX_RESULTS = 2000  # kept of a log, the last ones; no published run has as many


class Result(NamedTuple):
    """One result: its place (epochs or samples), its value as text, its ms since run_start. None: unknown."""

    at: float | None
    value: str
    ms: float | None


def possible_number(value: object) -> float | None:
    """Returns a count or a time that a run can have; None for anything else."""
    plain = number(value)
    return plain if plain is not None and 0 <= plain < _MOST else None


class FactsReader:
    """Collects the facts of one log from its records, in log order.

    Args:
      bert_samples: read bert's samples to converge from `train_samples` (the flag rcp-bert-train-samples).
    """

    def __init__(self, ruleset: str, bert_samples: bool) -> None:
        self.bert_samples = bert_samples
        self.benchmark = self.status = ""
        self.seeds: list[tuple[str, str, int]] = []
        self.bad_seeds: list[str] = []
        self.hyperparameters: dict[str, str] = {}
        self.results: deque[Result] = deque(maxlen=_MAX_RESULTS)
        self.to_converge: float | None = None
        self.step = "step_num" if ruleset == "3.1.0" else "samples_count"  # for stable diffusion
        self.has_begun, self.started = False, None
        self.last: float | None = None
        self.scores: dict[float, dict[str, float]] = {}
        self.lost = ""  # the number that hides when the run converged

    def bad(self, line: BadLine) -> None:
        """Takes a line that cannot be read."""
        if line.severity == "error" and line.rule != "line-several-records" and _ENDS.search(line.text):
            self.lost = f"line {line.line} cannot be read: {line.actual}"

    @property
    def unread(self) -> str:
        """Returns which number hides when a run converged that succeeded, or whose end cannot be read; or ""."""
        hides = self.lost and self.to_converge is None and self.status in ("", "success")
        return self.lost[:160] if hides or "cannot be read" in self.lost else ""

    def take(self, record: Record) -> None:
        """Takes the next record."""
        key, value = record.key, record.value
        if key == "submission_benchmark" and isinstance(value, str) and not self.has_begun:
            self.benchmark = value
        elif key == "seed":
            self._seed(record)
        elif key == "train_samples" and self._by_train_samples:
            self.last = self._count(value, key)
        elif key == "run_start":
            self.has_begun = True
            self.started = possible_number(record.time_ms) if self.started is None else self.started
        elif key in ("eval_accuracy", "eval_error") and not self._by_train_samples:
            self._evaluation(record)
        elif key == "run_stop":
            self.status = str(record.metadata.get("status", ""))[:80]
            self.to_converge = None
            if self.status == "success":
                self.to_converge = self._first_met() if self.benchmark == "stable_diffusion" else self.last
        if not self.has_begun and len(self.hyperparameters) < _MAX_SETTINGS and _SETTING.fullmatch(key):
            self.hyperparameters[key] = text_of(value)

    @property
    def _by_train_samples(self) -> bool:
        return self.bert_samples and self.benchmark == "bert"

    def _seed(self, record: Record) -> None:
        place = record.metadata
        if len(self.seeds) + len(self.bad_seeds) >= _MAX_SEEDS:
            return
        try:
            # The stock seed checker reads Latin-1, in which digits of other scripts are not digits.
            text = isinstance(record.value, str) and not record.value.isascii()
            seed = int("" if text or isinstance(record.value, bool) else record.value)
            self.seeds.append((text_of(place["file"]), text_of(place["lineno"]), seed))
        except (TypeError, ValueError, OverflowError):
            self.bad_seeds.append(text_of(record.value))
        except KeyError as error:
            self.bad_seeds.append(f"{text_of(record.value)} without metadata {error}")

    def _evaluation(self, record: Record) -> None:
        place, time, value = record.metadata, possible_number(record.time_ms), text_of(record.value, 40)
        ms = None if time is None or self.started is None else time - self.started
        if self.benchmark == "stable_diffusion":
            step, score = self._count(place.get(self.step), self.step), number(record.value)
            if score is None:
                self.lost = f"the value {value} of an evaluation is not a finite number"
            room = step in self.scores or len(self.scores) < _MAX_SCORED
            if step is not None and score is not None and room:
                self.scores.setdefault(step, {})[str(place.get("metric"))[:80]] = score
                self.results.append(Result(step, value, ms))
            return
        unit = "samples_count" if self.benchmark in SAMPLES else "epoch_num"
        at = self._count(place.get(unit), unit)
        self.results.append(Result(at, value, ms))
        self.last = at if at is None or unit == "samples_count" else round(at, 3)

    def _count(self, value: object, name: str) -> float | None:
        count = possible_number(value)
        if self.benchmark != "stable_diffusion" or count is None:
            self.lost = f"{name} {text_of(value, 40)} is not a number that counts" if count is None else ""
        return count

    def _first_met(self) -> float | None:
        good = [step for step, score in self.scores.items() if score.get("FID", math.inf) <= FID_AT_MOST]
        reached = (step for step in good if self.scores[step].get("CLIP", -math.inf) >= CLIP_AT_LEAST)
        return min(reached, default=None)
