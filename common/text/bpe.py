"""Encodes text in byte pairs as in GNMT's data: Moses tokens (sacremoses), joint merges (subword-nmt), one vocabulary.

A vocabulary file has one token per line; the first three are <unk>, <s> and </s>. The format comes from
tensorflow/nmt's data script, the basis of the MLPerf reference's script. A token that ends in "@@" is not the last one
of its word. There is no padding token; sequence lengths show the padding.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.text.subwords import check_entries, lines_of

UNK, BOS, EOS = 0, 1, 2
SPECIAL = ("<unk>", "<s>", "</s>")
_JOINED = "@@ "


def _libraries() -> tuple[Any, Any, Any]:
    """Imports subword_nmt's apply_bpe and learn_bpe, and sacremoses.

    Raises UserError if they are not installed.
    """
    try:
        import sacremoses
        from subword_nmt import apply_bpe, learn_bpe
    except ImportError as error:
        raise UserError(f"the byte-pair encoding does not load ({error}); run `make text`") from None
    return apply_bpe, learn_bpe, sacremoses


def check_installed() -> None:
    """Imports the libraries; raises UserError if they are not installed."""
    _libraries()


class Moses:
    """Converts text to Moses tokens and back, by the rules of one language."""

    def __init__(self, language: str):
        *_, sacremoses = _libraries()
        self._tokenizer = sacremoses.MosesTokenizer(language)
        self._detokenizer = sacremoses.MosesDetokenizer(language)

    def tokens(self, text: str) -> list[str]:
        return self._tokenizer.tokenize(text)

    def text(self, tokens: Sequence[str]) -> str:
        return self._detokenizer.detokenize(list(tokens))


moses = functools.cache(Moses)  # By language.


class Bpe:
    """Converts text to byte-pair tokens and back, with merges and a vocabulary."""

    def __init__(self, codes: str | os.PathLike, vocabulary: str | os.PathLike):
        """
        Raises UserError if a file cannot be read or has the wrong form; the message names file and line.
        """
        apply_bpe, *_ = _libraries()
        self.path = Path(vocabulary)
        self._merges = apply_bpe.BPE(io.StringIO("\n".join(_checked_codes(Path(codes))) + "\n"))
        self._words = read_vocabulary(self.path)
        self._numbers = {word: number for number, word in enumerate(self._words)}

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, text: str, language: str) -> list[int]:
        """Returns the tokens of a sentence, without <s> and </s>."""
        return self.encode_tokens(moses(language).tokens(text))

    def encode_tokens(self, tokens: Sequence[str]) -> list[int]:
        """Like `encode`, but takes the tokens from `Moses.tokens`."""
        return [self._numbers.get(part, UNK) for part in self._merges.segment_tokens(list(tokens))]

    def decode(self, numbers: Iterable[int], language: str) -> str:
        """Returns the text before the first </s>."""
        words = []
        for number in numbers:
            if number == EOS:
                break
            words.append(self._words[int(number)])
        joined = (" ".join(words) + " ").replace(_JOINED, "")
        return moses(language).text(joined.split())


def learn(counts: Mapping[str, int], merges: int) -> list[str]:
    """Learns merges; returns the lines of a merges file.

    Args:
      counts: {Moses token: number of occurrences} in both languages together.
      merges: number of merges; learning stops early if no remaining pair occurs twice.

    Raises UserError if there is too little text.
    """
    _, learn_bpe, _ = _libraries()
    if not any(len(word) > 1 for word in counts):
        raise UserError("too little text for a byte-pair encoding; give --codes and --vocabulary instead")
    words = io.StringIO("".join(f"{word} {count}\n" for word, count in counts.items()))
    out = io.StringIO()
    # Show subword_nmt's progress only in a terminal.
    with contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe(words, out, merges, is_dict=True)
    return out.getvalue().splitlines()


def vocabulary_of(counts: Mapping[str, int], codes: Sequence[str]) -> list[str]:
    """Returns the special tokens, then the tokens that the merges make from the words, most frequent first.

    Args:
      counts: {word: number of occurrences}.
      codes: lines of a merges file.
    """
    apply_bpe, *_ = _libraries()
    merges = apply_bpe.BPE(io.StringIO("\n".join(codes) + "\n"))
    frequency: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for part in merges.segment_tokens([word]):
            frequency[part] += count
    # Ties are in alphabetical order, so that the order of the text does not matter.
    ordered = sorted(frequency, key=lambda part: (-frequency[part], part))
    return [*SPECIAL, *(part for part in ordered if part not in SPECIAL)]


def read_vocabulary(path: Path) -> list[str]:
    """Reads a vocabulary; raises UserError, with file and line, if the file is not a vocabulary."""
    lines = lines_of(path)
    if tuple(lines[: len(SPECIAL)]) != SPECIAL:
        raise UserError(f"{path}: its first lines must be {', '.join(SPECIAL)}; is it a vocabulary?")
    check_entries(path, lines, lambda line: line.split() == [line], "token")
    return lines


def _checked_codes(path: Path) -> list[str]:
    lines = lines_of(path)
    for number, line in enumerate(lines, 1):
        if len(line.split(" ")) != 2 and not (number == 1 and line.startswith("#version:")):
            raise UserError(f"{path}: line {number} is not a merge: {line[:40]!r}; is it a file of merges?")
    return lines
