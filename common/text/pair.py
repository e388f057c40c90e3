"""Generates a language pair for the tiny presets of the translation benchmarks.

Both languages are invented. A source sentence is one clause, or two joined by "and". A clause is "(time,) subject verb
object (preposition noun phrase)", with articles and adjectives before the noun; endings mark plurals and the past. The
target language

- puts the object first, then the noun phrase with a postposition, the subject, the time and, last, the verb;
- puts adjectives and the article after their noun;
- gives nouns an ending for case and number, and adjectives and articles an ending for their noun's gender, number and
  case;
- gives verbs an ending for the subject's number and gender, and a prefix for the past.

Names are invented as needed and stay unchanged in translation; some evaluation names occur in no training sentence. A
word-for-word translation, even with a perfect dictionary, has the wrong order and few correct endings.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from common.data import record_counts, tiny_data
from common.text.conversion import Sentences

VERSION = 1  # Version of the grammar: raise it if the same settings produce different sentences.
_SOURCE_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve")
_TARGET_SYLLABLES = ("ak", "em", "il", "on", "ur", "sha", "kre", "tlo", "bri", "zu", "wem", "yo")
_NAME_SYLLABLES = ("Ka", "Lo", "Mi", "nu", "ra", "te", "vi", "xo", "zan", "dor", "bel", "gri")
_CASES = ("subject", "object", "place")
_NOUN_ENDINGS = {"subject": ("", "i"), "object": ("am", "ami"), "place": ("ex", "exi")}
_GENDERS = ("o", "e", "u")  # Gender endings of words that agree with a noun; number and case follow.
_VERB_ENDINGS = (("ot", "ost"), ("et", "est"), ("ut", "ust"))


@dataclasses.dataclass(frozen=True)
class Pair:
    """The amount and difficulty of the text.

    Attributes:
      seed: seed of all random numbers.
      train_pairs, eval_pairs: number of sentences; the second is not a multiple of a batch, so that there is padding.
      nouns, adjectives, verbs, times, prepositions: number of words of each kind.
      names: fraction of noun phrases that are names.
      adjective, place, time: probability of each of these.
      second_clause: fraction of sentences with two clauses, in which only word order shows what belongs together.
    """

    seed: int = 30
    train_pairs: int = 6000
    eval_pairs: int = 200
    nouns: int = 48
    adjectives: int = 16
    verbs: int = 24
    times: int = 8
    prepositions: int = 5
    names: float = 0.1
    adjective: float = 0.5
    place: float = 0.4
    time: float = 0.3
    second_clause: float = 0.7


class Grammar:
    """Draws sentences with their translations, and with word-for-word translations."""

    def __init__(self, pair: Pair):
        self.pair = pair
        rng = np.random.default_rng(pair.seed)
        lexicons: tuple[set[str], set[str]] = (set(), set())

        def words(count: int) -> list[tuple[str, str]]:
            syllables = (_SOURCE_SYLLABLES, _TARGET_SYLLABLES)
            return [
                (_word(rng, syllables[0], lexicons[0]), _word(rng, syllables[1], lexicons[1]))
                for _ in range(count)
            ]

        self.nouns, self.adjectives, self.verbs = words(pair.nouns), words(pair.adjectives), words(pair.verbs)
        self.times, self.prepositions = words(pair.times), words(pair.prepositions)
        self.articles = words(2)
        ((source, target),) = words(1)
        self.conjunction = (source, target, target)
        self.genders = rng.integers(len(_GENDERS), size=pair.nouns)

    def pairs(self, split: str) -> list[tuple[str, str, str]]:
        """Returns (source, target, word-for-word translation) of every sentence of "train" or "eval"."""
        count = self.pair.train_pairs if split == "train" else self.pair.eval_pairs
        rng = np.random.default_rng([self.pair.seed, ("train", "eval").index(split)])
        return [self._sentence(rng) for _ in range(count)]

    def _sentence(self, rng: np.random.Generator) -> tuple[str, str, str]:
        first = self._clause(rng)
        if rng.random() < self.pair.second_clause:
            second = self._clause(rng)
            first = [
                [*words, conjunction, *more]
                for words, conjunction, more in zip(first, self.conjunction, second)
            ]
        return tuple(" ".join(words) + "." for words in first)  # type: ignore[return-value]

    def _clause(self, rng: np.random.Generator) -> list[list[str]]:
        """Returns the words of the source, the target and the word-for-word translation."""
        pair = self.pair
        subject, object_ = self._phrase(rng, "subject"), self._phrase(rng, "object")
        verb, past = self.verbs[rng.integers(pair.verbs)], bool(rng.random() < 0.5)
        source = [*subject.source, verb[0] + ("ka" if past else ""), *object_.source]
        gloss = [*subject.gloss, verb[1] + _VERB_ENDINGS[0][0], *object_.gloss]
        place: list[str] = []
        if rng.random() < pair.place:
            preposition, phrase = (
                self.prepositions[rng.integers(pair.prepositions)],
                self._phrase(rng, "place"),
            )
            source += [preposition[0], *phrase.source]
            gloss += [preposition[1], *phrase.gloss]
            place = [*phrase.target, preposition[1]]
        time: list[str] = []
        if rng.random() < pair.time:
            word = self.times[rng.integers(pair.times)]
            source, gloss, time = [word[0] + ",", *source], [word[1] + ",", *gloss], [word[1]]
        spoken = ("ga" if past else "") + verb[1] + _VERB_ENDINGS[subject.gender][subject.plural]
        return [source, [*object_.target, *place, *subject.target, *time, spoken], gloss]

    def _phrase(self, rng: np.random.Generator, case: str) -> _Phrase:
        if rng.random() < self.pair.names:
            name = "".join(rng.choice(_NAME_SYLLABLES) for _ in range(3)).capitalize()
            return _Phrase([name], [name], [name], 0, 0)
        number, plural = rng.integers(self.pair.nouns), int(rng.random() < 0.4)
        noun, gender = self.nouns[number], int(self.genders[number])
        agreement = _GENDERS[gender] + ("n" if plural else "") + ("", "m", "s")[_CASES.index(case)]
        article = self.articles[rng.integers(2)]
        source, target = [noun[0] + ("len" if plural else "")], [noun[1] + _NOUN_ENDINGS[case][plural]]
        gloss = [noun[1]]
        if rng.random() < self.pair.adjective:
            adjective = self.adjectives[rng.integers(self.pair.adjectives)]
            source, target = [adjective[0], *source], [*target, adjective[1] + agreement]
            gloss = [adjective[1] + _GENDERS[0], *gloss]
        return _Phrase(
            [article[0], *source],
            [*target, article[1] + agreement],
            [article[1] + _GENDERS[0], *gloss],
            gender,
            plural,
        )


@dataclasses.dataclass(frozen=True)
class _Phrase:
    source: list[str]
    target: list[str]
    gloss: list[str]
    gender: int
    plural: int


def _word(rng: np.random.Generator, syllables: Sequence[str], lexicon: set[str]) -> str:
    """Makes a new word with two or three syllables."""
    while True:
        word = "".join(rng.choice(syllables) for _ in range(rng.integers(2, 4)))
        if word not in lexicon:
            lexicon.add(word)
            return word


def generate(
    benchmark: str,
    data_dir: str | os.PathLike,
    tiny: Pair,
    names: Sequence[str],
    convert: Callable[[Path, Sentences, Sentences], dict[str, int]],
) -> dict[str, int]:
    """Writes the pair into `data_dir`; does nothing if the same data is already there.

    Args:
      benchmark: its name.
      data_dir: the folder.
      tiny: settings of the pair and of its encoding, a dataclass.
      names: the files that the converter writes, besides its notes.
      convert: converts (folder, training text, evaluation text), and returns its counts.

    Raises UserError if the folder holds other data, or cannot be written.
    """

    def converted(folder: Path) -> dict[str, int]:
        grammar = Grammar(tiny)
        texts = ([sentence[:2] for sentence in grammar.pairs(split)] for split in ("train", "eval"))
        return convert(folder, *map(Sentences, texts))

    settings = dataclasses.asdict(tiny) | {"version": VERSION}
    return tiny_data.make(
        benchmark, data_dir, settings, [*names, "convert.json", record_counts.NAME], converted
    )
