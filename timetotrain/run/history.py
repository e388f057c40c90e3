"""Keeps a run's learning curve in a file, complete across resumes: all viewers read it (timetotrain/follow/).

`history_<i>.jsonl` beside the log is the only store of the curve; the log repeats evaluations and some losses, as the
rules ask. It has one JSON object per line, each with `kind`, `step` and `seconds`. `seconds` is
the time on the clock so far, including earlier runs from the same checkpoints:

    run         what runs: benchmark, system, seed, the quality's name and unit, target, baseline (ending.baseline),
                steps of the whole run
    train       loss, learning_rate and examples_per_second over the steps since the previous line
    progress    loss of a step inside a block; a `train` line of the same or a later step replaces it
    evaluation  value (as logged), epoch, quality by class if known, and loss: that of the evaluation if it has one,
                else of the last steps before
    end         status and reason

The checkpoint folder holds a copy. A resumed run starts with the copy's lines up to the step it resumes from.
TensorFlow-free.
"""

import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from common import files
from common.config.clock import Clock
from common.config.schema import RunConfig
from common.errors import UserError
from common.train import events

NAME = "history.jsonl"
# Number of loss points kept per block (each a mean over its steps), and seconds between two progress lines.
POINTS, PROGRESS_SECONDS = 50, 2.0
Record = dict[str, Any]


class History:
    """Turns a run's events into records and writes them."""

    def __init__(
        self,
        config: RunConfig,
        path: pathlib.Path,
        rate: Callable[[Sequence[int]], Sequence[float]] | None = None,
        earlier: Sequence[Record] = (),
        baseline: Mapping[str, Any] | None = None,
    ):
        """`rate`: maps steps to learning rates; `earlier`: records of the runs that this one continues.

        `baseline` is the data's, as timetotrain.run.ending.baseline returns it. Raises UserError if the file cannot be
        written.
        """
        self._config, self.path, self._rate, self._baseline = config, path, rate, baseline or {}
        self.records = list(earlier)
        self._offset = max((r["seconds"] for r in self.records), default=0.0)
        self._start, self._last, self._told = 0.0, 0.0, 0.0
        self.save(path.parent, path.name)

    @property
    def evaluations(self) -> list[Record]:
        """The evaluations so far, in order."""
        return [r for r in self.records if r["kind"] == "evaluation"]

    def save(self, folder: pathlib.Path, name: str = NAME) -> None:
        """Writes all records to a file, atomically."""
        files.write_atomically(folder / name, b"".join(map(_line, self.records)))

    def record(self, event: events.Event) -> None:
        """Adds an event's records."""
        if isinstance(event, events.RunStarted):
            self._start = self._last = event.time
            self._add("run", event.step, event.time, **_head(self._config), baseline=dict(self._baseline))
        elif isinstance(event, events.BlockStarted):
            self._last = event.time  # Evaluation and checkpoint are not training time.
        elif isinstance(event, events.Trained):
            self._trained(event)
        elif isinstance(event, events.Progress):
            if event.time - self._told >= PROGRESS_SECONDS and not math.isnan(event.loss):
                self._told = event.time
                self._add("progress", event.step, event.time, loss=event.loss)
        elif isinstance(event, events.Evaluated):
            block = event.block
            before = (r["loss"] for r in self.records if r["kind"] == "train" and r["step"] <= block.end_step)
            values = {"epoch": block.last_epoch, "value": event.value, "details": dict(event.details)}
            values |= {"by_class": dict(event.by_class)} if event.by_class else {}
            loss = event.details.get("loss", [None, *before][-1])
            self._add("evaluation", block.end_step, event.time, **values, loss=loss)
        elif isinstance(event, events.RunStopped):
            self._add("end", event.step, event.time, status=event.status, reason=event.reason)

    def _trained(self, event: events.Trained) -> None:
        size = max(1, -(-len(event.times) // POINTS))
        firsts = range(0, len(event.times), size)
        ends = [min(first + size, len(event.times)) for first in firsts]
        steps = [event.block.first_step + end for end in ends]
        # One call for all points, since the next block waits for it.
        rates = self._rate([step - 1 for step in steps]) if self._rate is not None and steps else []
        points = []
        for i, (first, end) in enumerate(zip(firsts, ends)):
            at = event.times[end - 1]
            seconds, self._last = at - self._last, at
            point: Record = {"loss": sum(event.losses[first:end]) / (end - first)}
            if seconds > 0:
                point["examples_per_second"] = (end - first) * self._config.global_batch_size / seconds
            if i < len(rates):
                point["learning_rate"] = float(rates[i])
            points.append(self._made("train", steps[i], at, point))
        self._write(points)

    def _add(self, kind: str, step: int, at: float, **values: Any) -> None:
        self._write([self._made(kind, step, at, values)])

    def _made(self, kind: str, step: int, at: float, values: Record) -> Record:
        seconds = round(self._offset + at - self._start, 3)
        return {"kind": kind, "step": step, "seconds": seconds, "time": round(at, 3), **values}

    def _write(self, records: Sequence[Record]) -> None:
        self.records += records
        try:
            with open(self.path, "ab") as file:
                file.write(b"".join(map(_line, records)))
        except OSError as error:
            raise UserError(f"{self.path}: cannot write: {error.strerror}; {files.FIX}") from error


def _head(config: RunConfig) -> Record:
    measure = config.quality
    return {
        "benchmark": config.benchmark,
        "system": config.system,
        "seed": config.seed,
        "quality": measure.name,
        "unit": measure.unit,
        "lower_is_better": measure.lower_is_better,
        "names": dict(measure.names),
        "target": config.logged_target,
        "train_steps": Clock.of(config).train_steps,
        "global_batch_size": config.global_batch_size,
    }


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def read(path: pathlib.Path) -> list[Record]:
    """Returns a file's records without a last line that is still being written; [] if there is no file.

    Raises UserError if the file cannot be read, or a line is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a file that can be read") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            records.append({**record, "kind": str(record["kind"]), "seconds": float(record["seconds"])})
            int(record["step"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise UserError(f"{path}:{number}: not a line of a history ({error}); delete the file") from error
    return records


def loss_of(evaluation: Record) -> float:
    """Returns the loss of an evaluation's record; infinity if it has none, as in a file of an earlier version."""
    loss = evaluation.get("loss", math.inf)
    return loss if isinstance(loss, int | float) and math.isfinite(loss) else math.inf


def until(records: Iterable[Record], step: int) -> list[Record]:
    """Returns the past of a run at the checkpoint of `step`; the run repeats later records."""
    return [r for r in records if r["step"] <= step and r["kind"] not in ("end", "progress")]
