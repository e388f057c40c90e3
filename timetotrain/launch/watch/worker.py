"""Starts one process of a run and records what its launcher knows about it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.distributed.heartbeat import SAVES, STACKS, VARIABLE
from timetotrain.launch import procfs
from timetotrain.launch.children import kill_session

CHUNK = 65536


class Lines:
    """Reads a pipe line by line without blocking."""

    def __init__(self, number: int):
        self.number, self._rest, self.closed = number, b"", False
        os.set_blocking(number, False)

    def read(self) -> Iterator[bytes]:
        """Yields the lines that have arrived, and, once the pipe has ended, an unfinished last line."""
        while not self.closed:
            try:
                data = os.read(self.number, CHUNK)
            except BlockingIOError:
                break
            if not data:
                self.close()
                if self._rest:
                    yield self._rest
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from lines

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.number)


class Worker:
    """A started process, in its own session, so that everything it starts can be ended with it.

    Attributes:
      told: facts that the process has sent, by name ("start", "step", "log", "error", "lost", "signal", "result").
      heard: when it last sent anything, in monotonic seconds; None if it never has.
      asked_at: when the launcher first asked it to end.
      code: the exit status, or minus the number of the signal that killed it; None while it runs.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: Mapping[str, str]):
        self.rank = rank
        beats, write = os.pipe()
        try:
            self.process = subprocess.Popen(
                command, env={**environment, VARIABLE: str(write)}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, pass_fds=(write,),
            )  # fmt: skip
        finally:
            os.close(write)
        self.beats = Lines(beats)
        self.output = [Lines(os.dup(stream.fileno())) for stream in self._streams()]
        for stream in self._streams():
            stream.close()
        self.exited = os.pidfd_open(self.process.pid)
        self._kills = _memory_kills()
        self.last_words: collections.deque[bytes] = collections.deque(maxlen=50)  # Of standard error.
        self.told: dict[str, Any] = {}
        self.told_at: dict[str, float] = {}
        self.heard: float | None = None
        self.stopped_since: float | None = None
        self.frozen = ""
        self.code: int | None = None
        self.ended_at = 0.0
        self.asked_at: float | None = None

    def _streams(self) -> tuple[Any, Any]:
        return self.process.stdout, self.process.stderr

    @property
    def running(self) -> bool:
        return self.code is None

    @property
    def saves_after_error(self) -> bool:
        """Whether it has failed, and its thread still writes the checkpoint from before."""
        return "error" in self.told and self.told.get("phase") == SAVES

    def listen(self) -> None:
        """Reads the facts that the process has sent."""
        for line in self.beats.read():
            with contextlib.suppress(ValueError):
                facts = json.loads(line)
                now = self.heard = time.monotonic()
                for name, value in facts.items():
                    if name in ("error", "signal"):  # Keep the first one: it is the cause.
                        self.told.setdefault(name, value)
                    else:
                        self.told[name] = value
                    self.told_at.setdefault(name, now)

    def reap(self) -> bool:
        """Collects the exit status; returns whether the process has ended since the last call."""
        if self.code is not None or self.process.poll() is None:
            return False
        self.listen()
        self.code, self.ended_at = self.process.returncode, time.monotonic()
        # A shell exits with 128 + the number of the signal that killed its command; 255, from ssh or `sys.exit(-1)`,
        # names no signal.
        if "result" not in self.told and self.code - 128 in {int(each) for each in signal.Signals}:
            self.code = 128 - self.code
        return True

    def state(self) -> str:
        """Returns the kernel's state letter for the process that sends heartbeats (see procfs.state); "" if gone."""
        return procfs.state(self.told.get("pid", self.process.pid))

    def ask(self, number: int) -> None:
        """Signals the process that sends heartbeats, not the shell around it or its own workers."""
        self.asked_at = self.asked_at or time.monotonic()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.told.get("pid", self.process.pid), number)

    def show_stacks(self) -> None:
        """Makes the process print the stacks of its Python threads; only processes with a heartbeat can."""
        if "pid" in self.told:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.told["pid"], STACKS)

    def kill(self) -> None:
        """Kills the process and everything it started."""
        if self.running:
            self.asked_at = self.asked_at or time.monotonic()
        kill_session(self.process.pid)

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of this control group for want of memory since this one started."""
        return _memory_kills() > self._kills

    def close(self) -> None:
        for pipe in (self.beats, *self.output):
            pipe.close()
        os.close(self.exited)


def _memory_kills() -> int:
    """Returns how many processes of the launcher's control group the kernel has killed for want of memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = pathlib.Path("/proc/self/cgroup").read_text().split("::")[1].strip().lstrip("/")
        text = (pathlib.Path("/sys/fs/cgroup") / group / "memory.events").read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])
    return 0
