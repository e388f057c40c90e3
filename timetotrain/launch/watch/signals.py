"""Catches the signals that end a run, from the launcher's start to its end. TensorFlow-free."""

from __future__ import annotations

import signal
import time
from typing import Any

from common.distributed.heartbeat import STOPS
from common.errors import UserError


def caught() -> list[signal.Signals]:
    """Returns the signals to catch. An ignored one stays ignored: nohup protects a run from its terminal's hang-up."""
    return [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]


class Signals:
    """Catches signals while it is entered; the kernel drops those of a container's process 1 that nobody catches.

    Attributes:
      number, at: the first signal, and when it came, in monotonic seconds; 0 if none has come.
    """

    def __init__(self) -> None:
        self.number, self.at, self._at_once = 0, 0.0, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._on_signal) for number in caught()}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        if not self.number:
            self.number, self.at = number, time.monotonic()
        self.end_at_once(self._at_once)

    def end_at_once(self, at_once: bool) -> None:
        """While no process runs, which would end first, a signal, also one that has come before, raises UserError."""
        self._at_once = at_once and not self.number  # A second signal disturbs nothing that ends.
        if at_once and self.number:
            raise UserError(stopped_by(self.number), 128 + self.number)


def stopped_by(number: int) -> str:
    """Says that a signal to the launcher stopped a run."""
    return f"{signal.Signals(number).name} to the launcher: the run stopped"
