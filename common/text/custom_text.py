"""Reads a user's parallel text for Transformer and GNMT: two files, or one file of sentence, tab, translation."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from common.data import baselines, given_splits, near_copies, tables, text_files
from common.data.folder_conversion import Options
from common.data.report import Report
from common.errors import UserError, counted
from common.text import parallel, subwords, text_doubts
from common.text.conversion import Text
from common.untrusted import parsed

MOST_HELD = 3000  # Maximum number of held-out pairs; WMT's newstest2014 has 3,003.
# (Text size limit in bytes, number of merges or subwords), following the presets cpu-multi30k (29,000 pairs).
_VOCABULARIES = ((200_000, 1000), (2_000_000, 4000), (50_000_000, 8000))
SHARD_BYTES = 16 << 20  # Of text.
# Maximum characters of a side, and for each token that --max_length allows: longer pairs are left out before the
# vocabulary is learned, which takes memory by the square of a word's length. Subwords have 5 characters on average.
MOST_CHARACTERS, _TOKEN_CHARACTERS = 10_000, 40
# Part of the pairs; names, numbers and the like are their own translation. This project's choice.
_MOST_SAME = 0.05
EMPTY, NO_TAB = "a side is empty", "no tab between a sentence and its translation"
TOO_LONG = "longer than {} characters"
_HEAD = 20  # Lines that show a file's format.
# Formats that are not read, by their first tag or lines.
_FORMATS = (
    (r"<(srcset|refset|tstset|dataset|doc|mteval)\b[^>]*>\s*(<|$)", "a file of WMT (SGM or XML)"),
    (r"<(seg|url|talkid|reviewer)\b[^>]*>.*</\1>", "a file of WMT or IWSLT with tags"),
    (r"<(tmx|xliff|html|text|ts)\b[^>]*>\s*(<|$)", "XML or HTML, such as TMX or XLIFF"),
    (r"[\[{]\s*\n\s*[\[{\"]", "JSON"),
    (r"(#.*\n)*msgid \"", "gettext (PO)"),
    (r"(WEBVTT\b.*\n(.*\n)*?.*-->|\d+\s*\n\d+:\d\d.*-->)", "subtitles"),
    (r"[^\n\t]* \|\|\| ", "text with ||| between the sides"),
)
# Names of columns, besides codes of languages: those of WMT's and Europarl's text, by ISO 639-1.
_COLUMNS = {
    *("source", "target", "src", "tgt", "trg", "input", "output"),
    *("sentence", "translation", "english", "german", "id", "score"),
}
_LANGUAGES = re.compile(
    "ar|bg|bn|cs|da|de|el|en|es|et|fa|fi|fr|ga|gu|he|hi|hr|hu|is|it|ja|kk|ko|lt|lv|mt|nl|no|pl|ps|pt|ro|ru|sk|sl|sr|"
    "sv|ta|th|tr|uk|vi|zh"
)
_EXAMPLES = 5  # Maximum number of lines in the description about pairs left out for one reason.
_NUMBER = re.compile(r"-?\d+([.,]\d+)?(e-?\d+)?")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')  # A cell as CSV quotes it.
# As str.splitlines; a line feed ends a line.
_LINE_ENDS = re.compile("[\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Parallel text that is ready to convert.

    Attributes:
      train, held: files with one sentence per line.
      sizes: number of pairs in each.
      words: maximum number of words in a side of a training pair; see `word_count`.
      bytes: size of the training text.
      report: has the pairs that were left out.
    """

    train: Text
    held: Text
    sizes: tuple[int, int]
    words: int
    bytes: int
    report: Report


