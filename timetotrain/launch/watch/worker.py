"""Starts one process of a run and records what its launcher knows about it."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import io
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from common.distributed.heartbeat import STACKS, VARIABLE
from common.errors import UserError
from timetotrain.launch import procfs

CHUNK = 65536
# What a process may print between two looks without waiting; the most without privileges.
PIPE_BYTES = 1 << 20
POLL_SECONDS = 0.1  # A launcher looks at its processes this often.


class Lines:
    """Reads a pipe line by line without blocking."""

    def __init__(self, pipe: IO[bytes]):
        """`pipe`: open without a buffer."""
        self._pipe, self._rest = pipe, b""
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # Not on Linux, or the user's pipes are too many.
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def read(self) -> Iterator[bytes]:
        """Yields the lines that have arrived, and, once the pipe has ended, an unfinished last line."""
        while not self._pipe.closed and (data := self._pipe.read(CHUNK)) is not None:
            if not data:
                self.close()
                if self._rest:
                    yield self._rest
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from lines

    def close(self) -> None:
        self._pipe.close()


class Worker:
    """A started process, in its own session, so that everything it starts can be ended with it.

    Attributes:
      facts: what the process has sent, by name ("start", "step", "log", "error", "lost", "signal", "result").
      fact_times: when it first sent each, by its own monotonic clock, which all processes of a machine share.
      beat_at: when the launcher last heard of it, or first of another process; None if of none.
      asked_at: when the launcher first asked it to end.
      frozen, frozen_since: how it is frozen, or ""; its last sign of life.
      code: the exit status, or minus the number of the signal that killed it; None while it runs.
      ended_at: when the launcher saw its end, at most `POLL_SECONDS` after it.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: IO[str] | None = None,
    ):
        """`output`: takes what the process prints, instead of `self.output`. Raises UserError if it cannot start."""
        self.rank, beats = rank, os.pipe()
        self._beats, stream = Lines(io.FileIO(beats[0])), output or subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command, env={**environment, VARIABLE: str(beats[1])}, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=stream, bufsize=0, start_new_session=True, pass_fds=beats[1:],
            )  # fmt: skip
        except OSError as error:
            self._beats.close()
            raise UserError(f"{command[0]}: {error.strerror}; is the command right?") from error
        finally:
            os.close(beats[1])
        self.output = [Lines(pipe) for pipe in (self.process.stdout, self.process.stderr) if pipe]
        self._kills = _memory_kills()
        self.last_words: collections.deque[bytes] = collections.deque(maxlen=50)  # Of standard error.
        self.facts: dict[str, Any] = {}
        self.fact_times: dict[str, float] = {}
        self.beat_at: float | None = None
        self.stopped_since: float | None = None
        self.frozen = ""
        self.frozen_since = 0.0
        self.code: int | None = None
        self.ended_at = 0.0
        self.asked_at: float | None = None

    @property
    def running(self) -> bool:
        return self.code is None

    @property
    def ended_early(self) -> bool:
        """Whether it has ended without a result: with an error's status, or with 0 in a run."""
        return (
            not self.running and "result" not in self.facts and (self.code != 0 or self.beat_at is not None)
        )

    def was_asked_before(self, at: float) -> bool:
        """Whether the launcher had asked it to end by `at`, in monotonic seconds."""
        return self.asked_at is not None and self.asked_at < at

    def listen(self) -> None:
        """Reads the facts that the process has sent."""
        for line in self._beats.read():
            facts, self.beat_at = _facts_of(line), time.monotonic()
            for name, value in facts.items():
                if name in ("error", "signal"):  # Keep the first one: it is the cause.
                    self.facts.setdefault(name, value)
                else:
                    self.facts[name] = value
                self.fact_times.setdefault(name, facts.get("at", self.beat_at))

    def reap(self) -> None:
        """Collects the exit status, once the process has ended."""
        if self.code is not None or self.process.poll() is None:
            return
        self.listen()
        self.code, self.ended_at = self.process.returncode, time.monotonic()
        # A shell exits with 128 + the number of the signal that killed its command; 255, from ssh or `sys.exit(-1)`,
        # names no signal.
        if "result" not in self.facts and self.code - 128 in {int(each) for each in signal.Signals}:
            self.code = 128 - self.code

    def state(self) -> str:
        """Returns the kernel's state letter for the process that sends heartbeats (see procfs.state); "" if gone."""
        return procfs.state(self.facts.get("pid", self.process.pid))

    def ask(self, number: int) -> None:
        """Signals, once, the process that sends heartbeats, not the shell around it or its own workers."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.facts.get("pid", self.process.pid), number)

    def show_stacks(self) -> None:
        """Makes the process print the stacks of its Python threads; only processes with a heartbeat can."""
        if "pid" in self.facts:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.facts["pid"], STACKS)

    def kill(self) -> None:
        """Kills the process and everything it started."""
        if self.running:
            self.asked_at = self.asked_at or time.monotonic()
        procfs.kill(procfs.session_members(self.process.pid))

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of this control group for want of memory since this one started."""
        return _memory_kills() > self._kills

    def close(self) -> None:
        for pipe in (self._beats, *self.output):
            pipe.close()


def _facts_of(line: bytes) -> dict[str, Any]:
    """Returns the facts in a line of a process's pipe; {} if another program wrote it."""
    with contextlib.suppress(ValueError):
        facts = json.loads(line)
        return facts if isinstance(facts, dict) else {}
    return {}


def _memory_kills() -> int:
    """Returns how many processes of the launcher's control group the kernel has killed for want of memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = pathlib.Path("/proc/self/cgroup").read_text().split("::")[1].strip().lstrip("/")
        text = (pathlib.Path("/sys/fs/cgroup") / group / "memory.events").read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])
    return 0
