"""Generates cpu-tiny's language pair (common/text/pair.py) in the layout of the real data.

python -m gnmt.tiny DATA_DIR
"""

import dataclasses
import functools
import os
import sys

from common.data import tiny_data
from common.text import pair
from gnmt import convert
from gnmt.config import Data

_FILES = Data()


@dataclasses.dataclass(frozen=True)
class Tiny(pair.Pair):
    """Settings of the language pair and its encoding.

    Attributes:
      merges: number of merges in the byte-pair encoding.
      max_length: maximum tokens per side, including BOS and EOS.
      shards: number of training files.
    """

    merges: int = 1000
    max_length: int = 36
    shards: int = 4


TINY = Tiny()


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> dict[str, int]:
    """Writes the pair into `data_dir` through the converter; see common/text/pair.py."""
    names = [_FILES.train_pattern, _FILES.codes, _FILES.vocabulary, _FILES.eval_source, _FILES.eval_reference]
    # English rules fit both invented languages, because their only punctuation is comma and full stop.
    settings = convert.Settings(
        merges=tiny.merges, max_length=tiny.max_length, shards=tiny.shards, languages=("en", "en")
    )
    return pair.generate(
        "gnmt", data_dir, tiny, names, lambda folder, *texts: convert.convert(folder, *texts, settings)
    )


main = functools.partial(tiny_data.main, "gnmt", generate, "records")


if __name__ == "__main__":
    sys.exit(main())
