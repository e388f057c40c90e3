"""Converts your own parallel text, for `timetotrain data gnmt SOURCE TARGET OUT`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import folder_conversion
from common.data.bucketing import least_padding
from common.data.folder_conversion import Card, Conversion, Options
from common.data.report import Report
from common.text import bleu, bpe, custom_text
from gnmt import convert as converter
from gnmt import corpus as reader
from gnmt.config import Data
from gnmt.presets import PRESETS

PREVIEW = "cpu-multi30k"  # The page reads the records with this preset.
_FILES = Data()
_LARGE_MERGES = 32000  # As in the published configuration.
_LONGEST = 75  # Maximum tokens per side, from the reference's filter (gnmt/convert.py).
_ROOM = 10  # Tokens by which a translation may exceed the longest reference, including the end of sentence.
_EVAL_LENGTHS = 2  # Sentences to evaluate on may have as many times the tokens of those to train on.
_RATIO = f"; or one side has over {converter.MOST_RATIO} times the words of the other, which blanks divide"
_BUCKETS = 5  # As in the published configuration.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the records, merges, vocabulary, evaluation text and their description into `out`.

    Raises UserError if the text does not fit, too much of it is broken, or `out` holds something else.

    Args:
      sources: two text files, or one with lines of sentence, tab, translation.
      options: split, vocabulary, lengths, languages.
    """
    languages = custom_text.languages(sources, options) or _assumed(options.report)
    pairs = custom_text.prepared(sources, options)
    merges = options.vocabulary_size or custom_text.vocabulary_size(pairs.bytes, _LARGE_MERGES)
    if folder_conversion.start(out, "gnmt"):
        custom_text.clear(out)
    settings = converter.Settings(
        merges=merges,
        max_length=options.max_length or _LONGEST,
        shards=custom_text.shards(pairs),
        drop_bad=True,
        workers=options.workers,
        languages=languages,
        # A split of ours leaves out what would make every search long.
        eval_length=0 if options.eval_sources else _EVAL_LENGTHS * (options.max_length or _LONGEST),
    )
    counts = converter.convert(out, pairs.train, pairs.evaluation, settings)
    words = bpe.Bpe(out / _FILES.codes, out / _FILES.vocabulary)
    encoded_pairs = [
        (words.encode(s, languages[0]), words.encode(t, languages[1])) for s, t in pairs.evaluation.pairs()
    ]
    least = custom_text.baseline(
        pairs,
        out / _FILES.eval_source,
        out / _FILES.eval_reference,
        lambda texts, answers: bleu.sacre(texts, answers, lowercase=True, tokenize="intl"),
    )
    source, target = (max(len(pair[side]) for pair in encoded_pairs) for side in (0, 1))
    fields = {
        "vocabulary_size": counts["vocabulary"],
        "num_train_examples": counts["pairs"],
        "num_eval_examples": counts["eval"],
        **{
            f"data.{name}": getattr(_FILES, name)
            for name in ("codes", "vocabulary", "eval_source", "eval_reference")
        },
        "data.source_language": languages[0],
        "data.target_language": languages[1],
    }
    limits = _limits(out, fields)
    fields["max_sequence_length"] = limits[-1]
    names = (_FILES.codes, _FILES.vocabulary, _FILES.eval_source, _FILES.eval_reference)
    description = folder_conversion.finish(
        out,
        "gnmt",
        ["train-*-of-*", *names],
        fields,
        (counts["pairs"], counts["eval"]),
        custom_text.listed(pairs, counts, settings.max_length, options, _RATIO),
        defaults={
            "bucket_limits": limits,
            "decode.source_length": source + 2,
            # A translation may be longer than its reference.
            "decode.target_length": max(PRESETS[PREVIEW].decode.target_length, target + _ROOM),
        },
        baseline=least,
    )
    return Conversion(description, (), "pairs", custom_text.facts(pairs, counts))


def _assumed(report: Report) -> tuple[str, str]:
    """Returns English and German, and says so."""
    assumed = _FILES.source_language, _FILES.target_language
    report.suspect(
        "no language in the files' names, so words are split as these; give --languages", " ".join(assumed)
    )
    return assumed


def _limits(out: Path, fields: dict) -> list[int]:
    """Returns the bucket lengths that need the least padding for these pairs; the last one fits the longest pair."""
    config = dataclasses.replace(
        PRESETS[PREVIEW],
        vocabulary_size=fields["vocabulary_size"],
        max_sequence_length=1 << 20,
        bucket_limits=(1 << 20,),
    )
    corpus = reader.load(config, out)
    lengths = np.maximum(corpus.source.lengths, corpus.target.lengths + 1)  # The decoder adds BOS.
    return least_padding(np.maximum(lengths, 2), _BUCKETS)


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns training pairs split into tokens, and the first evaluation sentences."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    corpus = reader.load(config, data_dir)
    pieces = bpe.read_vocabulary(data_dir / config.data.vocabulary)
    order = np.random.default_rng(0).permutation(len(corpus))[:count]
    cards = []
    for number in order:
        sides = (side.sentence(number) for side in (corpus.source, corpus.target))
        cards.append(Card("train", None, [[pieces[token] for token in tokens] for tokens in sides]))
    words = bpe.Bpe(data_dir / config.data.codes, data_dir / config.data.vocabulary)
    lines = (data_dir / config.data.eval_source).read_text(encoding="utf-8").split("\n")[: count // 2]
    for line in filter(None, lines):
        tokens = [bpe.BOS, *words.encode(line, config.data.source_language), bpe.EOS]
        cards.append(Card("eval", None, [[pieces[token] for token in tokens]]))
    return cards
