"""Generates cpu-tiny's language as the benchmark's files: bytes in Megatron's indexed format.

A text is documents of letters. A letter follows from the one two places before it, by a permutation, with an occasional
random letter. So a model must look exactly one place back, which needs positions, and cannot know the random letters.

    python -m llama31_8b.tiny DATA_DIR
"""

import dataclasses
import functools
import os
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.data import tiny_data
from llama31_8b import indexed

VERSION = 1  # Version of the language: raise it when the same settings give a different text.
LETTERS = string.ascii_lowercase
BYTES = 256  # Different tokens of a text of bytes.


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Settings of the language and lengths of its texts.

    Attributes:
      seed: seeds all draws.
      train_tokens, eval_tokens: letters in the training text and in the evaluation's.
      document: letters in a document.
      surprise: fraction of letters that are random instead.
    """

    seed: int = 17
    train_tokens: int = 128_001
    eval_tokens: int = 16_385
    document: int = 400
    surprise: float = 0.05


TINY = Tiny()
SPLITS = ("train", "eval")


def documents(tiny: Tiny, split: str) -> Iterator[np.ndarray]:
    """Yields the documents of a split as bytes, uint16 [letters]; the split is "train" or "eval"."""
    follows = np.random.default_rng(tiny.seed).permutation(len(LETTERS))
    rng = np.random.default_rng([tiny.seed, SPLITS.index(split)])
    remaining = tiny.train_tokens if split == "train" else tiny.eval_tokens
    while remaining:
        count = min(tiny.document, remaining)
        letters = rng.integers(len(LETTERS), size=count)
        regular = rng.random(count) >= tiny.surprise
        for i in range(2, count):
            if regular[i]:
                letters[i] = follows[letters[i - 2]]
        yield (letters + ord(LETTERS[0])).astype(indexed.dtype_for(BYTES))
        remaining -= count


def least_loss(tiny: Tiny = TINY) -> float:
    """Returns the mean cross-entropy that no model falls below, in nats per token.

    A document's first two letters are random; the others follow with probability 1 - surprise + surprise / letters.
    """
    count = len(LETTERS)
    other = tiny.surprise / count
    likely = 1 - (count - 1) * other
    entropy = -likely * np.log(likely) - (count - 1) * other * np.log(other)
    return float((2 * np.log(count) + (tiny.document - 2) * entropy) / tiny.document)


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> None:
    """Writes the two data sets into `data_dir`; does nothing if the same text is already there.

    Raises UserError if the folder holds another text, or cannot be written.
    """

    def write(folder: Path) -> None:
        for split in SPLITS:
            indexed.write(folder / split, documents(tiny, split), indexed.dtype_for(BYTES))

    settings = {**dataclasses.asdict(tiny), "version": VERSION}
    files = [f"{split}.{suffix}" for split in SPLITS for suffix in ("idx", "bin")]
    tiny_data.make("llama31_8b", data_dir, settings, files, write)


main = functools.partial(tiny_data.main, "llama31_8b", generate, "text")


if __name__ == "__main__":
    sys.exit(main())
