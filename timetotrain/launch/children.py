"""Runs benchmarks that never outlive the process that started them, each by itself. TensorFlow-free.

Each runs in its own session and sends signs of life through a pipe (common/distributed/heartbeat.py). Once nobody reads
the pipe, it stops by itself.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from typing import IO, Any

from common.distributed.heartbeat import GRACE_VARIABLE
from common.errors import UserError
from timetotrain.launch.watch.loop import Limits, Watch
from timetotrain.launch.watch.signals import Signals
from timetotrain.launch.watch.worker import Worker

# A search or a study waits for its runs: stopping one for a while, or one that takes long, harms nobody else.
_PATIENT = dict.fromkeys(("stopped", "silent", "starting", "progress", "phase", "slow"), math.inf)


class EndedError(UserError):
    """This process received a signal and ended its children; the exit code is 128 + the signal's number."""


class Children:
    """Runs benchmarks' processes and ends them on a signal; several threads may run some at once.

    Attributes:
      signals: ends the running children and makes `run` raise, while the main thread is in it.
    """

    def __init__(self, fix: str = "begin again", grace: float = Limits.grace):
        """`fix`: what the user can do after a signal has ended the children, for the message; `grace`: as in Limits."""
        self.signals, self._limits, self._fix = Signals(), Limits(grace=grace, **_PATIENT), fix

    def run(self, command: Sequence[Any], environment: Mapping[str, str], output: IO[str]) -> int:
        """Runs a command; returns its exit status, or 128 + a deadly signal's number.

        Args:
          output: for what the process prints, and for the error that it would leave to a launcher to print.

        Raises:
          EndedError: a signal has ended this child or an earlier one.
          UserError: the command cannot start.
        """
        self._raise_if_ended()
        environment = {**environment, GRACE_VARIABLE: str(self._limits.grace)}
        worker = Worker(0, command, environment, output)
        # A process that still imports would not end by Ctrl-C's signal.
        cause = Watch([worker], self._limits, self.signals, signal.SIGTERM).run()
        self._raise_if_ended()
        # A crash has left its own last line.
        if cause and ("error" in worker.facts or worker.code == -signal.SIGKILL):
            print(f"error: {worker.facts.get('error', cause.text)}", file=output)
        return cause.code if cause else worker.facts.get("result", worker.code)

    def _raise_if_ended(self) -> None:
        if number := self.signals.number:
            name = signal.Signals(number).name
            raise EndedError(f"{name}: what was running was ended; {self._fix}", 128 + number)
