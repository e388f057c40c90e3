"""Converts your own parallel text, for `timetotrain data transformer SOURCE TARGET OUT`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import folder_conversion
from common.data.folder_conversion import Card, Conversion, Options
from common.distributed.replicas.base import Shard
from common.errors import UserError
from common.text import bleu, custom_text
from common.text.subwords import Subwords
from transformer import convert as converter
from transformer import input as reader
from transformer.config import NOTE, Data
from transformer.presets import PRESETS

PREVIEW = "cpu-multi30k"  # The page reads the records with this preset.
_FILES = Data()
_LARGE_VOCABULARY = 32768  # Near the published 33,708.
# Maximum tokens in a sentence and tokens in a packed row: cpu-multi30k's values for short text, the rules' values
# (docs/sources.md, mlperf 1.4), and a row's all for long ones. The first that fits _COMMON of a sample is chosen.
_LENGTHS = ((60, 128), (80, 256), (256, 256))
_COMMON, _SAMPLE = 0.99, 2000


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records, vocabulary, evaluation text and their description into `out`.

    Raises UserError if the text does not fit, too much of it is broken, or `out` holds something else.

    Args:
      sources: two text files, or one with lines of sentence, tab, translation.
      options: split, vocabulary, lengths.
    """
    pairs = custom_text.prepared(sources, options)
    size = options.vocabulary_size or custom_text.vocabulary_size(pairs.bytes, _LARGE_VOCABULARY)
    if folder_conversion.start(out, "transformer"):
        custom_text.clear(out)
    cleaning = converter.Settings(drop_bad=True)
    words = converter.make_vocabulary(out / _FILES.vocabulary, pairs.train, size, cleaning)
    longest, packed = _lengths(pairs, words)
    longest = options.max_length or longest
    packed = max(packed, longest)
    # A split of ours leaves out what the decoder cannot take.
    eval_length = 0 if options.eval_sources else packed
    settings = converter.Settings(
        longest, packed, custom_text.shards(pairs), True, options.workers, eval_length
    )
    counts = converter.convert(out, pairs.train, pairs.evaluation, words.path, settings)
    tokens, worst = max((len(words.encode(source)), source) for source, _ in pairs.evaluation.pairs())
    least = custom_text.baseline(pairs, out / _FILES.eval_source, out / _FILES.eval_reference, bleu.t2t)
    if tokens > packed:
        raise UserError(
            f"a sentence to evaluate on has {tokens} subwords, a packed row {packed}: {worst[:60]!r}...; "
            f"give --max_length={tokens}, or leave it out"
        )
    fields = {
        "vocabulary_size": counts["vocabulary"],
        "num_train_examples": counts["packed"],
        "num_eval_examples": counts["eval"],
        "packed_length": packed,
        "max_sequence_length": longest,
        **{f"data.{name}": getattr(_FILES, name) for name in ("vocabulary", "eval_source", "eval_reference")},
    }
    names = (_FILES.vocabulary, _FILES.eval_source, _FILES.eval_reference, NOTE)
    description = folder_conversion.finish(
        out,
        "transformer",
        ["train-*-of-*", *names],
        fields,
        (counts["pairs"], counts["eval"]),
        custom_text.listed(pairs, counts, longest, options),
        defaults={"decode.source_length": tokens},
        baseline=least,
    )
    facts = [*custom_text.facts(pairs, counts), ("packed rows", f"{counts['packed']} of {packed} tokens")]
    return Conversion(description, (), "pairs", facts)


def _lengths(pairs: custom_text.Pairs, words: Subwords) -> tuple[int, int]:
    """Returns the maximum tokens of a sentence, its end included, and the tokens in a packed row."""
    rows = pairs.train.rows
    some = rows[:: max(1, len(rows) // _SAMPLE)]
    common = np.quantile([max(len(words.encode(side)) for side in pair) for pair in some], _COMMON)
    return next((lengths for lengths in _LENGTHS if common <= lengths[0]), _LENGTHS[-1])


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns the pairs of the first packed rows, split into tokens, and the first evaluation sentences."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    config = dataclasses.replace(config, global_batch_size=1, eval_batch_size=1)
    pieces = _pieces(data_dir / config.data.vocabulary)
    cards = []
    for batch in reader.train_input(config, data_dir, Shard(0, 1), 1).take(count):
        row = {name: value[0].numpy() for name, value in batch.items()}
        sides = [_first(row, side, pieces) for side in ("inputs", "targets")]
        sentences = int(row["inputs_segment"].max())
        cards.append(Card(f"train: the first of {sentences} pairs in a row", None, sides))
    words = Subwords(data_dir / config.data.vocabulary)
    lines = (data_dir / config.data.eval_source).read_text(encoding="utf-8").split("\n")[: count // 2]
    cards += [Card("eval", None, [[pieces[t] for t in words.encode(line)]]) for line in lines if line]
    return cards


def _first(row: dict[str, np.ndarray], side: str, pieces: Sequence[str]) -> list[str]:
    tokens = row[side][row[f"{side}_segment"] == 1]
    return [pieces[int(token)] for token in tokens]


def _pieces(path: Path) -> list[str]:
    """Returns the subwords of a vocabulary file in order; each line of the file has one, in quotes."""
    return [line.strip()[1:-1] for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
