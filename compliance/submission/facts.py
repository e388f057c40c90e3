"""Reads the facts that checks of a whole folder compare: convergence, batch size, seeds, hyperparameters.

It makes one pass over the log. Before `run_start` it reads every record, afterwards only lines that hold one of a few
keys.
"""

import math
import re
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from common.errors import UserError
from compliance.log.lines import TOKEN, token_lines
from compliance.log.logs import BadLine, Record, parse_all, shown
from compliance.submission.runs import number

# rcp_checker.py, read_submission_file: these benchmarks log samples_count at an evaluation, the others epoch_num.
_SAMPLES = frozenset(
    ("llama2_70b_lora", "flux1", "llama31_405b", "llama31_8b", "gpt_oss_20b", "deepseekv3_671b")
    + ("qwen35_397b_grpo", "dlrmv4")
)
# rcp_checker.py, read_submission_file: stable diffusion converges at the first evaluation that meets both bounds.
_FID_AT_MOST, _CLIP_AT_LEAST = 90.0, 0.15
_EVALUATION = ("eval_accuracy", "eval_error")
_LATER = (b"eval_accuracy", b"eval_error", b"run_stop", b"seed", b"global_batch_size", b"train_samples")
_SETTING = re.compile(
    r"(.*_)?opt_.*|global_batch_size|gradient_accumulation_steps|max_sequence_length|lora_.*|(train|eval)_samples"
)
# The lines that say when a run converged.
_ENDS = re.compile(r'"key": ?"(eval_accuracy|eval_error|run_stop|train_samples)"')
_MAX_SEEDS = 64
_MAX_SETTINGS = 200
_MAX_SCORED = 10_000  # evaluations of stable diffusion; no published run has a hundredth as many
_MOST = 1e15  # above any count of samples or epochs and any time in ms; its square is a float
_MAX_EVALUATIONS = 2000  # kept of a log, the last ones; no published run has as many


class Evaluation(NamedTuple):
    """One result: its place (epochs or samples), its value as text, and its ms since run_start; None: unknown."""

    at: float | None
    value: str
    ms: float | None


@dataclass
class Facts:
    """The facts of one log. `to_converge` is None if the run did not converge or the log does not say when.

    `seeds` holds (file, line, seed) of each seed; `bad_seeds` holds seeds that are not whole numbers or name no place.
    `settings` maps hyperparameters to their values as text. `problem` says why the log could not be read, or is "".
    `unread` says which number hides when a run converged that succeeded, or whose end cannot be read; or is "".
    `started` and `stopped` are the times of the first run_start and run_stop in ms since 1970, None without.
    `evaluations` holds the last evaluations, in log order.
    """

    path: str
    benchmark: str = ""
    batch: float | None = None
    status: str = ""
    to_converge: float | None = None
    seeds: list[tuple[str, str, int]] = field(default_factory=list)
    bad_seeds: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    started: float | None = None
    stopped: float | None = None
    evaluations: deque[Evaluation] = field(default_factory=lambda: deque(maxlen=_MAX_EVALUATIONS))
    unread: str = ""


def read_facts(path: str, ruleset: str, bert_samples: bool = False) -> Facts:
    """Reads one log. Never raises: `problem` says why the log could not be read.

    Args:
      bert_samples: read bert's samples to converge from `train_samples` (the flag rcp-bert-train-samples).
    """
    facts = Facts(path)
    reader = FactsReader(facts, ruleset, bert_samples)
    started = False
    try:
        for line_number, line in token_lines(path):
            if isinstance(line, int) or (started and not any(word in line for word in _LATER)):
                continue
            text = line[line.rfind(TOKEN) :].decode("utf-8", "replace")
            parsed = parse_all(text, line_number)
            started |= not isinstance(parsed[0], BadLine) and parsed[0].key == "run_start"
            reader.take_line(parsed, started)
    except UserError as error:
        facts.problem = str(error)
    reader.finish()
    return facts


def _counted(value: object) -> float | None:
    """Returns a count or a time that a run can have; None for anything else."""
    found = number(value)
    return found if found is not None and 0 <= found < _MOST else None


