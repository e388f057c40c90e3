"""Ends the log of a process that was killed or ran out of disk space. TensorFlow-free."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import time

from common.errors import UserError


def close_log(path: str | os.PathLike, reason: str, at: float | None = None) -> pathlib.Path | None:
    """Adds run_stop with status aborted and gives the log its final name, as RunLog.abort would have.

    `path` is the unfinished log, RESULT.partial. The reserved disk space beside it is freed first. A log without
    run_start is removed, as RunLog.discard would have done.

    Args:
      path: the unfinished log.
      reason: why the run ended.
      at: the run's own time (common/train/timing.py), in seconds since 1970; by default the wall clock's. A log never
        goes back: the line is at least as late as the one before it.

    Returns:
      The finished log; None if the log was removed.

    Raises UserError if the log cannot be written, or another process is still writing it.
    """
    path = pathlib.Path(path)
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.with_suffix(path.suffix + ".reserve").unlink(missing_ok=True)
            data = file.read()
            # Cut off an unfinished last line.
            file.truncate(data.rfind(b"\n") + 1)
            whole = data[: data.rfind(b"\n") + 1].decode()
            if not _has(whole, "run_start"):
                path.unlink()
                return None
            if not _has(whole, "run_stop"):
                file.seek(0, os.SEEK_END)
                file.write(_last_line(whole, reason, time.time() if at is None else at).encode() + b"\n")
    except BlockingIOError:
        raise UserError(f"{path}: another process writes it; its log is left as it is") from None
    except OSError as error:
        raise UserError(f"{path}: cannot end the log: {error.strerror}") from error
    final = path.with_suffix("")
    path.replace(final)
    return final


def _has(text: str, key: str) -> bool:
    """Whether the log has a line with this key, in the form `"key": "run_start"` or `:::MLL 1.0 run_start: {`."""
    return re.search(rf'"key": "{key}"|^:::MLL [\d.]+ {key}:', text, re.M) is not None


def _last_line(text: str, reason: str, at: float) -> str:
    from timetotrain.log_writer import Format  # Takes a second to import on a slow disk; few runs need it.

    old = text.startswith(":::MLL ")
    times = re.findall(r'"time_ms": (\d+)', text)
    if times:
        at = max(at, int(times[-1]) / 1000)
    namespace = "" if old else json.loads(text.splitlines()[0].partition(" ")[2])["namespace"]
    metadata = {"status": "aborted", "reason": reason}
    return Format("0.6.0" if old else "0.7.0", namespace).line("run_stop", None, metadata, "INTERVAL_END", at)
