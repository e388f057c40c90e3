"""Shared parts of parallel-text converters: read pairs, convert them in several processes, deal records to files."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import tensorflow as tf
import tqdm

from common.data import record_counts, tfrecords
from common.data.conversion import deaths_explained
from common.errors import UserError
from common.files import whole
from common.text import parallel

Encoded = tuple[list[int], list[int]]  # The tokens of source and target.
CHUNK = 5000  # Number of pairs that a worker converts at once.


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Parallel text in memory, whose pairs are all sound."""

    rows: Sequence[parallel.Pair]

    def pairs(self, dropped: parallel.Dropped | None = None) -> Iterator[parallel.Pair]:
        yield from self.rows


@dataclasses.dataclass(frozen=True)
class Files:
    """Parallel text: source files, and files of their translations in the same order."""

    sources: Sequence[Path]
    targets: Sequence[Path]

    def pairs(self, dropped: parallel.Dropped | None = None) -> Iterator[parallel.Pair]:
        for source, target in zip(self.sources, self.targets, strict=True):
            yield from parallel.read_pairs(source, target, dropped)


Text = Files | Sentences


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name the files of both texts."""
    for name in ("--train_source", "--train_target", "--eval_source", "--eval_target"):
        parser.add_argument(name, type=Path, nargs="+", required=True, metavar="FILE")


def add_work_arguments(parser: argparse.ArgumentParser, shards: int) -> None:
    """Adds the flags for cleaning, shards and processes; `shards` is their default number."""
    parser.add_argument("--shards", type=int, default=shards, metavar="N")
    bad = "leave out, and count, empty and undecodable pairs"
    parser.add_argument("--drop_bad", action="store_true", help=bad)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N")


def prepare(folder: Path, pattern: str) -> None:
    """Makes the folder; raises UserError if it cannot be made, or holds files of `pattern`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name another DATA_DIR") from error
    present = next((p.name for p in sorted(folder.glob(pattern))), None)
    if present:
        raise UserError(
            f"{folder} already holds files such as {present}; delete those files or name another DATA_DIR"
        )


def texts(arguments: argparse.Namespace) -> tuple[Files, Files]:
    """Returns the training text and the evaluation text.

    Raises UserError if the two sides of a text have different numbers of files.
    """
    both = []
    for kind in ("train", "eval"):
        sides = [getattr(arguments, f"{kind}_{side}") for side in ("source", "target")]
        if len(sides[0]) != len(sides[1]):
            raise UserError(f"--{kind}_source names {len(sides[0])} files, --{kind}_target {len(sides[1])}")
        both.append(Files(*sides))
    return both[0], both[1]


@contextlib.contextmanager
def pool(workers: int) -> Iterator[Callable[[Callable, Iterable], Iterator]]:
    """Yields a `map` that runs in `workers` processes, keeps the order and reads only slightly ahead."""
    if workers < 2:
        yield map
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork.
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as executor:

        def in_order(function: Callable, items: Iterable) -> Iterator:
            items = iter(items)
            pending = collections.deque(
                executor.submit(function, x) for x in itertools.islice(items, 4 * workers)
            )
            while pending:
                with deaths_explained():
                    result = pending.popleft().result()
                yield result
                pending.extend(executor.submit(function, x) for x in itertools.islice(items, 1))

        yield in_order


def convert(pool_map: Callable, work: Callable[[list], list], pairs: Iterable, title: str) -> Iterator:
    """Yields what `work` makes of the pairs, CHUNK at a time, by the map of a `pool`; shows progress in a terminal."""
    pairs = iter(pairs)
    chunks = iter(lambda: list(itertools.islice(pairs, CHUNK)), [])
    with tqdm.tqdm(unit=" pairs", desc=title, disable=not sys.stderr.isatty()) as bar:
        for chunk in pool_map(work, chunks):
            bar.update(len(chunk))
            yield from chunk


def within(
    pairs: Iterable[Encoded], length: Callable[[Encoded], int], longest: int, dropped: parallel.Dropped
) -> Iterator[Encoded]:
    """Yields the encoded pairs whose `length` is at most `longest`; counts the others in `dropped`."""
    for pair in pairs:
        if length(pair) <= longest:
            yield pair
        else:
            dropped.too_long += 1


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UserError in place of an error of the file system."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: {reason}; free some space or name another DATA_DIR") from error


def write_text(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all; raises UserError if it cannot be written."""
    with writing(path), whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """As `write_text`."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def deal(folder: Path, rows: Iterable[Mapping[str, Sequence[int]]], shards: int, unit: str) -> int:
    """Deals rows of features in turns to `shards` TFRecord files train-*, and notes their counts.

    The files get their final names when all are complete.

    Returns:
      The number of rows.

    Raises UserError if there are fewer rows (`unit` in the message) than shards, or `folder` cannot be written.
    """
    names = [tfrecords.shard_name("train", i, shards) for i in range(shards)]
    count = 0
    try:
        with contextlib.ExitStack() as unnamed:
            places = [unnamed.enter_context(whole(folder / name)) for name in names]
            with contextlib.ExitStack() as stack:
                writers = [stack.enter_context(tf.io.TFRecordWriter(os.fspath(place))) for place in places]
                for count, row in enumerate(rows, 1):  # noqa: B007
                    writers[(count - 1) % shards].write(_serialized(row))
            if not count:
                raise UserError(
                    f"{folder}: no {unit} are left: all are longer than the maximum; give a larger --max_length"
                )
            if count < shards:
                raise UserError(f"{folder}: {count} {unit} do not fill {shards} shards; use fewer")
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"cannot write into {folder}: {error}; free some space or name another DATA_DIR"
        ) from error
    record_counts.write(folder, names)
    return count


def _serialized(row: Mapping[str, Sequence[int]]) -> bytes:
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in row.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)
