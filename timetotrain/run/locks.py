"""Locks what a run writes, so that two runs never write into one place. TensorFlow-free."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from typing import IO

from common.errors import UserError
from common.files import write_fix

NAME = ".run.lock"


def lock(file: IO, path: pathlib.Path, fix: str) -> None:
    """Locks an open file until it is closed or the process ends; a killed run's lock is free.

    Args:
      file: opened as `path`.
      path: for the message.
      fix: what the error tells the user to do.

    Raises:
      UserError: another run holds the lock, or has renamed or removed the file since it was opened here.
      OSError: the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{path}: another run is writing it; {fix}") from None
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise UserError(f"{path}: another run has just ended it; {fix}")


class FolderLock:
    """A lock on a folder, from the constructor to `release`; it is a file in the folder."""

    def __init__(self, folder: pathlib.Path, flag: str):
        """Locks the folder, which exists.

        Raises:
          UserError: another run holds the lock, or the folder cannot be written; the message names `flag`.
        """
        self._path = folder / NAME
        try:
            self._file = open(self._path, "a")  # noqa: SIM115
            lock(self._file, self._path, f"give another {flag}, or wait for it")
        except OSError as error:
            raise UserError(f"{flag}={folder}: cannot lock: {error.strerror}; {write_fix(error)}") from error

    def release(self) -> None:
        """Removes the lock."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._file.close()
