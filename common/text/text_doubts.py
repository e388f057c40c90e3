"""Finds what looks wrong in text: markup, text decoded twice, subwords, another language. TensorFlow-free."""

import collections
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from common.data.report import Report
from common.text.parallel import Pair

# Part of the lines from which a kind is suspicious, and part of those that say their language that are in others.
# Both are this project's choice, as are the bounds of the sample.
_RARE, _MIXED = 0.0005, 0.1
_SAMPLE, _LEAST_LINES, _LEAST_CHARACTERS = 500, 10, 20
_SURE = 0.9  # Probability from which a line says its language; of Multi30k's captions, none says a wrong one.
# Languages whose texts hardly ever lack letters beyond ASCII.
_ACCENTED = re.compile("cs|da|de|es|et|fi|fr|hr|hu|is|it|lt|lv|no|pl|pt|ro|sk|sl|sv|tr|vi")
_NUMBERS = re.compile(r"\d+")
# Part of the pairs with numbers on both sides, that begin with one word on both sides, or that have one sentence. These
# and the next three are this project's choice.
_APART, _KEYED, _OFTEN = 0.5, 0.5, 0.05
# Lengths that vary less than this, by standard deviation over mean, tell nothing; those of translations correlate more.
_VARIED, _RELATED, _LEAST_PAIRS = 0.2, 0.3, 50
# Pairs of a block, the most blocks of a text, the distance to another pair, and the part of the pairs whose own sides
# fit better than those of two: 0.8 to 0.97 in Multi30k and newstest2014, 0.5 to 0.6 if their lines are shifted.
_BLOCK, _BLOCKS, _LEAST_BLOCKS, _FAR, _FITTING, _BEGIN = 200, 5, 3, 7, 0.67, 400  # _BEGIN in characters.
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u9fff]|[^\W\u0e00-\u0eff\u3040-\u9fff]+")
_NUMBERED = re.compile(r"\s*[(\[]?(\d+)[.):\]\t]+\s*\D")
_FIRST_WORD = re.compile(r"[\s\"]*([^\s=:\"]+)")
_DIVIDED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Burmese and Khmer: U+200B divides words.
_RIGHT = "[\u0590-\u08ff]"  # Hebrew, Arabic and others from right to left.
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


_IN_TEXT: dict[str, Callable[[str], Any]] = {
    "an escaped character, such as &quot; of HTML or Moses": _with(r"&(#\d+|#x[0-9A-Fa-f]+|[A-Za-z]{2,8});"),
    "text cut into subwords already (\u2581, @@, ##, \u0120, </w>)": _with(
        r"\u2581|@@( |$)|(^| )##\w|(\u0120\S+ +){2}\u0120|</w>"
    ),
    "text decoded twice, such as \u00c3\u00bc for \u00fc": _decoded_twice,
    "a character that was lost (\ufffd)": _with("\ufffd"),
    "a control character, as of Windows-1252 read as Latin-1": _with(
        "[\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
    ),
}
_IN_SENTENCES: dict[str, Callable[[str], Any]] = {
    "a tag of HTML or XML": _with(r"</?[A-Za-z][A-Za-z0-9]*(\s[^<>]*)?/?>"),
    "markup of a wiki": _with(r"\[\[[^\]]+\]\]|'{3}"),
    "an escape of a program, such as \\n or \\u00e9": _with(r"\\([nrt]\b|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})"),
    "an escape of mail or the web, such as =C3=A9": _with(
        r"=[0-9A-F]{2}=[0-9A-F]{2}|%[0-9A-F]{2}\w*%[0-9A-F]{2}"
    ),
    "a question mark in a word, as of a lost letter": _with(r"\?[a-zß-ÿ](?<=[A-Za-zß-ÿ]..)(?!\w*=)"),
    "a mark for a network, such as [CLS], >>deu<< or a task's name": _with(
        r"\[(CLS|SEP|PAD|MASK|UNK)\]|>>\w{2,8}<<|<2\w\w>|__[a-z]{2,3}__|translate \w+ to \w+:"
    ),
    "a mark of the direction of writing": _with(f"^(?!.*{_RIGHT}).*[\u200e\u200f\u202a-\u202e\u2066-\u2069]"),
    "no-break spaces in place of blanks": _with(r"\u00a0[^\W\d]+\u00a0[^\W\d]{2,}\u00a0"),
    "text whose hyphens are split off already (@-@)": _with(r" @-@ "),
    "words with their parts of speech or other factors": _with(r"(\S+[|_][A-Z]{2,5}\b\S* +){2}"),
    "a character without width, as of web pages": _with(f"^(?!.*{_DIVIDED}).*\u200b|[\u2060\ufeff\u00ad]"),
    "a sentence in quotes with doubled ones, as in a CSV": _with(r'^".*"".*"$'),
    "a tab in a sentence: has the file columns?": _with("\t"),
    "a word that tables have for an empty cell": _with(
        r"^\s*\(?_*(nan|NaN|null|NULL|None|#?N/A|<NA>|#(NAME|VALUE|REF|ERROR)[?!])_*\)?\s*$"
    ),
    "numbers alone, without a word": _with(r"^\s*\d+(\s+\d+){3,}\s*$"),
}


