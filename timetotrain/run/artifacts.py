"""Keeps a run's history and its best checkpoint beside the newest ones, and sums them up in lines.

The history beside the checkpoints records every evaluation, so the best one stays known across resumes. `best.npz`
points to it: a symbolic link, replaced atomically; on a file system without links it is a copy.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from common.config.clock import Clock
from common.config.quality import Measure
from common.config.schema import RunConfig
from common.errors import UserError
from common.files import whole, write_fix
from common.train import checkpoint_file, events
from common.train.checkpoint_file import BEST
from timetotrain.run import history
from timetotrain.run.options import RunOptions
from timetotrain.run.progress import duration, number


class Artifacts:
    """Call `begin` once the first step is known, `record` for each event, `saved` after a checkpoint, then `close`."""

    def __init__(
        self,
        config: RunConfig,
        options: RunOptions,
        path: pathlib.Path,
        baseline: Mapping[str, Any] | None = None,
    ):
        """`path` is the history's path, beside the log; `baseline` as in `History`."""
        self._config, self._path, self._baseline = config, path, baseline
        self._checkpoints = pathlib.Path(options.checkpoint_dir) if options.checkpoint_dir else None
        self.history: history.History | None = None

    def begin(self, start: int) -> None:
        """Opens the files; the run resumes from step `start`."""
        earlier: list[history.Record] = []
        if start and self._checkpoints:
            earlier = history.until(history.read(self._checkpoints / history.NAME), start)
        self.history = history.History(
            self._config, self._path, _rates(self._config), earlier, self._baseline
        )

    def record(self, event: events.Event) -> None:
        """Records an event, and points to the best checkpoint."""
        if self.history is None:
            return
        self.history.record(event)
        if isinstance(event, events.Evaluated):
            self._point()

    def saved(self) -> None:
        """Notes that a checkpoint was saved."""
        if self.history is not None and self._checkpoints:
            self.history.save(self._checkpoints)
            self._point()

    def protected(self, step: int) -> set[int]:
        """Returns the steps of the checkpoints that must stay when step `step` is saved."""
        if self.history is None:
            return set()
        steps = [*self._steps(), step]
        return protected(self._config.quality, self.history.evaluations, steps)

    def close(self) -> None:
        """Writes what is still pending."""
        if self.history is not None and self._checkpoints and self._steps():
            self.saved()

    def discard(self) -> None:
        """Removes the history of a run that has not started."""
        if self.history is not None:
            self.history.path.unlink(missing_ok=True)

    @property
    def records(self) -> list[history.Record]:
        """The history so far; empty before `begin`."""
        return [] if self.history is None else self.history.records

    def summary(self) -> list[str]:
        """Returns the lines that end the run's output: the best checkpoint, and one line per evaluation."""
        if self.history is None:
            return []
        evaluations, lines = self.history.evaluations, []
        chosen = best(self._config.quality, evaluations, self._steps())
        if chosen and self._checkpoints:
            quality = self._config.quality.shown(chosen["value"])
            lines.append(f"best     {self._checkpoints / BEST} ({quality} after epoch {chosen['epoch']})")
        losses = {r["step"]: r["loss"] for r in self.history.records if r["kind"] == "train"}
        top = best(self._config.quality, evaluations, [e["step"] for e in evaluations])
        for record in evaluations:
            loss = f", loss {number(losses[record['step']])}" if record["step"] in losses else ""
            mark = ", the best" if record is top else ""
            lines.append(
                f"epoch {record['epoch']:>4}  {self._config.quality.shown(record['value'])}{loss}, "
                f"step {record['step']}, {duration(record['seconds'])}{mark}"
            )
        return lines

    def _point(self) -> None:
        if self._checkpoints is None or self.history is None:
            return
        chosen = best(self._config.quality, self.history.evaluations, self._steps())
        if chosen:
            try:
                point(self._checkpoints, f"checkpoint_{chosen['step']:08d}.npz")
            except OSError as error:
                path = self._checkpoints / BEST
                raise UserError(f"{path}: cannot write: {error.strerror}; {write_fix(error)}") from error

    def _steps(self) -> list[int]:
        if self._checkpoints is None:
            return []
        return [checkpoint_file.step_of(path) for path in checkpoint_file.checkpoints(self._checkpoints)]


def best(
    measure: Measure, evaluations: Sequence[history.Record], steps: Sequence[int]
) -> history.Record | None:
    """Returns the best evaluation after any of `steps`; None if there is none.

    Of equals it is the one with the lowest loss, and of those the latest: scores saturate before the network does.
    """
    candidates = [
        e for e in evaluations if e["step"] in set(steps) and measure.score(e["value"]) > float("-inf")
    ]

    def rank(evaluation: history.Record) -> tuple[float, float, int]:
        return measure.score(evaluation["value"]), -history.loss_of(evaluation), evaluation["step"]

    return max(candidates, key=rank, default=None)


def protected(measure: Measure, evaluations: Sequence[history.Record], steps: Sequence[int]) -> set[int]:
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

    clock = Clock.of(config)
    rate = schedules.learning_rate(
        config.schedule, config.optimizer.base_learning_rate, clock.steps_per_epoch, clock.train_steps
    )

    def rates(steps: Sequence[int]) -> Sequence[float]:
        return rate(tf.constant(list(steps))).numpy().tolist()

    return rates
