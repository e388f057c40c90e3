"""Reads sentence pairs from people's files: two files of lines, or one whose lines have columns."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from common.data import split_names, tables, text_files
from common.data.report import Report
from common.errors import UserError
from common.text import parallel

EMPTY, NO_TAB = "a side is empty", "no tab between a sentence and its translation"
TOO_LONG = "longer than {} characters"
_HEAD = 20  # Lines that show a file's format.
# Formats that are not read, by their first tag or lines.
_FORMATS = (
    (r"<(srcset|refset|tstset|dataset|doc|mteval)\b[^>]*>\s*(<|$)", "a file of WMT (SGM or XML)"),
    (r"<(seg|url|talkid|reviewer)\b[^>]*>.*</\1>", "a file of WMT or IWSLT with tags"),
    (r"<(tmx|xliff|html|text|ts|resources)\b[^>]*>\s*(<|$)", "XML or HTML, such as TMX or XLIFF"),
    (r"\[\s*[\[{]\s*\"|\{\s*\"[^\"\n]*\"\s*:|[\[{]\s*\n\s*[\[{\"]|\[\"[^\n]*\"\]$", "JSON"),
    (r"((#.*)?\n)*(msgctxt .*\n)?msgid \"", "gettext (PO)"),
    (r"(WEBVTT\b.*\n(.*\n)*?.*-->|\d+\s*\n\d+:\d\d.*-->|\[Script Info\]|\{\d+\}\{\d+\})", "subtitles"),
    (r"[^\n\t]* \|\|\| ", "text with ||| between the sides"),
)
# Words in names of columns, besides codes of languages: those of WMT's and Europarl's text, by ISO 639-1.
_TARGETS = {"target", "tgt", "trg", "output", "translation", "translated"}
_COLUMNS = {
    *("source", "src", "input", "original", "sentence", "sentences", "text", "english", "german", "french"),
    *("spanish", "italian", "portuguese", "dutch", "russian", "chinese", "japanese", "hindi"),
    *_TARGETS,
}
LANGUAGES = re.compile(
    "ar|bg|bn|cs|da|de|el|en|es|et|fa|fi|fr|ga|gu|he|hi|hr|hu|is|it|ja|kk|ko|lt|lv|mt|nl|no|pl|ps|pt|ro|ru|sk|sl|sr|"
    "sv|ta|th|tr|uk|vi|zh"
)
EXAMPLES = 5  # Maximum number of lines in the description about pairs left out for one reason.
# A number, a date, or an address.
_NUMBER = re.compile(r"(?=\D*\d)[\d.,:/+-]+(e[+-]?\d+)?|(https?|ftp)://\S+", re.A)
# A name of a file or an id, and its part that tells it from others, which may be hexadecimal.
_ID, _COUNTER = re.compile(r"(?=\D*\d)[\w.,:/\\+-]+", re.A), re.compile(r"[\da-f]+")
_CODE = re.compile(r"([a-z]{2,3}|[A-Z]{2,3})([-_]\w+)?")  # Of a language, as in en, ENG and zh_Hans.
# More equal codes in a column are no sentences; nor are cells that are there as often in so many first lines. Fewer
# lines than the last do not show that the first has names. This project's choice.
_LEAST_CODES, _OFTEN, _MOST_KINDS, _MANY, _LEAST_LINES = 2, 5, 20, 2000, 10
_NAME = re.compile(r"[a-z][\w-]*")  # Of a column; a title has a capital letter.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')  # A cell as CSV quotes it.
# The first or the last line of a cell that has several.
_OPEN = re.compile(r'"(?:[^"\t]|"")*|(?:[^"\t]|"")*"')
# As str.splitlines; a line feed ends a line.
_LINE_ENDS = re.compile("[\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")


def read(paths: Sequence[Path], most: int, report: Report) -> Iterator[parallel.Pair]:
    """Yields the pairs from two files or one file with tabs; the report receives the others."""
    if len(paths) > 2:
        raise UserError(f"{paths[2]}: one file too many; give two text files, or one with tabs")
    parts = {split_names.part_of(split_names.word_of(path.name)) for path in paths}
    if len(parts - {None}) > 1:
        both = " and ".join(map(str, paths))
        raise UserError(f"{both}: by their names different parts of a split; give two files of one")
    for path in paths:
        if path.is_dir():
            raise UserError(f"{path}: a folder; give two text files, or one of sentence, tab, translation")
        markup_kind = markup(path)
        if markup_kind:
            raise UserError(
                f"{path}: {markup_kind}, whose markup is not read; write its sentences, one a line"
            )
    rows = _tabbed(paths[0], report) if len(paths) == 1 else parallel.lines((paths[0], paths[1]))
    head = list(itertools.islice(rows, _HEAD))
    if _are_names(head):
        report.skip("a line of column names", f"{paths[0]}: line {head.pop(0)[0].number}")
    for lines in itertools.chain(head, rows):
        faults = [_fault(line, most) for line in lines]
        bad = next((i for i, fault in enumerate(faults) if fault), None)
        if bad is not None:
            report.leave_out(
                faults[bad], f"{paths[min(bad, len(paths) - 1)]}: line {lines[0].number}", most=EXAMPLES
            )
        elif len(lines) < 2:
            report.leave_out(NO_TAB, f"{paths[0]}: line {lines[0].number}", most=EXAMPLES)
        else:
            yield clean(lines[0].text), clean(lines[1].text)


def markup(path: Path) -> str:
    """Returns the format of a file of sentences with markup, by its first tag or lines; "" for plain text."""
    whole = "\n".join(text_files.first_lines(path, _HEAD)) if str(path) != "-" else ""
    text = re.sub(r"^(\s|<\?xml.*?\?>|<!.*?>)*", "", whole, flags=re.S)
    kinds = (kind for start, kind in _FORMATS if re.match(start, text, re.I | re.M))
    return next(kinds, "XML" if whole.lstrip().startswith("<?xml") else "")


def _are_names(rows: Sequence[Sequence[text_files.Line]]) -> bool:
    """Whether the first line has single words, and all others have several."""
    first, *others = [[(line.text or "").strip() for line in row] for row in rows] or [[]]
    several = all(" " in cell for cells in others for cell in cells if cell)
    return len(rows) >= _LEAST_LINES and len(first) == 2 and several and all(map(_NAME.fullmatch, first))


def _tabbed(path: Path, report: Report) -> Iterator[list[text_files.Line]]:
    """Yields the two sides of each line; one if it has no tab. `_are_sentences` tells the columns."""
    lines = _rows(path)
    head = list(itertools.islice(lines, _HEAD))
    filled = [(line, cells) for line, cells in head if line.text and line.text.strip()]
    rows = [cells for _, cells in filled]
    widths = Counter(len(row) for row in rows if len(row) > 1)
    width = max(widths, key=lambda width: (widths[width], -width), default=2)
    sentence_columns = _sentence_columns(rows)
    sign = "comma" if path.suffix.lower() == ".csv" else "tab"
    if sentence_columns:
        wider = Counter(len(row) for row in rows[1:] if any(map(str.strip, row[len(rows[0]) :])))
        # R writes rows' numbers, and people write notes, in a column without a name.
        shifted = sign == "tab" and wider.total() > len(rows[1:]) / 2
        width = wider.most_common(1)[0][0] if shifted else len(rows[0])
        sentence_columns = [] if shifted else sentence_columns
        head.remove(filled[0])
        report.skip("a line of column names", f"{path}: line {filled[0][0].number}")
    columns = [list(_filled(rows[1:] or rows, n)) for n in range(width)]
    for n, cells in enumerate(columns):
        if width > 2 and not cells:  # Its sentences may begin further on.
            later = (row for _, row in _rows(path) if row != rows[0])
            columns[n] = list(itertools.islice(_filled(later, n), _HEAD))
    texts = [
        n for n in sentence_columns or range(width) if _are_sentences(columns[n], bool(sentence_columns))
    ]
    if len(texts) == 1 and sum(map(bool, columns)) > 1:
        what = f"only column {texts[0] + 1} of {width} has sentences"
        if not sentence_columns and texts[0] > 1:
            raise UserError(f"{path}: {what}; give a file of sentence, tab, translation")
        report.suspect(f"{what}, the other ids or numbers, taken as such", str(path))
    if len(texts) > 2 and not sentence_columns:
        texts = _varied(path, texts, report)
    first, second = (texts if len(texts) > 1 else sentence_columns or range(2))[:2]
    if width > 2:
        report.skip(
            f"columns of a line besides {first + 1} and {second + 1}, which are read", str(path), width - 2
        )
    quoted = len(rows) > 1 and all(_QUOTED.fullmatch(cell.strip()) for row in rows for cell in row)
    for line, cells in itertools.chain(head, lines):
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        if len(cells) > width:
            what = f"more columns than {'the line of names' if sentence_columns else 'most lines'}, {width}; "
            what += f"a {sign} inside of a sentence?{' put it in quotes' * (sign == 'comma')}"
            report.leave_out(what, f"{path}: line {line.number}", most=EXAMPLES)
            continue
        sides = [cells[n] for n in (first, second) if n < len(cells)] if len(cells) > 1 else [line.text]
        for number, side in enumerate(sides):
            if side and _QUOTED.fullmatch(side.strip()) and (quoted or '""' in side.strip()[1:-1]):
                report.change("quotes around a cell, undone", f"{path}: line {line.number}")
                sides[number] = side.strip()[1:-1].replace('""', '"')
        yield [dataclasses.replace(line, text=side) for side in sides]


def _varied(path: Path, columns: list[int], report: Report) -> list[int]:
    """Returns those of more than two columns that are no parts or kinds of text, such as train; or all."""
    rows = [row for _, row in itertools.islice(_rows(path), _MANY)]
    cells = {n: [_COUNTER.sub("0", cell) for cell in _filled(rows, n)] for n in columns}
    varied = [n for n in columns if len({*cells[n]}) > min(len(cells[n]) / _OFTEN, _MOST_KINDS)]
    if len(varied) < 2 or varied[:2] == columns[:2]:
        return columns
    what = f"columns {varied[0] + 1} and {varied[1] + 1} read, as one before them repeats few words"
    report.suspect(what, f"{path}: {rows[0][columns[0]]}")
    return varied


def _sentence_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns the columns of the sentences, the source's first, if the first row names them; [] otherwise."""
    sides: dict[int, set[str]] = {}
    for column, cell in enumerate(rows[0] if rows else ()):
        words = re.split(r"[ _.-]", cell.strip(' "').lower())
        is_name = all(word in _COLUMNS or LANGUAGES.fullmatch(word) for word in words)
        is_name = (
            is_name or words == ["id"] and len(rows[0]) == 2
        )  # Indonesian; among more, an example's number.
        if is_name and (len(words) == 1 or not _COLUMNS.isdisjoint(words)):
            sides[column] = set(words)
        elif len(words) > 1 and " " in cell.strip():  # No name, but a sentence.
            return []
    # Codes of languages above single words may be words themselves, such as it and es.
    sure = not _COLUMNS.isdisjoint(set().union(*sides.values())) or any(
        re.search(r"\s", cell) for row in rows[1:] for cell in row
    )
    if len(sides) < 2 or not sure or len({*rows[0]}) < len(rows[0]):
        return []
    return sorted(sides, key=lambda column: not _TARGETS.isdisjoint(sides[column]))


