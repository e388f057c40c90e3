"""Reads and numbers the words of texts like Mikolov's Penn Treebank: words between blanks, one sentence per line."""

import collections
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.data import text_files
from common.errors import UserError
from ptb.config import Config

EOS = "<eos>"
FIX = "fill the folder with ptb/init_datasets.sh"


def files(config: Config, folder: str | os.PathLike) -> tuple[Path, Path]:
    """Returns the paths of the texts to train and to evaluate on."""
    data = config.data
    held_out = data.test_file if data.eval_split == "test" else data.valid_file
    return Path(folder) / data.train_file, Path(folder) / held_out


def check_there(path: str | os.PathLike) -> None:
    """Raises UserError if the file does not exist."""
    if not Path(path).is_file():
        raise UserError(f"{path} is not there; {FIX}")


def read(path: str | os.PathLike) -> list[str]:
    """Reads all words of a file, with EOS at the end of every line.

    Raises UserError if the file cannot be read, is not text, or has no word.
    """
    check_there(path)
    lines = text_files.whole(path).split("\n")
    # Text after the last newline counts as a line only if it has a word.
    lines = lines[:-1] if not lines[-1].strip() else lines
    words = [word for line in lines for word in (*line.split(), EOS)]
    if not words:
        raise UserError(f"{path}: no word in it; {FIX}")
    return words


def vocabulary(words: Sequence[str]) -> dict[str, int]:
    """Numbers words by descending frequency, ties alphabetically (as in ptb_word_lm.py): {word: number}."""
    counts = collections.Counter(words)
    return {word: i for i, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))}


def numbers(words: Sequence[str], word_numbers: dict[str, int], path: str | os.PathLike) -> np.ndarray:
    """Translates words to their numbers, int32 [N].

    Raises UserError if a word is not in the vocabulary `word_numbers`; the message names `path` and the line.
    """
    try:
        return np.array([word_numbers[word] for word in words], np.int32)
    except KeyError as error:
        line = 1 + words[: words.index(error.args[0])].count(EOS)
        raise UserError(
            f"{path}: line {line}: word {error.args[0]!r} is not in the training text; mark it <unk> as there"
        ) from None
