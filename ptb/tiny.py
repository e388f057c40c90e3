"""Generates cpu-tiny's language in the Penn Treebank's file format.

A text is a sequence of passages, each with one topic. A topic determines which word follows which. All topics use the
same words, with an occasional random word. A model that sees only the last word must average over all topics. A model
that remembers a few words knows the topic, and a model that carries its state knows it from a step's first word.

    python -m ptb.tiny DATA_DIR
"""

import dataclasses
import functools
import os
import sys
from pathlib import Path

import numpy as np

from common.data import tiny_data

VERSION = 1  # Version of the language: raise it when the same settings give a different text.
FILES = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Settings of the language and lengths of its texts.

    Attributes:
      seed: seeds all draws.
      train_words, eval_words: words in the training text and in each other text, including <eos>.
      words: number of different words, excluding <eos>.
      topics: number of topics; each is a permutation that maps a word to the next word.
      surprise: fraction of words that are random instead.
      sentence, passage: mean length of a sentence in words, and of a passage in sentences.
    """

    seed: int = 13
    train_words: int = 40000
    eval_words: int = 8000
    words: int = 30
    topics: int = 4
    surprise: float = 0.15
    sentence: int = 12
    passage: int = 6


TINY = Tiny()


def generate_text(tiny: Tiny, split: str) -> str:
    """Generates the lines of a split's text; the split is "train", "valid" or "test"."""
    topics = [np.random.default_rng([tiny.seed, i]).permutation(tiny.words) for i in range(tiny.topics)]
    rng = np.random.default_rng([tiny.seed, 1000 + list(FILES).index(split)])
    count = tiny.train_words if split == "train" else tiny.eval_words
    topic, word, text = 0, 0, []
    # The first line has every word, so that the vocabulary matches the settings for any draw.
    lines = [" ".join(_name(i) for i in range(tiny.words))]
    for remaining in range(count - tiny.words - 1, 0, -1):
        # The text ends with <eos>, and a sentence has at least one word.
        if remaining == 1 or (remaining > 2 and text and rng.random() < 1 / tiny.sentence):
            lines.append(" ".join(text))
            text = []
            if rng.random() < 1 / tiny.passage:
                topic = rng.integers(tiny.topics)
        else:
            surprised = rng.random() < tiny.surprise
            word = rng.integers(tiny.words) if surprised else topics[topic][word]
            text.append(_name(word))
    return "".join(f" {line} \n" for line in lines)


def _name(word: int) -> str:
    return f"w{word:02d}"


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> None:
    """Writes the three files into `data_dir`; does nothing if the same text is already there.

    Raises UserError if the folder holds another text, or cannot be written.
    """

    def write(folder: Path) -> None:
        for split, name in FILES.items():
            (folder / name).write_text(generate_text(tiny, split), encoding="utf-8")

    settings = {**dataclasses.asdict(tiny), "version": VERSION}
    tiny_data.make("ptb", data_dir, settings, list(FILES.values()), write)


main = functools.partial(tiny_data.main, "ptb", generate, "text files")


if __name__ == "__main__":
    sys.exit(main())
