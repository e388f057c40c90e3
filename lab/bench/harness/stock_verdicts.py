"""Keeps the stock checker's verdicts on logs in a file, because the checker takes most of a comparison's time."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple


class Stock(NamedTuple):
    """The stock checker's verdict on a log (pass, fail or crash), and its first message or the exception."""

    verdict: str
    message: str


class Kept:
    """Verdicts in a file of JSON lines; the key is the log, its size, and the version of mlperf-logging.

    Args:
      path: the file; None: keep nothing.
      folder: names of logs are relative to this folder.
    """

    def __init__(self, path: Path | None, folder: Path):
        self._path, self._folder = path, folder
        self._known: dict[tuple, Stock] = {}
        if path is not None and path.is_file():
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self._known = {tuple(key): Stock(*verdict) for key, verdict in rows}

    def _key(self, path: str) -> tuple[str, int, str]:
        return os.path.relpath(path, self._folder), os.path.getsize(path), version("mlperf-logging")

    def get(self, path: str) -> Stock | None:
        """Returns the file's verdict on a log."""
        return self._known.get(self._key(path))

    def add(self, path: str, verdict: Stock) -> None:
        """Appends a verdict that is not in the file."""
        key = self._key(path)
        if self._path is not None and key not in self._known:
            self._known[key] = verdict
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps([key, verdict]) + "\n")
