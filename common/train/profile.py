"""Records TensorFlow's trace of some training steps, `--profile_steps=A:B`, into a folder that TensorBoard shows.

A block is one call into TensorFlow, so a block with such steps is cut in parts: the steps before them, they, the steps
after. All processes cut alike, since a call begins with an exchange; one of them records.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from common.errors import UserError
from common.files import FIX

MARK = "profiled steps"  # The event that the trace has around each call with steps to record.
MOST_STEPS = 1000  # A trace keeps an event of each operation of each step in memory.


class Span(NamedTuple):
    """Steps `first` to `last` of a run, counted from 1, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, train_steps: int) -> Span:
        """Returns the steps that `--profile_steps` names.

        Raises:
          UserError: no A:B, no steps of this run, or too many.
        """
        flag = f"--profile_steps={text}"
        match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text)
        if not match:
            raise UserError(f"{flag}: give the first and the last step, such as 11:20")
        first, last = map(int, match.groups())
        if not 1 <= first <= last <= train_steps:
            raise UserError(
                f"{flag}: this run has the steps 1:{train_steps}; give A:B within, A no more than B"
            )
        if last - first >= MOST_STEPS:
            raise UserError(f"{flag}: {last - first + 1} steps; a trace takes at most {MOST_STEPS}")
        return cls(first, last)


class Profile:
    """Cuts blocks at the steps to record, and records them where it has a folder."""

    def __init__(self, span: Span, folder: pathlib.Path | None):
        """`folder`: for the trace; None in a process that records nothing.

        Raises:
          UserError: the folder cannot be made.
        """
        self.span, self.folder = span, folder
        self.steps = 0  # Recorded ones that ran.
        self._recording = False
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{folder}: cannot write: {error.strerror}; {FIX}") from error

    def parts(self, done: int, steps: int) -> list[int]:
        """Returns the numbers of steps of each part of a block of `steps` after the first `done`; at least one part.

        A recorded part is not the last one, in which the evaluation runs.
        """
        end = done + steps
        edges = {done, end} | {edge for edge in (self.span.first - 1, self.span.last) if done < edge < end}
        edges = sorted(edges)
        found = [b - a for a, b in zip(edges, edges[1:])]
        recorded = steps and self.span.first <= end <= self.span.last
        return [*found, 0] if recorded or not found else found

    def records(self, done: int, steps: int) -> bool:
        """Whether the `steps` after the first `done` are to be recorded here."""
        first, last = self.span.first, self.span.last
        return bool(self.folder and steps and first <= done + 1 and done + steps <= last)

    @contextlib.contextmanager
    def around(self, done: int, steps: int) -> Iterator[None]:
        """Records what happens within, if the `steps` after the first `done` are to be recorded."""
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
        """Writes the trace, if one is being recorded.

        Raises:
          UserError: the folder cannot be written.
        """
        if self._recording:
            self._recording = False
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                raise UserError(f"{self.folder}: cannot write the trace: {error.message}; {FIX}") from error