def _are_sentences(cells: Sequence[str], has_name: bool) -> bool:
    """Whether filled cells may be sentences: there are some, not all numbers or addresses, not one language's code.

    Without the column's name, they are also no ids: all distinct, and alike but for numbers.
    """
    codes = len(cells) > _LEAST_CODES and len({*cells}) == 1 and _CODE.fullmatch(cells[0])
    alike = 1 < len(cells) == len({*cells}) and len({_COUNTER.sub("0", cell) for cell in cells}) == 1
    ids = not has_name and alike and all(map(_ID.fullmatch, cells))
    return not codes and not ids and not all(map(_NUMBER.fullmatch, cells))


def _filled(rows: Iterable[Sequence[str]], column: int) -> Iterator[str]:
    return (cell for row in rows if len(row) > column and (cell := row[column].strip()))


def _rows(path: Path) -> Iterator[tuple[text_files.Line, list[str]]]:
    """Yields each line and its cells, [] for one that is not text.

    A file *.csv has CSV's quotes and separators, but if each of its first lines has a tab, it is read as others are. In
    these, quotes count if a cell of the first lines seems to have several lines, and all quotes are right.
    """
    head = [line for line in text_files.first_lines(path, _HEAD) if line.strip()]
    tabs = ["\t" in line for line in head]
    several = any(tabs) and any(map(_OPEN.fullmatch, head))
    table = tables.cells(path) if path.suffix.lower() == ".csv" and not all(tabs) else None
    if several:
        with contextlib.suppress(UserError):
            table = iter(list(tables.cells(path, "\t")))
    if table:
        for number, cells in table:
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
        odd = len(_LINE_ENDS.findall(line.text)) > _HEAD
        return TOO_LONG.format(most) + "; it has U+2028, U+0085 or the like; end lines with line feeds" * odd
    # Characters without width, as of a byte-order mark, are no sentence.
    return "" if any(letter.isprintable() and not letter.isspace() for letter in line.text) else EMPTY


def clean(text: str | None) -> str:
    """Returns a sentence without byte-order marks, blanks around it, and what some readers take for a line's end."""
    return _LINE_ENDS.sub(" ", str(text).strip("\ufeff")).strip()
