"""Records TensorFlow's trace of some training steps, `--profile_steps=A:B`, into a folder that TensorBoard shows.

A block is one call into TensorFlow, so a block with such steps is cut into three parts: the steps before them, the
recorded steps, the steps after. A call begins with an exchange, so all processes cut alike; one of them records.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from common.errors import UserError
from common.files import FIX

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


class Profile:
    """Cuts blocks at the steps to record, and records these steps if it has a folder."""

    def __init__(self, span: Span, folder: pathlib.Path | None):
        """`folder`: folder of the trace; None in a process that records nothing.

        Raises UserError if the folder cannot be made.
        """
        self.span, self.folder = span, folder
        self.steps = 0  # Number of recorded steps that ran.
        self._recording = False
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{folder}: cannot write: {error.strerror}; {FIX}") from error

    def parts(self, done: int, steps: int) -> list[int]:
        """Cuts a block of `steps` steps after the first `done`; returns the steps of each part, at least one part.

        A recorded part is never the last, because the evaluation runs in the last part.
        """
        end = done + steps
        inside = {edge for edge in (self.span.first - 1, self.span.last) if done < edge < end}
        seconds = [b - a for a, b in itertools.pairwise(sorted({done, end} | inside))]
        recorded = steps and self.span.first <= end <= self.span.last
        return [*seconds, 0] if recorded or not seconds else seconds

    def records(self, done: int, steps: int) -> bool:
        """Whether to record the `steps` steps after the first `done` here."""
        first, last = self.span.first, self.span.last
        return bool(self.folder and steps and first <= done + 1 and done + steps <= last)

    @contextlib.contextmanager
    def around(self, done: int, steps: int) -> Iterator[None]:
        """Records what happens inside the context, if the `steps` steps after the first `done` should be recorded."""
        if not self.records(done, steps):
            yield
            return
        if not self._recording:
            tf.profiler.experimental.start(str(self.folder))
            self._recording = True
        with tf.profiler.experimental.Trace(MARK):
            yield
        if done + steps == self.span.last:
            self.close()

    def close(self) -> None:
        """Writes the trace, if one is being recorded. Raises UserError if the folder cannot be written."""
        if self._recording:
            self._recording = False
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                raise UserError(f"{self.folder}: cannot write the trace: {error.message}; {FIX}") from error
