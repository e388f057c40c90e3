"""Catches the signals that end a run, from the launcher's start to its end. TensorFlow-free."""

from __future__ import annotations

import select
import signal
import socket
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def caught() -> list[signal.Signals]:
    """Returns the signals to catch. An ignored one stays ignored: nohup protects a run from its terminal's hang-up."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


class Signals:
    """Catches signals while it is entered; the kernel drops those of a container's process 1 that nobody catches.

    Attributes:
      number: the first signal; 0 if none has come.
    """

    def __init__(self) -> None:
        self.number = 0
        self._woken, self._wakes = socket.socketpair()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._wakes.setblocking(False)
        self._before = {number: signal.signal(number, self._on_signal) for number in caught()}
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: Any) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._woken.close()
        self._wakes.close()

    def _on_signal(self, number: int, _: Any) -> None:
        self.number = self.number or number

    def wait(self, seconds: float) -> int:
        """Waits until a further signal comes, at most `seconds`; returns `number`."""
        if select.select([self._woken], [], [], seconds)[0]:
            self._woken.recv(64)
        return self.number
