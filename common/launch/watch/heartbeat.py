"""What a process tells the launcher that started it: that it lives, its step, its log, why it ends.

One JSON object per line, into the pipe whose number is in the environment. TensorFlow-free; without a launcher
every function does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
import time
from collections.abc import Mapping
from typing import Any

VARIABLE = "LAUNCH_PIPE"
BEAT_SECONDS = 0.5
# A process whose launcher is gone stops by itself: at the next step, or after so long the hard way.
ORPHAN_SECONDS = 15.0
# Writes shorter than PIPE_BUF (4096 bytes on Linux) happen at once or not at all.
LONGEST = 2000


class Link:
    """The pipe to the launcher."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self.step = -1
        self.own_seconds: Mapping[str, float] | None = None

    def open(self) -> None:
        """Takes the pipe from the environment, so that no child of this process takes it too, and starts to beat."""
        number = os.environ.pop(VARIABLE, "")
        if not number.isdecimal() or not _is_pipe(int(number)):
            return
        self._pipe = int(number)
        os.set_inheritable(self._pipe, False)
        os.set_blocking(self._pipe, False)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def tell(self, **facts: Any) -> bool:
        """Sends `facts`; whether a launcher has them now."""
        if self._pipe is None:
            return False
        try:
            facts = {k: v[:LONGEST] if isinstance(v, str) else v for k, v in facts.items()}
            os.write(self._pipe, json.dumps({"pid": os.getpid(), **facts}).encode() + b"\n")
        except BlockingIOError:
            return False  # The launcher is stopped; it will read what is in the pipe.
        except OSError:
            self._pipe = None
            return False
        return True

    def _beat(self) -> None:
        while self.tell(step=self.step, own_seconds=self.own_seconds) or self._pipe is not None:
            time.sleep(BEAT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        os._exit(128 + signal.SIGTERM)


def _is_pipe(number: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    return False


_LINK = Link()


def start() -> None:
    """Begins to beat, where a launcher listens."""
    _LINK.open()


def tell(**facts: Any) -> bool:
    """Tells the launcher; False where there is none. Facts it knows: log, error, signal, result."""
    return _LINK.tell(**facts)


def at_step(step: int, own_seconds: Mapping[str, float] | None = None) -> None:
    """The step that was done, and the seconds this process spent by itself (common/train/step_timing.py), if known."""
    _LINK.step, _LINK.own_seconds = step, own_seconds or _LINK.own_seconds
