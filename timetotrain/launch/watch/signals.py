"""Catches the signals that end a run, from the launcher's start to its end. TensorFlow-free."""

from __future__ import annotations

import signal
import time
from typing import Any

from common.distributed.heartbeat import STOPS

POLL_SECONDS = 0.1


def caught() -> list[signal.Signals]:
    """Returns the signals to catch. An ignored one stays ignored: nohup protects a run from its terminal's hang-up."""
    return [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]


class Signals:
    """Catches signals while it is entered; the kernel drops those of a container's process 1 that nobody catches.

    Attributes:
      number, at: the first signal, and when it came, in monotonic seconds; 0 if none has come.
    """

    def __init__(self) -> None:
        self.number, self.at = 0, 0.0
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

    def wait(self, seconds: float) -> int:
        """Waits until a signal has come, at most `seconds`; returns `number`."""
        end = time.monotonic() + seconds
        while not self.number and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return self.number
