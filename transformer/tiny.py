"""The generated language pair of cpu-tiny (common/text/pair.py), in the layout of the real data.

python -m transformer.tiny DATA_DIR
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import generated
from common.errors import UserError
from common.text import pair
from common.text.conversion import Text
from common.text.pair import Grammar
from transformer import convert
from transformer.fields import Data

__all__ = ["TINY", "Grammar", "Tiny", "generate"]
_FILES = Data()


@dataclasses.dataclass(frozen=True)
class Tiny(pair.Pair):
    """The pair, and how it is encoded.

    Attributes:
      vocabulary_size: subwords, about.
      max_length, packed_length: tokens of a sentence and of a packed sequence.
      shards: training files.
    """

    vocabulary_size: int = 400
    max_length: int = 60
    packed_length: int = 128
    shards: int = 4


TINY = Tiny()


def generate(data_dir: str | os.PathLike, tiny: Tiny = TINY) -> dict[str, int]:
    """Writes the pair into `data_dir` through the converter; does nothing where the same lies already.

    Raises:
      UserError: the folder holds something else or another benchmark's data, or cannot be written.
    """
    folder = Path(data_dir)
    note = folder / "tiny.json"
    settings = dataclasses.asdict(tiny) | {"version": pair.VERSION}
    try:
        same = generated.noted(note, "transformer", settings)
        if same:
            return same["counts"]
        folder.mkdir(parents=True, exist_ok=True)
        present = [*folder.glob(_FILES.train_pattern), *folder.glob(_FILES.vocabulary)]
        if note.is_file() or not present:  # Else the converter refuses what lies there.
            # What an interrupted call leaves the next one may replace.
            note.write_text(generated.unfinished("transformer"))
            for path in present:
                path.unlink()
        counts = _convert(folder, tiny)
        note.write_text(generated.note("transformer", settings, counts=counts))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name another DATA_DIR") from error
    return counts


def _convert(folder: Path, tiny: Tiny) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as scratch:
        paths = pair.write(tiny, Path(scratch))
        texts = [Text(paths[split][:1], paths[split][1:]) for split in ("train", "eval")]
        settings = convert.Settings(tiny.max_length, tiny.packed_length, tiny.shards)
        return convert.convert(folder, *texts, tiny.vocabulary_size, settings)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m transformer.tiny DATA_DIR`."""
    return generated.main("transformer", generate, "records", argv)


if __name__ == "__main__":
    sys.exit(main())
