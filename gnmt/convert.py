"""Converts parallel text to the TFRecords, merges, vocabulary and evaluation text that GNMT reads.

    python -m gnmt.convert DATA_DIR --train_source a.en b.en --train_target a.de b.de \\
        --eval_source newstest2014.en --eval_target newstest2014.de
    python -m gnmt.convert DATA_DIR ... --merges 4000 --max_length 40
    python -m gnmt.convert DATA_DIR ... --codes bpe.32000 --vocabulary vocab.bpe.32000

Files may be gzipped. As in the reference's data, the converter drops pairs before it learns the merges if a side has
more than 80 Moses tokens or is more than nine times as long as the other. After encoding, it drops pairs with a side
longer than --max_length tokens, including BOS and EOS. Shards get their final names when all are complete.
"""

import argparse
import collections
import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.errors import Parser, UserError, answering
from common.files import write_fix
from common.text import bpe, conversion, parallel
from common.text.conversion import Encoded, Text
from gnmt.config import Data

_FILES = Data()
# Maximum tokens per side and maximum ratio of the sides: clean-corpus-n.perl 1 80 in the reference's data script.
MOST_WORDS, MOST_RATIO = 80, 9


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the conversion.

    Attributes:
      merges: number of merges to learn if `codes` and `vocabulary` are None.
      codes, vocabulary: existing merges and tokens to use; give both.
      max_length: maximum tokens in either side of a pair, including BOS and EOS.
      shards: number of TFRecord files.
      drop_bad: omit and count empty and undecodable training pairs.
      workers: number of processes.
      languages: ISO codes of source and target.
      eval_length: maximum tokens in either side of a pair to evaluate on; longer ones are omitted and counted. 0: no
        maximum.
    """

    merges: int = 32000
    codes: Path | None = None
    vocabulary: Path | None = None
    max_length: int = 75
    shards: int = 100
    drop_bad: bool = False
    workers: int = 1
    languages: tuple[str, str] = (_FILES.source_language, _FILES.target_language)
    eval_length: int = 0


def convert(folder: Path, train: Text, evaluation: Text, settings: Settings) -> dict[str, int]:
    """Writes train-*, merges, vocabulary and the evaluation text into `folder`.

    Raises UserError if the text is bad (the message names file and line), the folder holds shards, or the disk is full.

    Args:
      folder: created if it does not exist.
      evaluation: text to evaluate on; only `settings.eval_length` omits pairs of it.
      settings: encoding, lengths, shards and cleaning.

    Returns:
      The numbers of "pairs", "eval" sentences and "vocabulary" entries, and the fields of `parallel.Dropped`.
    """
    _prepare(folder, settings)
    held_out = list(evaluation.pairs())
    dropped = parallel.Dropped()
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=".tokens") as scratch,
        conversion.pool(settings.workers) as pool,
    ):
        tokens = Path(scratch) / "tokens"
        counts = _tokenize(
            train.pairs(dropped if settings.drop_bad else None), tokens, settings, dropped, pool
        )
        size = _encoding(folder, counts, settings)
        if settings.eval_length:
            held_out = _short_held(folder, held_out, settings, dropped)
        for name, side in ((_FILES.eval_source, 0), (_FILES.eval_reference, 1)):
            conversion.write_lines(folder / name, (pair[side] for pair in held_out))
        encoded = _encoded(folder, tokens, pool)
        fitting = conversion.within(
            encoded, lambda p: max(len(p[0]), len(p[1]) + 1), settings.max_length, dropped
        )
        rows = ({"source": source, "target": target} for source, target in fitting)
        pairs = conversion.deal(folder, rows, settings.shards, "pairs")
    numbers = {"pairs": pairs, "eval": len(held_out), "vocabulary": size} | dataclasses.asdict(dropped)
    conversion.write_text(folder / "convert.json", json.dumps(numbers, indent=1))
    return numbers


def _prepare(folder: Path, settings: Settings) -> None:
    if settings.shards < 1 or settings.max_length < 3 or settings.merges < 1:
        raise UserError(
            f"--shards {settings.shards}, --max_length {settings.max_length}, --merges {settings.merges}: "
            "at least 1, 3, 1"
        )
    conversion.prepare(folder, _FILES.train_pattern)


def _tokenize(
    pairs: Iterable[parallel.Pair], path: Path, settings: Settings, dropped: parallel.Dropped, pool: Callable
) -> collections.Counter[str]:
    """Writes pairs that are not too long to `path` as Moses tokens; returns the count of each token."""
    counts: collections.Counter[str] = collections.Counter()
    work = functools.partial(_moses_tokens, settings.languages)
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for sides in conversion.convert(pool, work, pairs, "tokenizing"):
                lengths = sorted(map(len, sides))
                if not lengths[0]:  # Moses removes characters that are not text.
                    dropped.empty += 1
                elif lengths[1] > MOST_WORDS or lengths[1] > MOST_RATIO * lengths[0]:
                    dropped.too_long += 1
                else:
                    for side in sides:
                        counts.update(side)
                        file.write(" ".join(side) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; {write_fix(error)}") from error
    return counts


def _moses_tokens(languages: tuple[str, str], pairs: list[parallel.Pair]) -> list[tuple[list[str], ...]]:
    return [tuple(bpe.moses(lang).tokens(text) for lang, text in zip(languages, pair)) for pair in pairs]


def _encoding(folder: Path, counts: collections.Counter[str], settings: Settings) -> int:
    """Writes merges and vocabulary; returns the number of tokens."""
    if settings.codes and settings.vocabulary:
        encoding = bpe.Bpe(settings.codes, settings.vocabulary)
        for source, name in ((settings.codes, _FILES.codes), (settings.vocabulary, _FILES.vocabulary)):
            if source.resolve() != (folder / name).resolve():
                conversion.write_text(folder / name, source.read_text(encoding="utf-8"))
        return len(encoding)
    codes = bpe.learn(counts, settings.merges)
    conversion.write_lines(folder / _FILES.codes, codes)
    vocabulary = bpe.vocabulary_of(counts, codes)
    conversion.write_lines(folder / _FILES.vocabulary, vocabulary)
    return len(vocabulary)


def _encoded(folder: Path, tokens: Path, pool: Callable) -> Iterator[Encoded]:
    work = functools.partial(_numbers, folder / _FILES.codes, folder / _FILES.vocabulary)
    with open(tokens, encoding="utf-8", newline="\n") as file:
        lines = (line.rstrip("\n").split(" ") for line in file)
        yield from conversion.convert(pool, work, zip(lines, lines), "encoding")


@functools.lru_cache(maxsize=1)
def _bpe(codes: Path, vocabulary: Path, changed: int) -> bpe.Bpe:
    del changed  # Part of the cache key, because a later conversion may write other files to these paths.
    return bpe.Bpe(codes, vocabulary)


def _numbers(codes: Path, vocabulary: Path, pairs: list[tuple[list[str], list[str]]]) -> list[Encoded]:
    """Encodes pairs: a source gets BOS and EOS, a target only EOS, because the decoder adds BOS itself."""
    encoding = _bpe(codes, vocabulary, vocabulary.stat().st_mtime_ns)
    return [
        ([bpe.BOS, *encoding.encode_tokens(source), bpe.EOS], [*encoding.encode_tokens(target), bpe.EOS])
        for source, target in pairs
    ]


def _short_held(
    folder: Path, pairs: Sequence[parallel.Pair], settings: Settings, dropped: parallel.Dropped
) -> list[parallel.Pair]:
    words, longest = bpe.Bpe(folder / _FILES.codes, folder / _FILES.vocabulary), settings.eval_length

    def length(pair: parallel.Pair) -> int:
        return max(len(words.encode(text, code)) for text, code in zip(pair, settings.languages)) + 2

    return parallel.short(pairs, length, longest, dropped)


def _parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = Parser(prog="python -m gnmt.convert", description=__doc__.split("\n")[0])
    parser.add_argument("data_dir", type=Path, help="folder for the result")
    conversion.add_text_arguments(parser)
    parser.add_argument("--merges", type=int, default=default.merges, metavar="N", help="merges to learn")
    parser.add_argument("--codes", type=Path, metavar="FILE", help="merges to use; with --vocabulary")
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help="tokens to use; with --codes")
    parser.add_argument("--max_length", type=int, default=default.max_length, metavar="N")
    conversion.add_work_arguments(parser, default.shards)
    for side, language in zip(("source", "target"), default.languages):
        parser.add_argument(f"--{side}_language", default=language, metavar="CODE")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    if (arguments.codes is None) != (arguments.vocabulary is None):
        raise UserError("--codes and --vocabulary belong together: give both or neither")
    fields: dict[str, Any] = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(Settings)
        if field.name not in ("languages", "eval_length")  # Published texts are never cut.
    }
    return Settings(**fields, languages=(arguments.source_language, arguments.target_language))


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m gnmt.convert`; returns the exit code."""
    arguments = _parser().parse_args(argv)
    counts = convert(arguments.data_dir, *conversion.texts(arguments), _settings(arguments))
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(
        f"run with --config.num_eval_examples={counts['eval']} --config.vocabulary_size={counts['vocabulary']} "
        f"and, where config.max_sequence_length is at least {arguments.max_length}, "
        f"--config.num_train_examples={counts['pairs']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
