"""Generates cpu-tiny's language pair (common/text/pair.py) in the layout of the real data.

python -m transformer.tiny DATA_DIR
"""

import dataclasses
import functools
import os
import sys

from common.data import tiny_data
from common.text import pair
from transformer import convert
from transformer.config import Data

_FILES = Data()


@dataclasses.dataclass(frozen=True)
class Tiny(pair.Pair):
    """Settings of the language pair and its encoding.

    Attributes:
      vocabulary_size: approximate number of subwords.
      max_length, packed_length: tokens in a sentence and in a packed sequence.
      shards: number of training files.
    """

    vocabulary_size: int = 400
    max_length: int = 60
    packed_length: int = 128
    shards: int = 4


TINY = Tiny()


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> dict[str, int]:
    """Writes the pair into `data_dir` through the converter; see common/text/pair.py."""
    names = [_FILES.train_pattern, _FILES.vocabulary, _FILES.eval_source, _FILES.eval_reference]
    settings = convert.Settings(tiny.max_length, tiny.packed_length, tiny.shards)
    return pair.generate(
        "transformer",
        data_dir,
        tiny,
        names,
        lambda folder, *texts: convert.convert(folder, *texts, tiny.vocabulary_size, settings),
    )


main = functools.partial(tiny_data.main, "transformer", generate, "records")


if __name__ == "__main__":
    sys.exit(main())
