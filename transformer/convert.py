"""Parallel text to the packed TFRecords, vocabulary and evaluation text that the Transformer reads.

    python -m transformer.convert DATA_DIR --train-source a.en b.en --train-target a.de b.de \\
        --eval-source newstest2014.en --eval-target newstest2014.de --vocabulary FILE
    python -m transformer.convert DATA_DIR ... --vocabulary-size 8000 --max-length 40 --packed-length 128

Files may be gzipped. Pairs with a side longer than --max-length tokens, EOS included, are discarded, as the benchmark's
rules ask. Shards appear under their names when all are complete.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tensorflow as tf
import tqdm

from common import records
from common.errors import UserError
from common.text import parallel, subwords
from common.text.subwords import Subwords
from transformer.fields import NOTE, Data
from transformer.packing import Row, pack

Encoded = tuple[list[int], list[int]]
_CHUNK = 5000  # Pairs that a worker encodes at once.
_FILES = Data()


@dataclasses.dataclass(frozen=True)
class Text:
    """Parallel text: files of sources and files of their translations, in the same order."""

    sources: Sequence[Path]
    targets: Sequence[Path]

    def pairs(self, dropped: parallel.Dropped | None = None) -> Iterator[parallel.Pair]:
        for source, target in zip(self.sources, self.targets, strict=True):
            yield from parallel.read_pairs(source, target, dropped)


@dataclasses.dataclass(frozen=True)
class Settings:
    """`max_length`: tokens per side of a pair; `packed_length`: of a row; `shards`: files of rows."""

    max_length: int = 80
    packed_length: int = 256
    shards: int = 100
    drop_bad: bool = False
    workers: int = 1


def convert(
    folder: Path, train: Text, evaluation: Text, vocabulary: Path | int, settings: Settings
) -> dict[str, int]:
    """Writes train-*, the vocabulary and the evaluation text into `folder`.

    Args:
      folder: made if it is not there.
      train: text to train on.
      evaluation: text to evaluate on, never cleaned.
      vocabulary: a subword file, or how many subwords to make from the training text.
      settings: lengths, shards and cleaning.

    Returns:
      {"pairs", "packed", "eval", "vocabulary"}: how many there are, and what was dropped.

    Raises:
      UserError: bad text (file and line), a folder that holds shards already, or no space.
    """
    held_out = list(evaluation.pairs())
    _prepare(folder, settings)
    words = _vocabulary(folder / _FILES.vocabulary, train, vocabulary, settings)
    for name, side in ((_FILES.eval_source, 0), (_FILES.eval_reference, 1)):
        _write_text(folder / name, (pair[side] for pair in held_out))
    dropped = parallel.Dropped()
    encoded = _encoded(train.pairs(dropped if settings.drop_bad else None), words.path, settings.workers)
    fitting = _short(encoded, settings.max_length, dropped)
    counted = _Counter(fitting)
    packed = write_rows(folder, pack(counted, settings.packed_length), settings.shards)
    told = {"pairs": counted.count, "packed": packed, "eval": len(held_out), "vocabulary": len(words)}
    told |= dataclasses.asdict(dropped)
    lengths = {"max_length": settings.max_length, "packed_length": settings.packed_length}
    (folder / NOTE).write_text(json.dumps(lengths | told, indent=1))
    return told


class _Counter:
    def __init__(self, items: Iterable[Encoded]):
        self._items, self.count = items, 0

    def __iter__(self) -> Iterator[Encoded]:
        for item in self._items:
            self.count += 1
            yield item


def _prepare(folder: Path, settings: Settings) -> None:
    if settings.shards < 1 or not 2 <= settings.max_length <= settings.packed_length:
        raise UserError(
            f"--shards {settings.shards}, --max-length {settings.max_length}, --packed-length "
            f"{settings.packed_length}: at least one shard, and 2 <= max-length <= packed-length"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name another DATA_DIR") from error
    present = next((p.name for p in sorted(folder.glob(_FILES.train_pattern))), None)
    if present:
        raise UserError(f"{folder} holds {present} already; remove it or name another DATA_DIR")


def _vocabulary(path: Path, train: Text, vocabulary: Path | int, settings: Settings) -> Subwords:
    if isinstance(vocabulary, int):
        path.unlink(missing_ok=True)  # Of an interrupted conversion: there are no shards.
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            clean = [Path(scratch) / side for side in ("source", "target")]
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(open(p, "w", encoding="utf-8", newline="\n")) for p in clean]
                for pair in train.pairs(parallel.Dropped() if settings.drop_bad else None):
                    for file, text in zip(files, pair):
                        file.write(text + "\n")
            return subwords.build(path, clean, vocabulary)
    words = Subwords(vocabulary)
    if vocabulary.resolve() != path.resolve():
        shutil.copyfile(vocabulary, path)
    words.path = path
    return words


def _write_text(path: Path, lines: Iterable[str]) -> None:
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; free some space") from error


def _encoded(pairs: Iterable[parallel.Pair], vocabulary: Path, workers: int) -> Iterator[Encoded]:
    chunks = iter(lambda: list(itertools.islice(iterator, _CHUNK)), [])
    iterator = iter(pairs)
    encode = functools.partial(_encode, vocabulary)
    with (
        tqdm.tqdm(unit=" pairs", desc="encoding", disable=not sys.stderr.isatty()) as bar,
        contextlib.ExitStack() as stack,
    ):
        if workers < 2:
            results = map(encode, chunks)
        else:
            context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork.
            pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(workers, mp_context=context))
            results = _in_order(pool, encode, chunks, 4 * workers)
        for chunk in results:
            bar.update(len(chunk))
            yield from chunk


def _in_order(pool: concurrent.futures.Executor, function, chunks: Iterator, ahead: int) -> Iterator:
    """`pool.map` that reads at most `ahead` chunks ahead."""
    pending = [pool.submit(function, chunk) for chunk in itertools.islice(chunks, ahead)]
    while pending:
        yield pending.pop(0).result()
        pending += [pool.submit(function, chunk) for chunk in itertools.islice(chunks, 1)]


@functools.lru_cache(maxsize=1)
def _words(vocabulary: Path) -> Subwords:
    return Subwords(vocabulary)


def _encode(vocabulary: Path, pairs: list[parallel.Pair]) -> list[Encoded]:
    words = _words(vocabulary)
    return [(words.encode(source), words.encode(target)) for source, target in pairs]


def _short(pairs: Iterable[Encoded], longest: int, dropped: parallel.Dropped) -> Iterator[Encoded]:
    for pair in pairs:
        if max(map(len, pair)) <= longest:
            yield pair
        else:
            dropped.too_long += 1


def write_rows(folder: Path, rows: Iterable[Row], shards: int) -> int:
    """Deals rows to `shards` TFRecord files in turns; they get their names when all are written."""
    names = [records.shard_name("train", i, shards) for i in range(shards)]
    partial = [folder / f".{name}.{os.getpid()}.partial" for name in names]
    count = 0
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(tf.io.TFRecordWriter(os.fspath(path))) for path in partial]
            for count, row in enumerate(rows, 1):  # noqa: B007
                writers[(count - 1) % shards].write(_serialized(row))
        if count < shards:
            raise UserError(f"--shards {shards}: there are {count} packed sequences; use fewer shards")
        for path, name in zip(partial, names):
            os.replace(path, folder / name)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"cannot write into {folder}: {error}; free some space") from error
    finally:
        for path in partial:
            path.unlink(missing_ok=True)
    return count


def _serialized(row: Row) -> bytes:
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in row.features().items()
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)


def _parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m transformer.convert", description=__doc__.split("\n")[0])
    parser.add_argument("data_dir", type=Path, help="folder for the result")
    for name in ("--train-source", "--train-target", "--eval-source", "--eval-target"):
        parser.add_argument(name, type=Path, nargs="+", required=True, metavar="FILE")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--vocabulary", type=Path, metavar="FILE", help="subword file to use")
    either.add_argument("--vocabulary-size", type=int, metavar="N", help="make one of about so many subwords")
    parser.add_argument("--max-length", type=int, default=default.max_length, metavar="N")
    parser.add_argument("--packed-length", type=int, default=default.packed_length, metavar="N")
    parser.add_argument("--shards", type=int, default=default.shards, metavar="N")
    parser.add_argument(
        "--drop-bad", action="store_true", help="leave out, and count, empty and undecodable pairs"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m transformer.convert`."""
    arguments = _parser().parse_args(argv)
    try:
        for kind in ("train", "eval"):
            sides = [getattr(arguments, f"{kind}_{side}") for side in ("source", "target")]
            if len(sides[0]) != len(sides[1]):
                raise UserError(
                    f"--{kind}-source names {len(sides[0])} files, --{kind}-target {len(sides[1])}"
                )
        told = convert(
            arguments.data_dir,
            Text(arguments.train_source, arguments.train_target),
            Text(arguments.eval_source, arguments.eval_target),
            arguments.vocabulary or arguments.vocabulary_size,
            Settings(
                arguments.max_length,
                arguments.packed_length,
                arguments.shards,
                arguments.drop_bad,
                arguments.workers,
            ),
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(", ".join(f"{name} {count}" for name, count in told.items()))
    print(
        f"run with --config.num_train_examples={told['packed']} --config.num_eval_examples={told['eval']} "
        f"--config.vocabulary_size={told['vocabulary']} --config.packed_length={arguments.packed_length} "
        f"--config.max_sequence_length={arguments.max_length}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
