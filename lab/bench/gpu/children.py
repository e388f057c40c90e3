"""Runs measurements as processes, several at a time. If one hangs or dies, only its row is lost."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lab.bench.harness import ROOT

_LOOK_SECONDS = 0.1
_LONGEST_MESSAGE = 400


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
      name: name of its row in the results, such as step/resnet; "" for work that has no row.
      job: job for child.py.
      seconds: time limit of each phase: until it waits to measure, and from the start of measuring.
      flags: XLA flags, added to those in the environment.
      environment: other environment variables of the process.
    """

    name: str
    job: Mapping[str, Any]
    seconds: float
    flags: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Child:
    """The process of a row."""

    def __init__(self, row: Row, python: str):
        self.row, self.result, self._at = row, None, ""
        self._began = self._since = time.monotonic()
        flags = f"{os.environ.get('XLA_FLAGS', '')} {row.flags}".strip()
        # Several processes share the card's memory, so none may take it all at its start.
        settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": flags}
        # Files, not pipes: nobody would drain the pipes of a killed process.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [python, "-m", "lab.bench.gpu.child", json.dumps(row.job)],
            cwd=ROOT,
            env={**os.environ, **settings, **row.environment},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            told = json.loads(line)
            if "at" in told:
                self._at, self._since = told["at"], time.monotonic()
            self.result = told.get("result", self.result)

    def ended(self, deadline: float) -> bool:
        """Whether the process has ended; ends it when its phase or the whole time is over."""
        if self._process.poll() is not None:
            self._reader.join(5)
            return True
        now = time.monotonic()
        late = self._at != "waiting" and now - self._since > self.row.seconds
        if late or now > deadline:
            self._kill()
            if self.result is None:
                self.result = {"error": f"not done after {self.row.seconds:.0f} s"} if late else {"cut": True}
            return True
        return False

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def found(self) -> dict[str, Any]:
        """Returns the row's figures and seconds, or {"error": ...}, or {"cut": True} if the time was over."""
        found = self.result
        if found is None:
            self._errors.seek(0)
            found = {"error": _message(self._errors.read(), self._process.returncode)}
        self._errors.close()
        return {**found, "wall_seconds": round(time.monotonic() - self._began, 1)}


def _message(errors: str, status: int) -> str:
    """Returns the line of a process's standard error that says why it ended."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [
        line for line in lines if any(w in line for w in ("Error", "error:", "Unknown flag", "RESOURCE"))
    ]
    line = (telling or lines or ["no message"])[-1]
    return f"exit status {status}: {line[:_LONGEST_MESSAGE]}"


def run(
    rows: Iterable[Row], at_a_time: int, deadline: float, done: Callable[[Row, dict], None], python: str = ""
) -> None:
    """Runs the rows in order, `at_a_time` together, and calls `done(row, found)` as each ends.

    At `deadline` (of time.monotonic) it ends running rows and starts no more.
    """
    waiting, running = list(rows), []
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time and time.monotonic() < deadline:
                running.append(Child(waiting.pop(0), python or sys.executable))
            for child in [child for child in running if child.ended(deadline)]:
                running.remove(child)
                done(child.row, child.found())
            if not running and time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)
    finally:
        for child in running:  # The parent was interrupted.
            child._kill()
