"""Encodes text with tf-models-official's copy of tensor2tensor's subword tokenizer, and checks its vocabulary.

A vocabulary file has one quoted subword per line; entry 0 is padding, entry 1 is the end of a sentence. Any text can be
encoded, because characters missing from the vocabulary are written as code points.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import UserError
from common.files import whole
from common.text import official

PAD, EOS = 0, 1
# Letters of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana, Han (Unicode's blocks).
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
# Learning takes time and memory by the square of a word's length, so it sees words of at most _LONGEST letters, and
# pieces of _PIECE letters of longer words and of scripts without spaces. Most Chinese words have up to four characters.
_LONGEST, _PIECE = 40, 4
_LONG_WORD = re.compile(rf"[^\W_]{{{_LONGEST + 1},}}")
_LONG_SIGNS = re.compile(rf"([\W_]{{{_LONGEST}}})[\W_]+")
_LONG_UNSPACED = re.compile(f"(?:{UNSPACED.pattern}){{{_PIECE + 1},}}")
RESERVED = ("<pad>", "<EOS>")


def _tokenizer() -> ModuleType:
    """Imports tf-models-official's module.

    Raises UserError if tf-models-official is not installed.
    """
    try:
        return official.load("legacy.transformer.utils.tokenizer")
    except ImportError as error:
        raise UserError(f"the subword tokenizer does not load ({error}); run `make text`") from None


def check_installed() -> None:
    """Imports the library; raises UserError if it is not installed."""
    _tokenizer()


class Subwords:
    """Converts text to subword tokens and back, with a vocabulary file."""

    def __init__(self, path: str | os.PathLike):
        """
        Raises UserError if the file cannot be read or is not a vocabulary; the message names file and line.
        """
        tokenizer = _tokenizer()
        self.path = Path(path)
        self._tokenizer = tokenizer.Subtokenizer(os.fspath(path), reserved_tokens=_reserved(self.path))

    def __len__(self) -> int:
        return len(self._tokenizer.subtoken_list)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a sentence, EOS last."""
        return [*self._tokenizer.encode(text), EOS]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text before the first EOS or padding."""
        before_end = []
        for token in tokens:
            if token in (PAD, EOS):
                break
            before_end.append(int(token))
        return self._tokenizer.decode(before_end)


def check_size(vocabulary: Any, expected: int) -> None:
    """Raises UserError if the size of a vocabulary (`Subwords`, or a Bpe) differs from the network's."""
    if len(vocabulary) != expected:
        raise UserError(
            f"{vocabulary.path} has {len(vocabulary)} tokens, config.vocabulary_size is {expected}: "
            "it belongs to another network; set one or the other"
        )


def learnable(text: str) -> str:
    """Returns a sentence in which no word is too long to learn subwords from."""
    return _LONG_SIGNS.sub(r"\1", _LONG_WORD.sub(_pieces, _LONG_UNSPACED.sub(_pieces, text)))


def _pieces(word: re.Match) -> str:
    text = word.group()
    return " ".join(text[i : i + _PIECE] for i in range(0, len(text), _PIECE))


def build(path: str | os.PathLike, texts: Sequence[str | os.PathLike], size: int) -> Subwords:
    """Makes a vocabulary of about `size` subwords from UTF-8 text files, and writes it to `path` atomically.

    Raises UserError if `path` exists already or cannot be written, or there is too little text.
    """
    import tensorflow as tf  # Imported only when needed, like the tokenizer.

    path = Path(path)
    if path.exists():
        raise UserError(f"{path}: exists; remove it, or use it as the vocabulary")
    try:
        with whole(path) as partial:
            vocabulary = _search(partial, [os.fspath(text) for text in texts], size)
            if vocabulary is None:
                raise UserError(f"{texts[0]}: too little text for a vocabulary; give a vocabulary instead")
            partial.write_text(vocabulary, encoding="utf-8", newline="\n")
    except (OSError, tf.errors.OpError) as error:  # The tokenizer reads and writes through TensorFlow.
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise UserError(f"cannot write {path}: {reason}; free some space or name another folder") from error
    return Subwords(path)


def _search(scratch: Path, texts: Sequence[str], size: int) -> str | None:
    """Returns a vocabulary within 1 % of `size` (T2T: 327 of 32,768); bisects the minimum count of a subword.

    tf-models-official's own search fails on small texts, because no subword is as frequent as its first guess requires.
    """
    from absl import logging

    tokenizer = _tokenizer()
    low, high, best = 1, 1000, None
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        while low <= high:
            count = (low + high) // 2
            scratch.unlink(missing_ok=True)
            try:
                tokens = tokenizer.Subtokenizer.init_from_files(
                    os.fspath(scratch), texts, size, 1, min_count=count, reserved_tokens=list(RESERVED)
                )
            except ValueError:  # Not even one character is that frequent.
                high = count - 1
                continue
            entries = len(tokens.subtoken_list)
            if best is None or abs(entries - size) < best[0]:
                best = abs(entries - size), scratch.read_text(encoding="utf-8")
            if best[0] <= size // 100:
                break
            low, high = (count + 1, high) if entries > size else (low, count - 1)
    finally:
        logging.set_verbosity(before)
    return best[1] if best else None


def _reserved(path: Path) -> list[str]:
    """Checks the file; returns its first two entries as written; padding is "<pad>", or "<pad>_" in MLPerf's file."""
    lines = lines_of(path)
    check_entries(
        path, lines, lambda line: len(line) > 2 and line[0] == line[-1] and line[0] in "'\"", "quoted subword"
    )
    first = [line[1:-1] for line in lines[:2]]
    if [entry.rstrip("_") for entry in first] != list(RESERVED):
        raise UserError(f"{path}: line 1 and 2 must be '<pad>' and '<EOS>'; is it a vocabulary?")
    return first


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a vocabulary's file.

    Raises UserError if the file cannot be read, or is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; get a good copy") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; init_datasets.sh makes it") from error
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def check_entries(path: Path, lines: Sequence[str], fits: Callable[[str], bool], entry: str) -> None:
    """Raises UserError, with file and line, if a line does not fit as an `entry` of a vocabulary, or repeats one."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not fits(line):
            raise UserError(f"{path}: line {number} is no {entry}: {line[:40]!r}; is it a vocabulary?")
        if line in numbers:
            raise UserError(
                f"{path}: line {number} repeats line {numbers[line]}, {line[:40]}; get a good copy"
            )
        numbers[line] = number
