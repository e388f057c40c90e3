"""Locks what a run writes, so that two runs never write into one place. TensorFlow-free."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import sys
import time
from typing import IO

from common.errors import UserError
from common.files import write_fix

NAME = ".run.lock"
# A file server frees a lost machine's locks after its lease, which is 90 s for Linux's NFS (nfsd's nfsv4leasetime).
LEASE_SECONDS = 120.0
_POLL_SECONDS = 1.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class HeldError(UserError):
    """Another run holds the lock."""


def lock(file: IO, path: pathlib.Path, fix: str) -> None:
    """Locks an open file until it is closed or the process ends; a killed run's lock is free.

    Args:
      file: opened as `path`.
      path: for the message.
      fix: what the error tells the user to do.

    Raises:
      HeldError: another run holds the lock.
      UserError: another run has renamed or removed the file since it was opened here; or there are no locks.
      OSError: the file cannot be locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HeldError(f"{path}: another run is writing it; {fix}") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UserError(
            f"{path}: its file system has no locks ({error.strerror}), so that two runs could write there; mount it "
            "with locks (Lustre: -o flock), or give a folder on another one"
        ) from None
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise UserError(f"{path}: another run has just ended it; {fix}")


class FolderLock:
    """A lock on a folder, from the constructor to `release`; it is a file in the folder."""

    def __init__(self, folder: pathlib.Path, flag: str):
        """Locks the folder, which exists. Waits for the lock of another machine, which may be lost.

        Raises UserError if another run holds the lock, or the folder cannot be written; the message names `flag`. The
        status is 75, "try again", if that run's machine did not give the lock back in time.
        """
        self._path = folder / NAME
        deadline, fix = time.monotonic() + LEASE_SECONDS, f"give another {flag}, or wait for it"
        waits = False
        try:
            while not self._locked(f"{fix}; it is {_name_of(self._holder())}", deadline):
                if not waits:
                    print(
                        f"{self._path}: held by {_name_of(self._holder())}, which may be lost; waiting for the file "
                        f"server to free it, at most {LEASE_SECONDS:.0f} s",
                        file=sys.stderr,
                    )
                waits = True
                time.sleep(_POLL_SECONDS)
            self._file.truncate(0)
            self._file.write(" ".join(_this_process()))
            self._file.flush()
        except OSError as error:
            raise UserError(f"{flag}={folder}: cannot lock: {error.strerror}; {write_fix(error)}") from error

    def _locked(self, fix: str, deadline: float) -> bool:
        """Tries once; returns whether the lock is held here, and not whether waiting helps."""
        self._file = open(self._path, "a")  # noqa: SIM115
        try:
            lock(self._file, self._path, fix)
            return True
        except HeldError as error:
            self._file.close()
            holder = self._holder()
            # This kernel frees its own processes' locks at once.
            if not holder or holder[1] == _this_process()[1]:
                raise
            if time.monotonic() >= deadline:
                raise UserError(str(error), 75) from None  # EX_TEMPFAIL: the launcher may try again.
        return False

    def _holder(self) -> list[str]:
        """Returns what the lock's holder wrote, as `_this_process`; [] if it has not."""
        words = self._path.read_text(errors="replace").split() if self._path.exists() else []
        return words if len(words) == 3 else []

    def release(self) -> None:
        """Removes the lock."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._file.close()


def _this_process() -> list[str]:
    """Returns this host's name, an id of its kernel's start, and this process's number."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return [socket.gethostname(), boot.read_text().strip() if boot.exists() else "-", str(os.getpid())]


def _name_of(holder: list[str]) -> str:
    return f"process {holder[2]} on {holder[0]}" if holder else "a process"
