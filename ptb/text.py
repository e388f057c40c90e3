"""Words and their numbers: a text of words between blanks, a sentence a line, as Mikolov's Penn Treebank files are."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.errors import UserError

EOS = "<eos>"
FIX = "fill the folder with ptb/init_datasets.sh"


def read(path: str | os.PathLike) -> list[str]:
    """All words of a file, with EOS for every end of a line.

    Raises:
      UserError: it cannot be read, is no UTF-8 text, or has no word.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path} is not there; {FIX}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is no UTF-8 text; {FIX}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read it: {error.strerror}; {FIX}") from error
    # What follows the last newline is a line only if there is something in it.
    lines = lines[:-1] if not lines[-1].strip() else lines
    words = [word for line in lines for word in (*line.split(), EOS)]
    if not words:
        raise UserError(f"{path}: no word in it; {FIX}")
    return words


def vocabulary(words: Sequence[str]) -> dict[str, int]:
    """{word: number} from the most frequent on, equally frequent ones in alphabetical order (ptb_word_lm.py)."""
    counts = collections.Counter(words)
    return {word: i for i, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))}


def numbers(words: Sequence[str], known: dict[str, int], path: str | os.PathLike) -> np.ndarray:
    """int32 [N].

    Raises:
      UserError: a word that is not in the vocabulary; `path` and line are named.
    """
    try:
        return np.array([known[word] for word in words], np.int32)
    except KeyError as error:
        line = 1 + words[: words.index(error.args[0])].count(EOS)
        raise UserError(
            f"{path}: line {line}: word {error.args[0]!r} is not in the training text; mark it <unk> as there"
        ) from None
