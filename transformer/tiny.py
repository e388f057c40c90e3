"""Generates cpu-tiny's language pair (common/text/pair.py) in the layout of the real data.

python -m transformer.tiny DATA_DIR
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.data import record_counts, tiny_data
from common.text import pair
from common.text.conversion import Text
from common.text.pair import Grammar
from transformer import convert
from transformer.config import Data

__all__ = ["TINY", "Grammar", "Tiny", "generate"]
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
    """Writes the pair into `data_dir` through the converter; does nothing if the same data is already there.

    Raises:
      UserError: the folder holds other data, or cannot be written.
    """
    settings = dataclasses.asdict(tiny) | {"version": pair.VERSION}
    names = [_FILES.train_pattern, _FILES.vocabulary, _FILES.eval_source, _FILES.eval_reference]
    return tiny_data.make(
        "transformer",
        data_dir,
        settings,
        [*names, "convert.json", record_counts.NAME],
        lambda folder: _convert(folder, tiny),
    )


def _convert(folder: Path, tiny: Tiny) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as scratch:
        paths = pair.write(tiny, Path(scratch))
        texts = [Text(paths[split][:1], paths[split][1:]) for split in ("train", "eval")]
        settings = convert.Settings(tiny.max_length, tiny.packed_length, tiny.shards)
        return convert.convert(folder, *texts, tiny.vocabulary_size, settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m transformer.tiny DATA_DIR`; returns the exit code."""
    return tiny_data.main("transformer", generate, "records", argv)


if __name__ == "__main__":
    sys.exit(main())
