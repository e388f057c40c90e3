"""Reads parallel text: two files in which line i of one translates line i of the other.

Only a line feed ends a line, because real corpora contain other line separators inside sentences.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from common.data import text_files
from common.data.text_files import Line
from common.errors import UserError

Pair = tuple[str, str]
_DROP = " (training text can be cleaned with --drop_bad)"


@dataclasses.dataclass
class Dropped:
    """Counts the training pairs that were left out, by reason."""

    empty: int = 0
    too_long: int = 0
    not_utf8: int = 0


def read_pairs(
    source: str | os.PathLike, target: str | os.PathLike, dropped: Dropped | None = None
) -> Iterator[Pair]:
    """Yields the pairs of two text files (.gz too), without line ends.

    Args:
      source: file of source sentences.
      target: file of their translations.
      dropped: counts the pairs left out because a side is empty or not UTF-8; if None, such a pair is an error.

    Raises UserError if the files have different numbers of lines, or a line is bad; the message names file and line.
    """
    paths = Path(source), Path(target)
    for row in lines(paths):
        texts = []
        for path, line in zip(paths, row):
            if line.text is None and dropped is None:
                raise UserError(f"{path}: line {line.number} is {line.fault}; repair it{_DROP}")
            if line.text is not None and not line.text.strip() and dropped is None:
                fix = f"remove it from both files{_DROP}"
                raise UserError(f"{path}: line {line.number} is empty; {fix}")
            texts.append(line.text)
        if any(text is None for text in texts):
            dropped.not_utf8 += 1
        elif not all(text.strip() for text in texts):
            dropped.empty += 1
        else:
            yield texts[0], texts[1]


def lines(paths: tuple[Path, Path]) -> Iterator[tuple[Line, Line]]:
    """Yields the lines of two text files (.gz too).

    Raises UserError if a file cannot be read, or one ends before the other; the message names file and line.
    """
    both = itertools.zip_longest(*map(text_files.lines, paths))
    for number, (source, target) in enumerate(both):
        if source is None or target is None:
            rest = itertools.chain([source or target], (a or b for a, b in both))
            if not any(line.text is None or line.text.strip() for line in rest):
                return  # Editors leave empty lines at the end of a file.
            short, long = paths if source is None else paths[::-1]
            raise UserError(
                f"{short} ends after line {number}, {long} goes on: not translations of one another, line by line"
            )
        yield source, target


def short(pairs: Sequence[Pair], length: Callable[[Pair], int], longest: int, dropped: Dropped) -> list[Pair]:
    """Returns the pairs to evaluate on whose `length` in tokens is at most `longest`; counts the others in `dropped`.

    Raises UserError if no pair is left.
    """
    shorter = [pair for pair in pairs if length(pair) <= longest]
    dropped.too_long += len(pairs) - len(shorter)
    if not shorter:
        fix = "give a larger --max_length"
        raise UserError(f"every sentence to evaluate on has more than {longest} tokens; {fix}")
    return shorter
