"""Keeps a run's learning curve in a file that all viewers read (timetotrain/follow/), and its best checkpoint.

`history_<i>.jsonl` beside the log is the only store of the curve; the log repeats evaluations and some losses, as the
rules ask. It has one JSON object per line, each with `kind`, `step` and `seconds`, the time on the clock
so far, including earlier runs from the same checkpoints:

    run         what runs: benchmark, system, seed, the quality's name and unit, target, baseline (ending.baseline),
                steps of the whole run
    train       loss, learning_rate and examples_per_second over the steps since the previous line
    progress    loss of a step inside a block; a `train` line of the same or a later step replaces it
    evaluation  value (as logged), epoch, quality by class and frequent wrong answers if known, and loss: that of the
                evaluation if it has one, else of the last steps before
    end         status and reason

The checkpoint folder holds a copy. A resumed run starts with the copy's lines up to the step it resumes from, so the
best checkpoint stays known across resumes. `best.npz` there points to it: a symbolic link, replaced atomically; on a
file system without links it is a copy.
"""

import contextlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from common import files
from common.config.quality import Measure
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.errors import UserError
from common.files import whole, write_fix
from common.train import checkpoint_file, events
from common.train.checkpoint_file import BEST
from timetotrain.run.progress import POINTS, duration, number

NAME = "history.jsonl"
# Seconds between two progress lines.
PROGRESS_SECONDS = 2.0
Record = dict[str, Any]


