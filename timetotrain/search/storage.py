"""Opens the storage of a search: a database, or a journal file that survives a killed writer and a full disk."""

from __future__ import annotations

import os
import pathlib

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from common.errors import UserError

JOURNAL_BEGIN = b'{"op_code":'  # Every line of Optuna's journals begins so.


class _Lock(JournalFileSymlinkLock):
    """Optuna's lock of a journal; once it is held, an unfinished last line (a killed writer, a full disk) is cut off.

    Otherwise the next writer would append to that line, and nothing from there on could be read.
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
    """Opens a database by its URL, else a journal file, which processes on one machine (or over NFS) share.

    Raises:
      UserError: the storage cannot be opened.
    """
    try:
        if "://" in str(where):
            return RDBStorage(str(where))
        path = pathlib.Path(where).resolve()  # The lock is a link to the file, made in its folder.
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            with open(path, "rb") as file:
                begin = file.read(len(JOURNAL_BEGIN))
            if not JOURNAL_BEGIN.startswith(begin):
                raise ValueError("no journal of a search; name another file")
        return JournalStorage(JournalFileBackend(str(path), _Lock(str(path))))
    except Exception as error:  # Whatever a database's driver raises.
        raise UserError(f"--storage={where}: cannot open it: {error}") from error
