"""Finds what looks wrong in parallel text: markup, text decoded twice, subwords, another language. TensorFlow-free."""

import collections
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from common.data.report import Report
from common.text.parallel import Pair

# Part of the pairs from which a kind is suspicious, and part of the lines that say their language that are in others.
# Both are this project's choice, as are the bounds of the sample.
_RARE, _MIXED = 0.001, 0.1
_SAMPLE, _LEAST_LINES, _LEAST_CHARACTERS = 500, 10, 20
_SURE = 0.9  # Probability from which a line says its language; of Multi30k's captions, none says a wrong one.
_NUMBERS = re.compile(r"\d+")
_APART = 0.5  # Part of the pairs with numbers on both sides. This project's choice.
# Encodings as which UTF-8 is read by mistake.
_WRONG = ("cp1252", "latin-1", "cp1251")


def _decoded_twice(text: str) -> bool:
    """Whether a word of the text is UTF-8 that was read in another encoding, as "fÃ¼r" is."""
    return any(map(_is_other_utf8, text.split())) if not text.isascii() else False


def _is_other_utf8(word: str) -> bool:
    for encoding in _WRONG if not word.isascii() else ():
        try:
            return word.encode(encoding).decode("utf-8") != word
        except UnicodeError:
            continue
    return False


def _with(pattern: str) -> Callable[[str], Any]:
    return re.compile(pattern).search


_KINDS: dict[str, Callable[[str], Any]] = {
    "an escaped character, such as &quot; of HTML or Moses": _with(r"&(#\d+|#x[0-9A-Fa-f]+|[A-Za-z]{2,8});"),
    "a tag of HTML or XML": _with(r"</?[A-Za-z][A-Za-z0-9]*(\s[^<>]*)?/?>"),
    "an escape of a program, such as \\n or \\u00e9": _with(r"\\([nrt]\b|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})"),
    "text cut into subwords already (\u2581, @@, ##)": _with(r"\u2581|@@( |$)|(^| )##\w"),
    "text whose hyphens are split off already (@-@)": _with(r" @-@ "),
    "text decoded twice, such as \u00c3\u00bc for \u00fc": _decoded_twice,
    "a character that was lost (\ufffd)": _with("\ufffd"),
    "a sentence in quotes with doubled ones, as in a CSV": _with(r'^".*"".*"$'),
}


def report(pairs: Sequence[Pair], languages: Sequence[str], found: Report) -> None:
    """Notes what looks wrong in pairs.

    Args:
      languages: codes of source and target, if they are known; empty otherwise.
    """
    for what, holds in _KINDS.items():
        lines = [side for pair in pairs for side in pair if holds(side)]
        if len(lines) > _RARE * len(pairs):
            found.suspect(what, lines[0][:80], len(lines))
    numbered = [[_NUMBERS.findall(side) for side in pair] for pair in pairs]
    both = [number for number, sides in enumerate(numbered) if all(sides)]
    apart = [number for number in both if set(numbered[number][0]).isdisjoint(numbered[number][1])]
    if len(both) >= _LEAST_LINES and len(apart) > _APART * len(both):
        what = "numbers that differ in a sentence and its translation: are the lines shifted?"
        found.suspect(what, " / ".join(pairs[apart[0]])[:80], len(apart))
    step = max(1, len(pairs) // _SAMPLE)
    mains = []
    for side, name in enumerate(("source", "target")):
        guesses = languages_of([pair[side] for pair in pairs[::step]])
        sure = [(text, language) for text, language, likely in guesses if likely > _SURE]
        counts = collections.Counter(language for _, language, _ in guesses)
        (main, _), *_ = counts.most_common(1) or [("", 0)]
        mains.append(main if sum(language == main for _, language in sure) >= _LEAST_LINES else "")
        others = [(text, language) for text, language in sure if language != main]
        if mains[side] and len(others) > _MIXED * len(guesses):
            text, language = others[0]
            share = f"{len(others)} of {len(guesses)} lines of a sample, such as {text[:60]!r} ({language})"
            found.suspect(f"a {name} in another language than most, {main}", share, len(others))
        if languages and mains[side] and mains[side] != languages[side]:
            found.suspect(f"the {name} seems to be {main}, not {languages[side]}", guesses[0][0][:80])
    if mains[0] and mains[0] == mains[1]:
        found.suspect("source and target seem to be in one language", mains[0])


def languages_of(texts: Sequence[str]) -> list[tuple[str, str, float]]:
    """Returns (text, ISO 639-1 code, its probability) of the texts that are long enough to say their language."""
    identifier = _identifier()
    return [(text, *identifier.classify(text)) for text in texts if len(text) >= _LEAST_CHARACTERS]


@functools.cache
def _identifier() -> Any:
    # Imported late: reading its model takes seconds.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