class History:
    """Call `begin` once the first step is known, `record` for each event, `saved` after a checkpoint, then `close`.

    Attributes:
      records: the history so far; empty before `begin`.
    """

    def __init__(
        self,
        config: RunConfig,
        path: pathlib.Path,
        checkpoints: str | None = None,
        baseline: Mapping[str, Any] | None = None,
    ):
        """`path`: of the history, beside the log; `baseline`: the data's (timetotrain.run.ending.baseline)."""
        self._config, self._path, self._baseline = config, path, baseline or {}
        self._checkpoints = pathlib.Path(checkpoints) if checkpoints else None
        self.records: list[Record] = []
        self._open = False
        self._stored = 0  # Records in the file beside the checkpoints; 0: not written yet.
        self._offset = self._start = self._last = self._progress_at = 0.0

    def begin(self, start: int) -> None:
        """Writes the records of the runs that this one continues from step `start`.

        Raises UserError if the file cannot be written.
        """
        if start and self._checkpoints:
            records = read(self._checkpoints / NAME)  # The run repeats what came after `start`.
            self.records = [r for r in records if r["step"] <= start and r["kind"] not in ("end", "progress")]
        self._offset = max((r["seconds"] for r in self.records), default=0.0)
        self._rates = _rates(self._config)
        self._save(self._path)
        self._open = True

    @property
    def evaluations(self) -> list[Record]:
        """The evaluations so far, in order."""
        return [r for r in self.records if r["kind"] == "evaluation"]

    def saved(self) -> None:
        """Notes that a checkpoint was saved: writes the file beside the checkpoints, later adds to it."""
        if self._checkpoints is None:
            return
        path = self._checkpoints / NAME
        if not self._stored:
            for leftover in self._checkpoints.glob(f".{NAME}.*.partial"):  # Of a run that was killed.
                shutil.rmtree(leftover, ignore_errors=True)
        if not self._stored or not path.exists():
            self._save(path)
        else:
            _append(path, self.records[self._stored :])
        self._stored = len(self.records)
        self._point()

    def protected(self, step: int) -> set[int]:
        """Returns the steps of the checkpoints that must stay when step `step` is saved."""
        return protected(self._config.quality, self.evaluations, [*self._steps(), step])

    def close(self) -> None:
        """Writes what is still pending."""
        if self._open and self._steps():
            self.saved()

    def discard(self) -> None:
        """Removes the history of a run that has not started."""
        if self._open:
            self._path.unlink(missing_ok=True)

    def _save(self, path: pathlib.Path) -> None:
        files.write_atomically(path, b"".join(map(_line, self.records)))

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
            if event.time - self._progress_at >= PROGRESS_SECONDS and not math.isnan(event.loss):
                self._progress_at = event.time
                self._add("progress", event.step, event.time, loss=event.loss)
        elif isinstance(event, events.Evaluated):
            interval = event.interval
            before = (
                r["loss"] for r in self.records if r["kind"] == "train" and r["step"] <= interval.end_step
            )
            values = {"epoch": interval.last_epoch, "value": event.value, "details": dict(event.details)}
            values |= {"by_class": dict(event.by_class)} if event.by_class else {}
            values |= {"confused": [list(row) for row in event.confused]} if event.confused else {}
            loss = event.details.get("loss", [None, *before][-1])
            self._add("evaluation", interval.end_step, event.time, **values, loss=loss)
            self._point()
        elif isinstance(event, events.RunStopped):
            self._add("end", event.step, event.time, status=event.status, reason=event.reason)

    def _trained(self, event: events.Trained) -> None:
        size = max(1, -(-len(event.times) // POINTS))
        firsts = range(0, len(event.times), size)
        ends = [min(first + size, len(event.times)) for first in firsts]
        steps = [event.interval.first_step + end for end in ends]
        # One call for all points, since the next block waits for it.
        rates = self._rates([step - 1 for step in steps]) if steps else []
        points = []
        for i, (first, end) in enumerate(zip(firsts, ends)):
            at = event.times[end - 1]
            seconds, self._last = at - self._last, at
            point: Record = {"loss": sum(event.losses[first:end]) / (end - first)}
            if seconds > 0:
                point["examples_per_second"] = (end - first) * self._config.global_batch_size / seconds
            point["learning_rate"] = float(rates[i])
            points.append(self._entry("train", steps[i], at, point))
        self._write(points)

    def _add(self, kind: str, step: int, at: float, **values: Any) -> None:
        self._write([self._entry(kind, step, at, values)])

    def _entry(self, kind: str, step: int, at: float, values: Record) -> Record:
        seconds = round(self._offset + at - self._start, 3)
        return {"kind": kind, "step": step, "seconds": seconds, "time": round(at, 3), **values}

    def _write(self, records: Sequence[Record]) -> None:
        self.records += records
        _append(self._path, records)

    def summary(self) -> list[str]:
        """Returns lines for the end of the run's output: the best checkpoint, and one line per evaluation."""
        evaluations, lines = self.evaluations, []
        choice = best(self._config.quality, evaluations, self._steps())
        if choice and self._checkpoints:
            quality = self._config.quality.text(choice["value"])
            lines.append(f"best     {self._checkpoints / BEST} ({quality} after epoch {choice['epoch']})")
        losses = {r["step"]: r["loss"] for r in self.records if r["kind"] == "train"}
        top = best(self._config.quality, evaluations, [e["step"] for e in evaluations])
        for record in evaluations:
            loss = f", loss {number(losses[record['step']])}" if record["step"] in losses else ""
            mark = ", the best" if record is top else ""
            lines.append(
                f"epoch {record['epoch']:>4}  {self._config.quality.text(record['value'])}{loss}, "
                f"step {record['step']}, {duration(record['seconds'])}{mark}"
            )
        return lines

    def _point(self) -> None:
        choice = best(self._config.quality, self.evaluations, self._steps())
        if choice and self._checkpoints:
            try:
                point(self._checkpoints, f"checkpoint_{choice['step']:08d}.npz")
            except OSError as error:
                path = self._checkpoints / BEST
                raise UserError(f"{path}: cannot write: {error.strerror}; {write_fix(error)}") from error

    def _steps(self) -> list[int]:
        if self._checkpoints is None:
            return []
        return [checkpoint_file.step_of(path) for path in checkpoint_file.checkpoints(self._checkpoints)]


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
        "train_steps": RunLength.of(config).train_steps,
        "global_batch_size": config.global_batch_size,
    }


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _append(path: pathlib.Path, records: Sequence[Record]) -> None:
    try:
        with open(path, "ab") as file:
            file.write(b"".join(map(_line, records)))
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}; {write_fix(error)}") from error


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
    for place, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            records.append({**record, "kind": str(record["kind"]), "seconds": float(record["seconds"])})
            int(record["step"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise UserError(f"{path}:{place}: not a line of a history ({error}); delete the file") from error
    return records


def loss_of(evaluation: Record) -> float:
    """Returns the loss of an evaluation's record; infinity if it has none, as in a file of an earlier version."""
    loss = evaluation.get("loss", math.inf)
    return loss if isinstance(loss, int | float) and math.isfinite(loss) else math.inf


def best(measure: Measure, evaluations: Sequence[Record], steps: Sequence[int]) -> Record | None:
    """Returns the best evaluation after any of `steps`; None if there is none.

    Of equals it is the one with the lowest loss, and of those the latest: scores saturate before the network does.
    """
    candidates = [
        e for e in evaluations if e["step"] in set(steps) and measure.score(e["value"]) > float("-inf")
    ]

    def rank(evaluation: Record) -> tuple[float, float, int]:
        return measure.score(evaluation["value"]), -loss_of(evaluation), evaluation["step"]

    return max(candidates, key=rank, default=None)


def protected(measure: Measure, evaluations: Sequence[Record], steps: Sequence[int]) -> set[int]:
    """Returns the steps of checkpoints that must stay: the best one, and those still awaiting evaluation."""
    last = max((e["step"] for e in evaluations), default=-1)
    top = best(measure, evaluations, steps)
    return {step for step in steps if step > last} | ({top["step"]} if top else set())


def point(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Makes `folder`/best.npz point to the checkpoint `name` beside it; returns it.

    Raises OSError if the folder cannot be written.
    """
    path, link = folder / BEST, folder / f".{BEST}.{os.getpid()}"
    if path.is_symlink() and os.readlink(path) == name:
        return path
    with contextlib.suppress(OSError):
        link.unlink()
    try:
        os.symlink(name, link)
        os.replace(link, path)
    except OSError:  # A file system without links.
        with whole(path) as copy:
            shutil.copyfile(folder / name, copy)
    return path


def _rates(config: RunConfig) -> Any:
    """Returns a function from steps to their learning rates."""
    import tensorflow as tf

    from common.optim import schedules

    rate = schedules.run_learning_rate(config, RunLength.of(config))

    def rates(steps: Sequence[int]) -> Sequence[float]:
        return rate(tf.constant(list(steps))).numpy().tolist()

    return rates