@contextlib.contextmanager
def prepared(sources: Sequence[Path], options: Options) -> Iterator[Pairs]:
    """Yields the sound pairs in temporary files, split by seed unless `options.eval_sources` is given.

    Pairs of one source sentence stay on one side of the split, so that no evaluation sentence is trained on.

    Raises UserError if a file cannot be read, the sides do not match, or no pair is left.
    """
    report = options.report
    most = max(MOST_CHARACTERS, _TOKEN_CHARACTERS * options.max_length)
    pairs = list(_read(sources, most, report))
    held = list(_read(options.eval_sources, most, report)) if options.eval_sources else None
    for reason, one in report.left_out.items():
        if one.count > _EXAMPLES:
            report.lines.append(f"{counted(one.count - _EXAMPLES, 'more line')}: {reason}")
    _check(pairs, sources, report)
    if held is None:
        pairs, held = _divided(pairs, sources, options)
    else:
        _check(held, options.eval_sources, report)
        known = {text_files.normal(source).casefold() for source, _ in pairs}
        both = [source for source, _ in held if text_files.normal(source).casefold() in known]
        if both:
            report.suspect("the same sentence to train and to evaluate on", both[0][:80], len(both))
    text_doubts.report([*pairs, *held], languages(sources, options), report)
    same = [source for source, target in pairs if source == target]
    if len(same) > _MOST_SAME * len(pairs):
        report.suspect("a sentence that is its own translation", same[0][:80], len(same))
    words = np.array([word_count(text) for pair in pairs for text in pair])
    with tempfile.TemporaryDirectory(prefix="timetotrain-text-") as scratch:
        texts = [_written(Path(scratch), name, part) for name, part in (("train", pairs), ("eval", held))]
        yield Pairs(
            *texts,
            (len(pairs), len(held)),
            int(words.max()),
            sum(len(side.encode()) for pair in pairs for side in pair),
            options.report,
        )


def languages(sources: Sequence[Path], options: Options) -> tuple[str, str] | tuple[()]:
    """Returns the codes that the user gives, or the files' suffixes, as in train.en and train.de; else ()."""
    if options.languages:
        options.report.choose("languages", " ".join(options.languages), "--languages")
        return options.languages
    found = [path.name.removesuffix(".gz").rpartition(".")[2].lower() for path in sources]
    if len(found) != 2 or not all(map(_LANGUAGES.fullmatch, found)):
        return ()
    options.report.choose("languages", " ".join(found), "the files' names")
    return found[0], found[1]


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


def _read(paths: Sequence[Path], most: int, report: Report) -> Iterator[parallel.Pair]:
    """Yields the pairs from two files or one file with tabs; the report receives the others."""
    if len(paths) > 2:
        raise UserError(f"{paths[2]}: one file too many; give two text files, or one with tabs")
    for path in paths:
        if path.is_dir():
            raise UserError(f"{path}: a folder; give two text files, or one of sentence, tab, translation")
        markup = _markup(path)
        if markup:
            raise UserError(f"{path}: {markup}, whose markup is not read; write its sentences, one a line")
    rows = _tabbed(paths[0], report) if len(paths) == 1 else parallel.lines((paths[0], paths[1]))
    for lines in rows:
        faults = [_fault(line, most) for line in lines]
        bad = next((i for i, fault in enumerate(faults) if fault), None)
        if bad is not None:
            report.leave_out(
                faults[bad], f"{paths[min(bad, len(paths) - 1)]}: line {lines[0].number}", most=_EXAMPLES
            )
        elif len(lines) < 2:
            report.leave_out(NO_TAB, f"{paths[0]}: line {lines[0].number}", most=_EXAMPLES)
        else:
            yield _clean(lines[0].text), _clean(lines[1].text)


def _markup(path: Path) -> str:
    """Returns the format of a file of sentences with markup, by its first tag or lines; "" for plain text."""
    head = itertools.islice(text_files.lines(path), _HEAD) if str(path) != "-" else ()
    text = "\n".join(line.text or "" for line in head)
    text = re.sub(r"^(\s|\ufeff|<\?xml.*?\?>|<!.*?>)*", "", text, flags=re.S)
    with contextlib.suppress(ValueError):
        if all(isinstance(parsed(line), dict | list) for line in text.split("\n") if line.strip()) and text:
            return "JSON"
    return next((kind for start, kind in _FORMATS if re.match(start, text, re.I | re.M)), "")


