"""Converts parallel text to the packed TFRecords, vocabulary and evaluation text that the Transformer reads.

    python -m transformer.convert DATA_DIR --train_source a.en b.en --train_target a.de b.de \\
        --eval_source newstest2014.en --eval_target newstest2014.de --vocabulary FILE
    python -m transformer.convert DATA_DIR ... --vocabulary_size 8000 --max_length 40 --packed_length 128

Files may be gzipped. The converter discards pairs with a side longer than --max_length tokens, including EOS, as the
benchmark's rules require. Shards get their final names when all are complete and the note of the length limits exists.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from common.errors import Parser, UserError, answering
from common.files import whole
from common.text import conversion, parallel, subwords
from common.text.conversion import Encoded, Text
from common.text.subwords import Subwords
from transformer.config import NOTE, Data
from transformer.packing import pack

_FILES = Data()


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the conversion.

    Attributes:
      max_length: maximum tokens in either side of a pair, including EOS.
      packed_length: tokens in either side of a packed sequence.
      shards: number of TFRecord files.
      drop_bad: omit and count empty and undecodable training pairs.
      workers: number of processes.
      eval_length: maximum tokens of a source to evaluate on; longer ones are omitted and counted. 0: no maximum.
    """

    max_length: int = 80
    packed_length: int = 256
    shards: int = 100
    drop_bad: bool = False
    workers: int = 1
    eval_length: int = 0


def convert(
    folder: Path, train: Text, evaluation: Text, vocabulary: Path | int, settings: Settings
) -> dict[str, int]:
    """Writes train-*, the vocabulary and the evaluation text into `folder`.

    Raises UserError if the text is bad (the message names file and line), the folder holds shards, or the disk is full.

    Args:
      folder: created if it does not exist.
      evaluation: text to evaluate on; only `settings.eval_length` omits pairs of it.
      vocabulary: a subword file, or the number of subwords to build from the training text.
      settings: lengths, shards and cleaning.

    Returns:
      The numbers of "pairs", "packed" sequences, "eval" sentences and "vocabulary" entries, and the fields of
      `parallel.Dropped`.
    """
    held_out = list(evaluation.pairs())
    _prepare(folder, settings)
    words = make_vocabulary(folder / _FILES.vocabulary, train, vocabulary, settings)
    dropped = parallel.Dropped()
    if settings.eval_length:
        held_out = parallel.short(
            held_out, lambda pair: len(words.encode(pair[0])), settings.eval_length, dropped
        )
    for name, side in ((_FILES.eval_source, 0), (_FILES.eval_reference, 1)):
        conversion.write_lines(folder / name, (pair[side] for pair in held_out))
    encoded = _encoded(train.pairs(dropped if settings.drop_bad else None), words.path, settings.workers)
    fitting = conversion.within(encoded, lambda pair: max(map(len, pair)), settings.max_length, dropped)
    counts = {"pairs": 0, "packed": 0, "eval": len(held_out), "vocabulary": len(words)}

    def rows() -> Iterator[Mapping[str, Sequence[int]]]:
        for row in pack(fitting, settings.packed_length):
            counts["pairs"] += len(row.pairs)
            counts["packed"] += 1
            yield row.features()
        counts.update(dataclasses.asdict(dropped))
        # Shards get their names after the last row, so no shard ever exists without the note.
        lengths = {"max_length": settings.max_length, "packed_length": settings.packed_length}
        conversion.write_lines(folder / NOTE, [json.dumps(lengths | counts, indent=1)])

    conversion.deal(folder, rows(), settings.shards, "packed sequences")
    return counts


def _prepare(folder: Path, settings: Settings) -> None:
    if settings.shards < 1 or not 2 <= settings.max_length <= settings.packed_length:
        raise UserError(
            f"--shards {settings.shards}, --max_length {settings.max_length}, --packed_length "
            f"{settings.packed_length}: at least one shard, and 2 <= max-length <= packed-length"
        )
    conversion.prepare(folder, _FILES.train_pattern)


def make_vocabulary(path: Path, train: Text, vocabulary: Path | int, settings: Settings) -> Subwords:
    """Builds the vocabulary at `path` from the training text, or copies it there.

    Raises UserError if the text is bad, or `path` cannot be written.

    Args:
      vocabulary: as in `convert`, also `path` itself.
    """
    with conversion.writing(path):
        if isinstance(vocabulary, int):
            path.unlink(missing_ok=True)  # Left by an interrupted conversion; no shards exist.
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                clean = _clean(Path(scratch), train, settings.drop_bad)
                return subwords.build(path, clean, vocabulary)
        words = Subwords(vocabulary)
        if vocabulary.resolve() != path.resolve():
            with whole(path) as partial:
                shutil.copyfile(vocabulary, partial)
    words.path = path
    return words


def _clean(folder: Path, train: Text, drop_bad: bool) -> list[Path]:
    """Writes the training text, without dropped pairs, to two files in `folder`."""
    paths = [folder / side for side in ("source", "target")]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(p, "w", encoding="utf-8", newline="\n")) for p in paths]
        for pair in train.pairs(parallel.Dropped() if drop_bad else None):
            for file, text in zip(files, pair):
                file.write(subwords.learnable(text) + "\n")
    return paths


def _encoded(pairs: Iterable[parallel.Pair], vocabulary: Path, workers: int) -> Iterator[Encoded]:
    encode = functools.partial(_encode, vocabulary, hash(vocabulary.read_bytes()))
    with conversion.pool(workers) as pool:
        yield from conversion.convert(pool, encode, pairs, "encoding")


@functools.lru_cache(maxsize=1)
def _words(vocabulary: Path, content: int) -> Subwords:
    del content  # Part of the cache key, because a later conversion may write another file to this path.
    return Subwords(vocabulary)


def _encode(vocabulary: Path, content: int, pairs: list[parallel.Pair]) -> list[Encoded]:
    words = _words(vocabulary, content)
    return [(words.encode(source), words.encode(target)) for source, target in pairs]


def _parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = Parser(prog="python -m transformer.convert", description=__doc__.split("\n")[0])
    parser.add_argument("data_dir", type=Path, help="folder for the result")
    conversion.add_text_arguments(parser)
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--vocabulary", type=Path, metavar="FILE", help="subword file to use")
    either.add_argument("--vocabulary_size", type=int, metavar="N", help="make one of about N subwords")
    parser.add_argument("--max_length", type=int, default=default.max_length, metavar="N")
    parser.add_argument("--packed_length", type=int, default=default.packed_length, metavar="N")
    conversion.add_work_arguments(parser, default.shards)
    return parser


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m transformer.convert`; returns the exit code."""
    arguments = _parser().parse_args(argv)
    lengths = arguments.max_length, arguments.packed_length
    settings = Settings(*lengths, arguments.shards, arguments.drop_bad, arguments.workers)
    vocabulary = arguments.vocabulary or arguments.vocabulary_size
    counts = convert(arguments.data_dir, *conversion.texts(arguments), vocabulary, settings)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(
        f"run with --config.num_train_examples={counts['packed']} --config.num_eval_examples={counts['eval']} "
        f"--config.vocabulary_size={counts['vocabulary']} --config.packed_length={arguments.packed_length} "
        f"--config.max_sequence_length={arguments.max_length}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