def report_lines(
    lines: Sequence[str], findings: Report, kinds: Mapping[str, Callable[[str], Any]] = _IN_TEXT
) -> None:
    """Notes what looks wrong in lines of text."""
    for what, holds in kinds.items():
        wrong = [line for line in lines if holds(line)]
        if len(wrong) > _RARE * len(lines):
            findings.suspect(what, wrong[0][:80], len(wrong))


def _report_apart(pairs: Sequence[Pair], findings: Report) -> None:
    """Notes a block of pairs whose targets fit other sources as well as their own.

    The correlation of words on the two sides of every second pair shows how well the sides of the others fit.
    """
    if len(pairs) < _LEAST_BLOCKS * _BLOCK:
        return
    blocks = min(_BLOCKS, len(pairs) // _BLOCK)
    starts = np.linspace(0, len(pairs) - _BLOCK, blocks).astype(int)
    sample = [pair for start in starts for pair in pairs[start : start + _BLOCK]]
    sources, targets = (_words_of([pair[side] for pair in sample]) for side in (0, 1))
    (source, target), others = (sources[::2], targets[::2]), targets[1::2]
    both = (source - source.mean(0)).T @ (target - target.mean(0))
    marks = sources[1::2] @ (both / np.sqrt(np.outer(source.sum(0), target.sum(0))))
    fits = [(marks * one).sum(1) / np.sqrt(one.sum(1) + 1) for one in (others, np.roll(others, _FAR, 0))]
    for n, better in enumerate(np.split(np.sign(fits[0] - fits[1]), blocks)):
        decided = np.count_nonzero(better)
        if decided > _LEAST_PAIRS and (better > 0).sum() < _FITTING * decided:
            what = "words of sources that go with other targets as well as with their own: are the lines shifted?"
            findings.suspect(what, " / ".join(sample[n * _BLOCK])[:80], _BLOCK)


def _words_of(texts: Sequence[str]) -> np.ndarray:
    """Returns which text has which word, float32 [texts, words], of words that two of every second text have."""
    words = [{*_WORD.findall(text[:_BEGIN].lower())} for text in texts]
    counts = collections.Counter(word for some in words[::2] for word in some)
    numbers = {word: n for n, word in enumerate(sorted(word for word in counts if counts[word] > 1))}
    present = np.zeros([len(texts), len(numbers)], np.float32)
    for row, some in zip(present, words):
        row[[numbers[word] for word in some if word in numbers]] = 1
    return present


def _report_pairs(pairs: Sequence[Pair], findings: Report) -> None:
    """Notes keys before the sentences, one sentence in many pairs, and sides that do not belong together."""
    firsts = [[_FIRST_WORD.match(side) for side in pair] for pair in pairs]
    beginnings = {
        "a key or number that begins both sides": [a[1] for a, b in firsts if a and b and a[1] == b[1]]
    }
    _report_apart(pairs, findings)
    for side, name in enumerate(("source", "target")):
        numbered = [_NUMBERED.match(pair[side]) for pair in pairs]
        beginnings[f"a number that begins the {name}"] = [match[1] for match in numbered if match]
        of_one = collections.defaultdict(set)
        for pair in pairs:
            of_one[pair[side]].add(pair[1 - side])
        text, others = max(of_one.items(), key=lambda item: len(item[1]))
        if len(others) > max(_LEAST_LINES, _OFTEN * len(pairs)):
            findings.suspect(f"one {name} with many translations", text[:80], len(others))
    for what, keys in beginnings.items():
        if len(keys) > _KEYED * len(pairs) and len({*keys}) > _KEYED * len(keys) > _LEAST_LINES:
            findings.suspect(f"{what}, trained on", keys[0][:80], len(keys))
    lengths = np.array([[len(side) for side in pair] for pair in pairs], float)
    varied = lengths.std(0) > _VARIED * lengths.mean(0)
    if len(pairs) >= _LEAST_PAIRS and varied.all() and np.corrcoef(np.log(lengths).T)[0, 1] < _RELATED:
        what = "lengths of the two sides that have nothing to do with each other: are the lines shifted?"
        findings.suspect(what, " / ".join(pairs[0])[:80], len(pairs))


def report(
    pairs: Sequence[Pair], languages: Sequence[str], findings: Report, where: str = ""
) -> tuple[str, ...]:
    """Notes what looks wrong in pairs; returns the languages that they seem to have, "" for one that is not clear.

    Args:
      languages: codes of source and target, if they are known; empty otherwise.
      where: ends the name of a side in a line, such as " to evaluate on".
    """
    report_lines([side for pair in pairs for side in pair], findings, {**_IN_TEXT, **_IN_SENTENCES})
    _report_pairs(pairs, findings)
    numbered = [[_NUMBERS.findall(side) for side in pair] for pair in pairs]
    both = [number for number, sides in enumerate(numbered) if all(sides)]
    apart = [number for number in both if set(numbered[number][0]).isdisjoint(numbered[number][1])]
    if len(both) >= _LEAST_LINES and len(apart) > _APART * len(both):
        what = "numbers that differ in a sentence and its translation: are the lines shifted?"
        findings.suspect(what, " / ".join(pairs[apart[0]])[:80], len(apart))
    sample = pairs[:: max(1, len(pairs) // _SAMPLE)]
    mains, sure = [], []
    for side, name in enumerate(("source", "target")):
        texts = [pair[side] if len(pair[side]) >= _LEAST_CHARACTERS else "" for pair in sample]
        guesses = [_identifier().classify(text) if text else ("", 0) for text in texts]
        sure.append([language if likely > _SURE else "" for language, likely in guesses])
        counts = collections.Counter(language for language, _ in guesses if language)
        (main, _), *_ = counts.most_common(1) or [("", 0)]
        mains.append(main if sure[side].count(main) >= _LEAST_LINES else "")
        others = [(text, language) for text, language in zip(texts, sure[side]) if language not in ("", main)]
        if mains[side] and len(others) > _MIXED * counts.total():
            text, language = others[0]
            share = f"{len(others)} of {counts.total()} lines of a sample, such as {text[:60]!r} ({language})"
            findings.suspect(f"a {name} in another language than most, {main}", share, len(others))
        code = languages[side] if languages else ""
        if code and mains[side] and mains[side] != code:
            findings.suspect(
                f"the {name}{where} seems to be {main}, not {code}", next(filter(None, texts))[:80]
            )
        plain = all(pair[side].isascii() for pair in pairs)
        if _ACCENTED.fullmatch(mains[side]) and plain and len(pairs) >= _LEAST_PAIRS:
            what = f"no letter of the {name} has an accent, as {main} has: were they lost?"
            findings.suspect(what, sample[0][side][:80], len(pairs))
    swapped = [pair for pair, *both in zip(sample, *sure) if all(both) and both == mains[::-1] != mains]
    if len(swapped) > 1:
        findings.suspect("source and target swapped", " / ".join(swapped[0])[:80], len(swapped))
    if mains[0] and mains[0] == mains[1]:
        findings.suspect("source and target seem to be in one language", mains[0])
    return tuple(mains)


@functools.cache
def _identifier() -> Any:
    """Returns what classifies a text as (ISO 639-1 code, its probability)."""
    # Imported late: reading its model takes seconds.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
