"""Sends a process's signs of life to its launcher: its step, its log, why it ends.

Each message is one line with a JSON object, written to the pipe whose number is in the environment. Without a
launcher, every function does nothing. TensorFlow-free.
"""

import contextlib
import faulthandler
import itertools
import json
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

VARIABLE = "LAUNCH_PIPE"
# The launcher's --grace_seconds: how long a process has to save and end after it was told to.
GRACE_VARIABLE = "LAUNCH_GRACE_SECONDS"
# The backend of a run on several hosts, whose other processes wait for one that has not joined them yet.
BACKEND_VARIABLE = "LAUNCH_BACKEND"
BEAT_SECONDS = 0.5
# A process without its launcher stops itself: at the next step, or after the grace, by default this long, at once.
ORPHAN_SECONDS = 15.0
SAVES = "saves a checkpoint"  # A phase.
# What stops a run: a terminal sends SIGINT, SIGHUP and SIGQUIT; a scheduler or a container SIGTERM or, if its user asks
# for it, SIGUSR1.
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
# Makes a process with a launcher print the stacks of its Python threads.
STACKS = signal.SIGUSR2
SCRATCH = "timetotrain-launch-"  # The name of a launcher's folder for temporary files begins so.
# Bytes of the longest text in a message: writes shorter than PIPE_BUF (4096 bytes on Linux) are whole or fail.
LONGEST = 2000


class Link:
    """The pipe to the launcher."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self.step = -1
        self.own_seconds: Mapping[str, float] | None = None
        self.phase = self.part = ""
        self.waits = False

    def start(self) -> None:
        """Starts the heartbeat if a launcher listens; removes the pipe from the environment of child processes."""
        number = os.environ.pop(VARIABLE, "")
        if not number.isdecimal() or not _is_pipe(int(number)):
            return
        self._pipe = int(number)
        os.set_inheritable(self._pipe, False)
        os.set_blocking(self._pipe, False)
        self._grace = float(os.environ.pop(GRACE_VARIABLE, ORPHAN_SECONDS))
        faulthandler.register(STACKS, all_threads=True)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def send(self, **facts: Any) -> bool:
        """Sends facts to the launcher (`timetotrain/launch/watch/` reads them); False if none was sent."""
        if self._pipe is None:
            return False
        try:
            facts = {k: _cut(v) if isinstance(v, str) else v for k, v in facts.items()}
            facts = {"pid": os.getpid(), "at": time.monotonic(), **facts}
            os.write(self._pipe, json.dumps(facts).encode() + b"\n")
        except BlockingIOError:
            return False  # The pipe is full because the launcher is stopped; it reads the pipe later.
        except OSError:
            self._pipe = None
            return False
        return True

    def at_step(self, step: int, own_seconds: Mapping[str, float] | None = None, part: str = "") -> None:
        """Sets what the next beat sends: the last finished step and, if known, where the process is in the next one.

        Args:
          own_seconds: the seconds spent alone (common/train/step_timing.py).
          part: "input", "step" or "sum".
        """
        self.step, self.own_seconds, self.part = step, own_seconds or self.own_seconds, part or self.part

    def last_step(self) -> int:
        """Returns the step that the beats send; -1 before the first."""
        return self.step

    def in_phase(self, name: str) -> str:
        """Says what the process does from now on: "trains", "saves a checkpoint"; returns what it did before."""
        before, self.phase = self.phase, name
        return before

    @contextlib.contextmanager
    def waits_for_others(self) -> Iterator[None]:
        """Says, while it holds, that the process is in an exchange with the others, between two steps."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def _beat(self) -> None:
        while self._beat_once() or self._pipe is not None:
            time.sleep(BEAT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace)
        os._exit(128 + signal.SIGTERM)

    def _beat_once(self) -> bool:
        facts = {"step": self.step, "own_seconds": self.own_seconds, "phase": self.phase, "part": self.part}
        return self.send(**facts, waits=self.waits)


def _cut(text: str) -> str:
    """Returns as much of a text's beginning as takes `LONGEST` bytes in JSON."""
    ends = itertools.accumulate(len(json.dumps(character)) - 2 for character in text[:LONGEST])
    return text[: sum(end <= LONGEST for end in ends)]


def _is_pipe(number: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    return False


_LINK = Link()
start, send, at_step, step, phase = _LINK.start, _LINK.send, _LINK.at_step, _LINK.last_step, _LINK.in_phase
waits_for_others = _LINK.waits_for_others
