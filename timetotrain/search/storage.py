"""Opens a search's storage: a database, or a journal file that survives a killed writer and a full disk."""

from __future__ import annotations

import os
import pathlib

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from common.errors import UserError

JOURNAL_BEGIN = b'{"op_code":'  # Start of every line in Optuna's journals.


class _Lock(JournalFileSymlinkLock):
    """Optuna's journal lock; on acquiring it, cuts off an unfinished last line (from a killed writer or a full disk).

    Otherwise the next writer would append to that line, and nothing after it could be read.
    """

    def acquire(self) -> bool:
        super().acquire()
        try:
            _cut_half_line(pathlib.Path(self._lock_target_file))
        except BaseException:
            self.release()
            raise
        return True


def _cut_half_line(path: pathlib.Path) -> None:
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > len(tail) and b"\n" not in tail:
            file.seek(max(0, end - 2 * len(tail) - 4096))
            tail = file.read(end - file.tell())
        file.truncate(end - len(tail.rpartition(b"\n")[2]))


def open_storage(where: str | pathlib.Path) -> BaseStorage:
    """Opens a database by URL, or else a journal file, which processes on one machine (or over NFS) can share.

    Raises:
      UserError: the storage cannot be opened.
    """
    try:
        if "://" in str(where):
            return RDBStorage(str(where))
        path = pathlib.Path(where).resolve()  # The lock is a link to the file, in the file's folder.
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            with open(path, "rb") as file:
                begin = file.read(len(JOURNAL_BEGIN))
            if not JOURNAL_BEGIN.startswith(begin):
                raise ValueError("no journal of a search; name another file")
        return JournalStorage(JournalFileBackend(str(path), _Lock(str(path))))
    except Exception as error:  # A database driver may raise anything.
        raise UserError(f"--storage={where}: cannot open it: {error}") from error
