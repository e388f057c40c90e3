"""Records TensorFlow's trace of some training steps, `--profile_steps=A:B`, into a folder that TensorBoard shows.

Many steps are one call into TensorFlow, so an interval with such steps has three calls: the steps before them, the
recorded steps, the steps after them with the evaluation. A call begins with an exchange, so all processes cut alike;
one of them records.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from common.errors import UserError
from common.files import FIX, write_fix
from common.train import events
from common.train.listener import Listener
from common.train.loop import Loop

MARK = "profiled steps"  # Name of the trace's event around each call with steps to record.
MOST_STEPS = 1000  # A trace keeps an event for each operation of each step in memory.


class Span(NamedTuple):
    """Steps `first` to `last` of a run, counted from 1, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, train_steps: int) -> Span:
        """Returns the steps that `--profile_steps` names.

        Raises UserError if the text is not A:B, or it names steps outside this run or too many steps.
        """
        flag = f"--profile_steps={text}"
        match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text)
        if not match:
            raise UserError(f"{flag}: give the first and the last step, such as 11:20")
        first, last = map(int, match.groups())
        if not 1 <= first <= last <= train_steps:
            fix = "give A:B within, A no more than B"
            raise UserError(f"{flag}: this run has the steps 1:{train_steps}; {fix}")
        if last - first >= MOST_STEPS:
            raise UserError(f"{flag}: {last - first + 1} steps; a trace takes at most {MOST_STEPS}")
        return cls(first, last)


class Profile(Listener):
    """Ends calls where the steps to record begin and end, and records these steps if it has a folder.

    Attributes:
      steps: number of recorded steps that ran.
    """

    def __init__(self, span: Span, folder: pathlib.Path | None):
        """`folder`: folder of the trace; None in a process that records nothing.

        Raises UserError if the folder cannot be made.
        """
        self.span, self.folder = span, folder
        self.steps = 0
        self._loop: Loop | None = None
        self._recording = False
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{folder}: cannot write: {error.strerror}; {write_fix(error)}") from error

    def on_start(self, loop: Loop) -> None:
        self._loop = loop

    def next_pause(self, step: int, end: int) -> float:
        """Ends a call before the first recorded step, and after the last one: the trace is of no evaluation."""
        before, last = self.span.first - 1, self.span.last
        if step < before:
            return before if before < end else math.inf
        return min(last, end) if step < last else math.inf

    @contextlib.contextmanager
    def around_call(self, step: int, steps: int) -> Iterator[None]:
        """Records a call of steps to record."""
        first, last = self.span.first, self.span.last
        if not (self.folder and steps and first <= step + 1 and step + steps <= last):
            yield
            return
        if not self._recording:
            tf.profiler.experimental.start(str(self.folder))
            self._recording = True
        with tf.profiler.experimental.Trace(MARK):
            yield
        self.steps += self._loop.step - step
        if step + steps == last:
            self._close()

    def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RunStopped):
            self._close()

    def _close(self) -> None:
        """Writes the trace, if one is being recorded. Raises UserError if the folder cannot be written."""
        if self._recording:
            self._recording = False
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                raise UserError(f"{self.folder}: cannot write the trace: {error.message}; {FIX}") from error
