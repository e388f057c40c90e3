"""Writes the file of a log: complete lines, one run at a time, with space for the last line of a full disk."""

import contextlib
import errno
import fcntl
import os
import pathlib

from common import files
from common.errors import UserError
from timetotrain.run.locks import lock

# Reserved disk space, so that a run that fills the disk can still write its last line.
RESERVE_BYTES = 16384


class LogFile:
    """A log file: each line goes to the system before the next is written; a full disk raises UserError."""

    def __init__(self, path: pathlib.Path):
        self.path, self._reserve = path, path.with_suffix(path.suffix + ".reserve")
        self._new_folders = [place for place in reversed(path.parents[:-1]) if not os.path.exists(place)]
        is_new = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
            lock(self._file, path, "give another --run")
            is_new = True
            self._file.truncate(0)
            self._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                if is_new:  # Otherwise it may be another run's log.
                    self._reserve.unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
            files.remove_empty(self._new_folders)
            raise self._error(error) from error

    def write(self, line: str) -> None:
        try:
            self._restore()
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def _restore(self) -> None:
        """Writes the file again if it was removed; its content is there while the file is open."""
        if os.fstat(self._file.fileno()).st_nlink:
            return
        self._file.seek(0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        removed, self._file = self._file, open(self.path, "x+", encoding="utf-8")  # noqa: SIM115
        with removed:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.write(removed.read())
            self._file.flush()

    def release_reserve(self) -> None:
        """Releases the reserved space for the last line of a failed run."""
        self._reserve.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes the file, and the folders that it made if they are empty."""
        self.close()
        self.path.unlink(missing_ok=True)
        files.remove_empty(self._new_folders)

    def publish(self, path: pathlib.Path) -> None:
        """Gives the file its final name while still locked, then closes it."""
        try:
            if not self._file.closed:
                self._restore()
                self.path.replace(path)
        except OSError as error:
            raise self._error(error) from error
        self.close()

    def close(self) -> None:
        self._reserve.unlink(missing_ok=True)
        if not self._file.closed:
            try:
                self._file.close()
            except OSError as error:
                raise self._error(error) from error

    def _error(self, error: OSError) -> UserError:
        fix = (
            "free some space"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "choose a folder you can write to"
        )
        return UserError(f"{self.path}: cannot write the log: {error.strerror}; {fix} (--result_dir)")
