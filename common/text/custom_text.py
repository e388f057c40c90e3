"""Reads a user's parallel text for Transformer and GNMT: two files, or one file of sentence, tab, translation."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common.data import folder_conversion
from common.data.folder_conversion import Options
from common.errors import UserError
from common.text import parallel
from common.text.conversion import Text

MOST_HELD = 3000  # Maximum number of held-out pairs; WMT's newstest2014 has 3,003.
SHARD_BYTES = 16 << 20  # Of text.
_BAD_LISTED = 1000  # Maximum number of lines about bad pairs in the description; the count includes all.


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Parallel text that is ready to convert.

    Attributes:
      train, held: files with one sentence per line.
      sizes: number of pairs in each.
      words: maximum number of space-separated words in a side of a training pair.
      common: 99th percentile of these numbers of words.
      bytes: size of the training text.
      broken: a line for each pair that was left out.
    """

    train: Text
    held: Text
    sizes: tuple[int, int]
    words: int
    common: int
    bytes: int
    broken: list[str]


@contextlib.contextmanager
def prepared(sources: Sequence[Path], options: Options) -> Iterator[Pairs]:
    """Yields the sound pairs in temporary files, split by seed unless `options.eval_sources` is given.

    Copies of a pair stay on one side of the split, so that no evaluation pair is also a training pair.

    Raises:
      UserError: a file cannot be read, the sides do not match, or too many pairs are broken.
    """
    broken: list[str] = []
    pairs = list(_read(sources, broken))
    if options.eval_sources:
        held = list(_read(options.eval_sources, broken))
    else:
        folder_conversion.check_broken(broken, len(pairs), options)
        pairs, held = _divided(pairs, options)
    folder_conversion.check_broken(broken, min(len(pairs), len(held)), options)
    words = np.array([len(text.split()) for pair in pairs for text in pair])
    with tempfile.TemporaryDirectory(prefix="timetotrain-text-") as scratch:
        texts = [_written(Path(scratch), name, part) for name, part in (("train", pairs), ("eval", held))]
        yield Pairs(
            *texts,
            (len(pairs), len(held)),
            int(words.max()),
            int(np.quantile(words, 0.99)),
            sum(len(side.encode()) for pair in pairs for side in pair),
            broken,
        )


def _read(paths: Sequence[Path], broken: list[str]) -> Iterator[parallel.Pair]:
    """Yields the pairs from two files or one file with tabs; appends a line to `broken` for each bad pair."""
    if len(paths) > 2:
        raise UserError(f"{paths[2]}: one file too many; give two text files, or one with tabs")
    for path in paths:
        if path.is_dir():
            raise UserError(f"{path}: a folder; give two text files, or one of sentence, tab, translation")
    rows = _tabbed(paths[0]) if len(paths) == 1 else parallel.lines((paths[0], paths[1]))
    for number, sides in enumerate(rows, 1):
        why, texts = _fault(sides)
        if why:
            broken.append(f"{paths[0]}: line {number}: {why}")
        else:
            yield texts[0], texts[1]


def _tabbed(path: Path) -> Iterator[list[bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for line in file:
                yield line.rstrip(b"\n").rstrip(b"\r").split(b"\t")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot read ({error}); get a sound copy") from error


def _fault(sides: Sequence[bytes]) -> tuple[str, list[str]]:
    """Returns (fault, []) or ("", [source, target])."""
    if len(sides) < 2:
        return "no tab between a sentence and its translation", []
    try:
        texts = [side.decode("utf-8").strip("\ufeff") for side in sides[:2]]
    except UnicodeDecodeError:
        return "not UTF-8", []
    if not all(text.strip() for text in texts):
        return "a side is empty", []
    return "", texts


def _divided(pairs: list[parallel.Pair], options: Options) -> tuple[list, list]:
    distinct = sorted(set(pairs))
    part = min(options.eval_part, MOST_HELD / len(distinct))
    out_of = folder_conversion.divide(["all"] * len(distinct), part, options.seed)
    held = {pair for pair, is_held in zip(distinct, out_of) if is_held}
    train = [pair for pair in pairs if pair not in held]
    order = np.random.default_rng([options.seed, 1]).permutation(len(held))
    listed = sorted(held)
    return train, [listed[i] for i in order]


def _written(folder: Path, name: str, pairs: Sequence[parallel.Pair]) -> Text:
    paths = [folder / f"{name}.{side}" for side in ("source", "target")]
    for column, path in enumerate(paths):
        path.write_text("".join(f"{pair[column]}\n" for pair in pairs), encoding="utf-8", newline="\n")
    return Text([paths[0]], [paths[1]])


def shards(pairs: Pairs) -> int:
    """Returns the number of files for the training text."""
    return min(max(pairs.bytes // SHARD_BYTES, 1), 100)


def clear(out: Path) -> None:
    """Removes complete files that an interrupted conversion left in `out`, when only the description is missing."""
    for path in out.glob("train-*-of-*"):
        path.unlink()


def facts(pairs: Pairs, counts: dict[str, int]) -> list[tuple[str, str]]:
    """Returns the sizes for the page."""
    return [
        ("longest training sentence", f"{pairs.words} words"),
        ("too long, left out", str(counts["too_long"])),
        ("vocabulary", f"{counts['vocabulary']} tokens"),
    ]


def listed(pairs: Pairs, counts: dict[str, int]) -> list[str]:
    """Returns the lines about left-out pairs, for the description."""
    lines = pairs.broken[:_BAD_LISTED]
    if len(pairs.broken) > _BAD_LISTED:
        lines.append(f"{len(pairs.broken) - _BAD_LISTED} more bad lines")
    if counts["too_long"]:
        lines.append(f"{counts['too_long']} pairs are too long")
    return lines
