"""Reads a user's parallel text for Transformer and GNMT: two files, or one file of sentence, tab, translation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from common.data import baselines, given_splits, near_copies, text_files
from common.data.folder_conversion import Options
from common.data.report import Report
from common.errors import UserError, counted
from common.text import parallel, sentences, subwords, text_doubts
from common.text.conversion import Sentences

MOST_HELD = 3000  # Maximum number of held-out pairs; WMT's newstest2014 has 3,003.
# (Text size limit in bytes, number of merges or subwords), following the presets cpu-multi30k (29,000 pairs).
_VOCABULARIES = ((200_000, 1000), (2_000_000, 4000), (50_000_000, 8000))
SHARD_BYTES = 16 << 20  # Of text.
# Maximum characters of a side, and for each token that --max_length allows: longer pairs are left out before the
# vocabulary is learned, which takes memory by the square of a word's length. Subwords have 5 characters on average.
MOST_CHARACTERS, _TOKEN_CHARACTERS = 10_000, 40
# Part of the pairs; names, numbers and the like are their own translation. This project's choice.
_MOST_SAME = 0.05


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Parallel text that is ready to convert.

    Attributes:
      train, evaluation: the sound pairs.
      words: maximum number of words in a side of a training pair; see `word_count`.
      bytes: size of the training text.
      report: has the pairs that were left out.
    """

    train: Sentences
    evaluation: Sentences
    words: int
    bytes: int
    report: Report


def prepared(sources: Sequence[Path], options: Options) -> Pairs:
    """Returns the sound pairs, split by seed unless `options.eval_sources` is given.

    Pairs of one source sentence stay on one side of the split, so that no evaluation sentence is trained on.

    Raises UserError if a file cannot be read, the sides do not match, or no pair is left.
    """
    report = options.report
    most = max(MOST_CHARACTERS, _TOKEN_CHARACTERS * options.max_length)
    pairs = list(sentences.read(sources, most, report))
    held_out = list(sentences.read(options.eval_sources, most, report)) if options.eval_sources else None
    for reason, one in report.left_out.items():
        if one.count > sentences.EXAMPLES:
            report.lines.append(f"{counted(one.count - sentences.EXAMPLES, 'more line')}: {reason}")
    _check(pairs, sources, report)
    if held_out is None:
        pairs, held_out = _divided(pairs, sources, options)
    else:
        _check(held_out, options.eval_sources, report)
        train_sources = {_words(source) for source, _ in pairs}
        both = [source for source, _ in held_out if _words(source) in train_sources]
        if both:
            report.suspect("the same sentence to train and to evaluate on", both[0][:80], len(both))
    every = pairs if options.eval_sources else [*pairs, *held_out]
    guesses = text_doubts.report(every, languages(sources, options), report)
    if options.eval_sources:
        text_doubts.report(held_out, guesses, report, " to evaluate on")
    same = [source for source, target in pairs if source == target]
    if len(same) > _MOST_SAME * len(pairs):
        report.suspect("a sentence that is its own translation", same[0][:80], len(same))
    words = np.array([word_count(text) for pair in pairs for text in pair])
    size = sum(len(side.encode()) for pair in pairs for side in pair)
    return Pairs(Sentences(pairs), Sentences(held_out), int(words.max()), size, options.report)


def languages(sources: Sequence[Path], options: Options) -> tuple[str, str] | tuple[()]:
    """Returns the codes that the user gives, or the files' suffixes, as in train.en and train.de; else ()."""
    if options.languages:
        options.report.choose("languages", " ".join(options.languages), "--languages")
        return options.languages
    suffixes = [path.name.lower().removesuffix(".gz").rpartition(".")[2] for path in sources]
    if len(suffixes) != 2 or not all(map(sentences.LANGUAGES.fullmatch, suffixes)):
        return ()
    options.report.choose("languages", " ".join(suffixes), "the files' names")
    return suffixes[0], suffixes[1]


def _words(sentence: str) -> str:
    """Returns what two copies of a sentence share: its words, in lower case."""
    text = text_files.normal(sentence).casefold()
    return " ".join(re.findall(r"\w+", text)) or text


def word_count(text: str) -> int:
    """Returns the number of words; two characters of a script without spaces count as one."""
    unspaced = len(subwords.UNSPACED.findall(text))
    return len(subwords.UNSPACED.sub(" ", text).split()) + (unspaced + 1) // 2


def _check(pairs: Sequence[parallel.Pair], paths: Sequence[Path], report: Report) -> None:
    """Raises UserError if no pair is left."""
    kinds = sorted(report.left_out.items(), key=lambda kind: -kind[1].count)
    why = "; ".join(f"{one.count} {reason} (such as {one.example})" for reason, one in kinds)
    if not pairs:
        raise UserError(f"{paths[0]}: no sentence pair is left: {why or 'the file is empty'}")


def _divided(pairs: list[parallel.Pair], paths: Sequence[Path], options: Options) -> tuple[list, list]:
    distinct = sorted(set(pairs))
    if len(distinct) < 2:
        fix = "give more to hold some out, or name others with --eval"
        raise UserError(f"{paths[0]}: one sentence pair only; {fix}")
    options = dataclasses.replace(options, eval_part=min(options.eval_part, MOST_HELD / len(distinct)))
    names = [_words(source) for source, _ in distinct]
    if len({*names}) < 2:
        fix = "name the columns in a first line, or name others with --eval"
        raise UserError(f"{paths[0]}: every pair has the source {distinct[0][0][:60]!r}; {fix}")
    groups = [str(n) for n in near_copies.joined(len(distinct), near_copies.same_names(names))]
    _, held_out = given_splits.own_split(distinct, ["all"] * len(distinct), groups, options, "the sentences")
    order = np.random.default_rng([options.seed, 1]).permutation(len(held_out))
    out = set(held_out)
    return [pair for pair in pairs if pair not in out], [held_out[i] for i in order]


def baseline(
    pairs: Pairs, sources: Path, references: Path, score: Callable[[Sequence[str], Sequence[str]], float]
) -> tuple[float, str]:
    """Returns the BLEU, from 0 to 1, of an answer without a network to the sentences to evaluate on.

    `score` maps (references, hypotheses) to BLEU from 0 to 100.
    """
    held_out = list(parallel.read_pairs(sources, references))
    return baselines.nearest(pairs.train.pairs(), held_out, score)


def vocabulary_size(size: int, largest: int) -> int:
    """Returns the number of merges or subwords for a text of `size` bytes; `largest` for a corpus such as WMT."""
    return next((number for most, number in _VOCABULARIES if size < most), largest)


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


def listed(
    pairs: Pairs, counts: dict[str, int], longest: int, options: Options, other: str = ""
) -> list[str]:
    """Returns the lines about left-out pairs, for the description.

    `longest` is the maximum number of tokens, `other` a further reason for which the converter drops pairs.
    """
    report = pairs.report
    by = "--max_length" if options.max_length else "the converter; --max_length sets another"
    report.choose("maximum tokens of a sentence", str(longest), by)
    report.choose(
        "vocabulary",
        f"{counts['vocabulary']} tokens",
        "--vocabulary_size" if options.vocabulary_size else "the converter, by the text's size",
    )
    reason = f"more than {longest} tokens, the maximum by {by}{other}"
    if counts["too_long"]:
        report.leave_out(reason, "a pair", f"{counted(counts['too_long'], 'pair')}: {reason}")
        report.left_out[reason].count = counts["too_long"]
    return report.lines