class FactsReader:
    """Fills the facts of one log from its records, in log order."""

    def __init__(self, facts: Facts, ruleset: str, bert_samples: bool) -> None:
        self.facts, self.bert_samples = facts, bert_samples
        self.step = "step_num" if ruleset == "3.1.0" else "samples_count"  # for stable diffusion
        self.last: float | None = None
        self.scores: dict[float, dict[str, float]] = {}
        self.lost = ""  # the number that hides when the run converged

    def take_line(self, parsed: tuple[Record | BadLine, ...], started: bool) -> None:
        """Takes what one line holds: a record and what is wrong with it, or only a line that cannot be read."""
        if isinstance(parsed[0], Record):
            self.take(parsed[0], started)
        for bad in parsed:
            if isinstance(bad, BadLine) and bad.severity == "error" and _ENDS.search(bad.text):
                self.lost = f"line {bad.line} cannot be read: {bad.found}"

    def finish(self) -> None:
        """Says of a run that may have converged which number hides when."""
        facts = self.facts
        if (
            self.lost
            and facts.to_converge is None
            and facts.status in ("", "success")
            or "cannot be read" in self.lost
        ):
            facts.unread = self.lost[:160]

    def take(self, record: Record, started: bool) -> None:
        facts, key, value = self.facts, record.key, record.value
        if key == "submission_benchmark" and isinstance(value, str):
            facts.benchmark = value
        elif key == "global_batch_size":
            facts.batch = number(value)
        elif key == "seed":
            self._seed(record)
        elif key == "train_samples" and self.bert_samples and facts.benchmark == "bert":
            self.last = self._count(value, key)
        elif key == "run_start" and facts.started is None:
            facts.started = _counted(record.time_ms)
        if key in _EVALUATION and not (self.bert_samples and facts.benchmark == "bert"):
            self._evaluation(record)
        elif key == "run_stop":
            facts.stopped = _counted(record.time_ms) if facts.stopped is None else facts.stopped
            facts.status = str(record.metadata.get("status", ""))[:80]
            facts.to_converge = self._converged() if facts.status == "success" else None
        if not started and len(facts.settings) < _MAX_SETTINGS and _SETTING.fullmatch(key):
            facts.settings[key] = shown(value)

    def _seed(self, record: Record) -> None:
        facts, place = self.facts, record.metadata
        if len(facts.seeds) + len(facts.bad_seeds) >= _MAX_SEEDS:
            return
        try:
            seed = int("" if isinstance(record.value, bool) else record.value)
            facts.seeds.append((shown(place["file"]), shown(place["lineno"]), seed))
        except (TypeError, ValueError, OverflowError):
            facts.bad_seeds.append(shown(record.value))
        except KeyError as error:
            facts.bad_seeds.append(f"{shown(record.value)} without metadata {error}")

    def _evaluation(self, record: Record) -> None:
        facts, benchmark, place = self.facts, self.facts.benchmark, record.metadata
        time = _counted(record.time_ms)
        ms = None if time is None or facts.started is None else time - facts.started
        value = shown(record.value, 40)
        if benchmark == "stable_diffusion":
            step, score = self._count(place.get(self.step), self.step), number(record.value)
            if score is None:
                self.lost = f"the value {value} of an evaluation is not a finite number"
            room = step in self.scores or len(self.scores) < _MAX_SCORED
            if step is not None and score is not None and room:
                self.scores.setdefault(step, {})[str(place.get("metric"))[:80]] = score
                facts.evaluations.append(Evaluation(step, value, ms))
            return
        unit = "samples_count" if benchmark in _SAMPLES else "epoch_num"
        at = self._count(place.get(unit), unit)
        facts.evaluations.append(Evaluation(at, value, ms))
        self.last = at if at is None or benchmark in _SAMPLES else round(at, 3)

    def _count(self, value: object, name: str) -> float | None:
        count = _counted(value)
        if self.facts.benchmark != "stable_diffusion" or count is None:
            self.lost = "" if count is not None else f"{name} {shown(value, 40)} is not a number that counts"
        return count

    def _converged(self) -> float | None:
        if self.facts.benchmark != "stable_diffusion":
            return self.last
        reached = [
            step
            for step, score in self.scores.items()
            if score.get("FID", math.inf) <= _FID_AT_MOST and score.get("CLIP", -math.inf) >= _CLIP_AT_LEAST
        ]
        return min(reached, default=None)
