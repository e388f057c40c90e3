"""Reads parallel text: two files in which line i of one translates line i of the other.

Only a line feed ends a line, because real corpora contain other line separators inside sentences.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from common.errors import UserError

Pair = tuple[str, str]


@dataclasses.dataclass
class Dropped:
    """Counts the training pairs that were left out, by reason."""

    empty: int = 0
    too_long: int = 0
    not_utf8: int = 0

    @property
    def total(self) -> int:
        return self.empty + self.too_long + self.not_utf8

    def __str__(self) -> str:
        return f"{self.empty} empty, {self.too_long} too long, {self.not_utf8} not UTF-8"


def read_pairs(
    source: str | os.PathLike, target: str | os.PathLike, dropped: Dropped | None = None
) -> Iterator[Pair]:
    """Yields the pairs of two text files (.gz too), without line ends.

    Args:
      source: file of source sentences.
      target: file of their translations.
      dropped: counts the pairs left out because a side is empty or not UTF-8; if None, such a pair is an error.

    Raises:
      UserError: the files have different numbers of lines, or a line is bad; the message names file and line.
    """
    paths = Path(source), Path(target)
    for number, row in enumerate(lines(paths), 1):
        texts = []
        for path, line in zip(paths, row):
            text = _decoded(line)
            if text is None and dropped is None:
                raise UserError(f"{path}: line {number} is not UTF-8; repair it{_or_drop(dropped)}")
            if text is not None and not text.strip() and dropped is None:
                raise UserError(
                    f"{path}: line {number} is empty; remove it from both files{_or_drop(dropped)}"
                )
            texts.append(text)
        if any(text is None for text in texts):
            dropped.not_utf8 += 1
        elif not all(text.strip() for text in texts):
            dropped.empty += 1
        else:
            yield texts[0], texts[1]


def _or_drop(dropped: Dropped | None) -> str:
    return " (training text can be cleaned with --drop-bad)" if dropped is None else ""


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None


def lines(paths: tuple[Path, Path]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the lines of two text files (.gz too), undecoded, without line ends.

    Raises:
      UserError: a file cannot be read, or one ends before the other; the message names file and line.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_open(path)) for path in paths]
        number = 0
        while True:
            try:
                row = [file.readline() for file in files]
            except (OSError, EOFError, zlib.error) as error:
                raise UserError(
                    f"{paths[0]} or {paths[1]}: line {number + 1}: {error}; get a sound copy"
                ) from error
            if not any(row):
                return
            if not all(row):
                short, long = paths if not row[0] else paths[::-1]
                raise UserError(
                    f"{short} ends after line {number}, {long} goes on: not translations of one another, line by line"
                )
            number += 1
            yield row[0].rstrip(b"\n").rstrip(b"\r"), row[1].rstrip(b"\n").rstrip(b"\r")


def _open(path: Path) -> IO[bytes]:
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; correct the path") from error
