"""Fills a folder with the generated language pair (common/text/pair.py), by the converter of a benchmark."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from common.data import record_counts, tiny_data
from common.text import pair
from common.text.conversion import Text


def generate(
    benchmark: str,
    data_dir: str | os.PathLike,
    tiny: pair.Pair,
    names: Sequence[str],
    convert: Callable[[Path, Text, Text], dict[str, int]],
) -> dict[str, int]:
    """Writes the pair into `data_dir`; does nothing if the same data is already there.

    Args:
      benchmark: its name.
      data_dir: the folder.
      tiny: settings of the pair and of its encoding, a dataclass.
      names: the files that the converter writes, besides its notes.
      convert: converts (folder, training text, evaluation text), and returns its counts.

    Raises:
      UserError: the folder holds other data, or cannot be written.
    """

    def write(folder: Path) -> dict[str, int]:
        with tempfile.TemporaryDirectory() as scratch:
            paths = pair.write(tiny, Path(scratch))
            return convert(folder, *(Text(paths[split][:1], paths[split][1:]) for split in ("train", "eval")))

    settings = dataclasses.asdict(tiny) | {"version": pair.VERSION}
    return tiny_data.make(benchmark, data_dir, settings, [*names, "convert.json", record_counts.NAME], write)
