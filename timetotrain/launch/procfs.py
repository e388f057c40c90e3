"""Reads processes' state, parent, session and work from /proc, and ends them; answers are empty without /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import time
from collections.abc import Iterator, Sequence

# proc(5) counts the fields of /proc/PID/stat from 1; `_fields` starts at the third, after the name in parentheses.
STATE, PARENT, SESSION, USER_TIME, SYSTEM_TIME = (n - 3 for n in (3, 4, 6, 14, 15))
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
ADOPTED_SECONDS = 2.0  # Time for killed processes to disappear.
POLL_SECONDS = 0.05


def state(pid: int) -> str:
    """Returns the kernel's letter: R, S, D (waits for a device), T (stopped by a signal), Z (ended); "" if gone."""
    return (_fields(pid) or [""])[STATE]


def work(pid: int) -> tuple[float, int]:
    """Returns a process's processor seconds, and the bytes that it has read from and written to disks so far."""
    fields, moved = _fields(pid), 0
    with contextlib.suppress(OSError, ValueError):
        lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
        moved = sum(int(line.split()[1]) for line in lines if line.startswith(("read_bytes", "write_bytes")))
    ticks = sum(int(fields[field]) for field in (USER_TIME, SYSTEM_TIME)) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK"), moved


def children_of(parent: int) -> list[int]:
    """Returns a process's living children."""
    return [pid for pid, fields in _living() if int(fields[PARENT]) == parent]


def session_members(leader: int) -> list[int]:
    """Returns the living processes of `leader`'s session; the leader itself may be gone."""
    return [pid for pid, fields in _living() if int(fields[SESSION]) == leader]


def _living() -> Iterator[tuple[int, list[str]]]:
    entries: list[str] = []
    with contextlib.suppress(OSError):
        entries = os.listdir("/proc")
    for entry in filter(str.isdecimal, entries):
        fields = _fields(int(entry))
        if fields and fields[STATE] != "Z":
            yield int(entry), fields


def _fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; [] if the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def adopt_orphans() -> None:
    """Makes this process adopt the orphans of its children, so that it can end them."""
    with contextlib.suppress(AttributeError, OSError):  # Not on Linux.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children() -> None:
    """Kills and reaps this process's children, adopted ones included; gives up after `ADOPTED_SECONDS`."""
    deadline = time.monotonic() + ADOPTED_SECONDS
    while (children := children_of(os.getpid())) and time.monotonic() < deadline:
        kill(children)
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill(pids: Sequence[int]) -> None:
    """Kills processes; those that are gone, or another user's, stay as they are."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