def _tabbed(path: Path, report: Report) -> Iterator[list[text_files.Line]]:
    """Yields the two sides of each line; one if it has no tab. Columns of numbers below the first are no sentences."""
    lines = _rows(path)
    head = list(itertools.islice(lines, _HEAD))
    filled = [(line, cells) for line, cells in head if line.text and line.text.strip()]
    rows = [cells for _, cells in filled]
    widths = Counter(len(row) for row in rows if len(row) > 1)
    width = max(widths, key=lambda width: (widths[width], -width), default=2)
    columns = [[row[n].strip() for row in rows[1:] or rows if len(row) > n] for n in range(width)]
    texts = [n for n, cells in enumerate(columns) if not all(map(_NUMBER.fullmatch, cells))]
    first, second = (texts if len(texts) > 1 else range(2))[:2]
    if width > 2:
        report.skip(
            f"columns of a line besides {first + 1} and {second + 1}, which are read", str(path), width - 2
        )
    names = {cell.strip(' "').lower() for cell in rows[0]} if rows else set()
    # Codes of languages above single words may be words themselves, such as it and es.
    sure = names & _COLUMNS or any(" " in line.text for line, _ in filled[1:])
    if sure and 1 < len(names) == len(rows[0]) and all(map(_LANGUAGES.fullmatch, names - _COLUMNS)):
        head.remove(filled[0])
        report.skip("a line of column names", f"{path}: line {filled[0][0].number}")
    quoted = len(rows) > 1 and all(_QUOTED.fullmatch(cell.strip()) for row in rows for cell in row)
    for line, cells in itertools.chain(head, lines):
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        if len(cells) > width:
            what = f"more columns than most lines, {width}; a tab inside of a sentence?"
            report.leave_out(what, f"{path}: line {line.number}", most=_EXAMPLES)
            continue
        sides = [cells[n] for n in (first, second) if n < len(cells)] if len(cells) > 1 else [line.text]
        for number, side in enumerate(sides):
            if side and _QUOTED.fullmatch(side.strip()) and (quoted or '""' in side.strip()[1:-1]):
                report.change("quotes around a cell, undone", f"{path}: line {line.number}")
                sides[number] = side.strip()[1:-1].replace('""', '"')
        yield [dataclasses.replace(line, text=side) for side in sides]


def _rows(path: Path) -> Iterator[tuple[text_files.Line, list[str]]]:
    """Yields each line and its cells, [] for one that is not text; a file *.csv has CSV's quotes and separators."""
    if path.suffix.lower() == ".csv":
        for number, cells in tables.cells(path):
            yield text_files.Line(number, "\t".join(cells)), cells
        return
    for line in text_files.lines(path):
        yield line, line.text.split("\t") if line.text is not None else []


def _fault(line: text_files.Line, most: int) -> str:
    """Returns why a side cannot be used, or ""."""
    if line.text is None:
        hint = f"; {text_files.SAVE}" if line.fault == text_files.NOT_UTF8 else ""
        return line.fault + hint
    if "\0" in line.text:
        return text_files.NUL
    if len(line.text) > most:
        return TOO_LONG.format(most)
    # Characters without width, as of a byte-order mark, are no sentence.
    return "" if any(letter.isprintable() and not letter.isspace() for letter in line.text) else EMPTY


def _clean(text: str | None) -> str:
    """Returns a sentence without byte-order marks and without characters that some readers take for a line's end."""
    return _LINE_ENDS.sub(" ", str(text).strip("\ufeff"))


def _divided(pairs: list[parallel.Pair], paths: Sequence[Path], options: Options) -> tuple[list, list]:
    distinct = sorted(set(pairs))
    if len(distinct) < 2:
        fix = "give more to hold some out, or name others with --eval"
        raise UserError(f"{paths[0]}: one sentence pair only; {fix}")
    options = dataclasses.replace(options, eval_part=min(options.eval_part, MOST_HELD / len(distinct)))
    sources = (text_files.normal(source).casefold() for source, _ in distinct)
    groups = [str(n) for n in near_copies.joined(len(distinct), near_copies.same_names(list(sources)))]
    _, held = given_splits.own_split(distinct, ["all"] * len(distinct), groups, options, "the sentences")
    order = np.random.default_rng([options.seed, 1]).permutation(len(held))
    out = set(held)
    return [pair for pair in pairs if pair not in out], [held[i] for i in order]


def _written(folder: Path, name: str, pairs: Sequence[parallel.Pair]) -> Text:
    paths = [folder / f"{name}.{side}" for side in ("source", "target")]
    for column, path in enumerate(paths):
        path.write_text("".join(f"{pair[column]}\n" for pair in pairs), encoding="utf-8", newline="\n")
    return Text([paths[0]], [paths[1]])


def baseline(
    pairs: Pairs, sources: Path, references: Path, score: Callable[[Sequence[str], Sequence[str]], float]
) -> tuple[float, str]:
    """Returns the BLEU, from 0 to 1, of an answer without a network to the sentences to evaluate on.

    `score` maps (references, hypotheses) to BLEU from 0 to 100.
    """
    held = list(parallel.read_pairs(sources, references))
    return baselines.nearest(pairs.train.pairs(), held, score)


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
