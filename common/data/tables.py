"""Reads CSV files that list examples: a column of paths, one of labels and perhaps one of splits. TensorFlow-free.

The separator is a comma, semicolon, tab or bar, whichever the first line has most. Columns may have any usual name, in
any case. A file without a line of column names has the path first, then the label. A file *.jsonl has a JSON object a
line instead, a file *.json a list of them.
"""

import collections
import csv
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from common.data import split_names, text_files
from common.data.partners import Partners, plain
from common.data.report import Report
from common.errors import UserError
from common.untrusted import parsed

# Names of columns as people and tools write them: pandas, Excel, Hugging Face's `file_name`, Kaggle's `image`.
NAMES = {
    "path": (
        *("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path"),
        *("video", "video_path", "video_name", "clip"),
    ),
    "label": ("label", "labels", "class", "class_name", "category", "label_name", "target"),
    "split": ("split", "set", "subset", "partition", "dataset"),
    "group": ("group", "group_id", "patient", "patient_id", "subject", "subject_id", "film", "scene"),
}
_YES, _NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
# Columns that often hold a split in words of their own.
_MAYBE_SPLIT = {"fold", "folds", "kfold", "phase", "usage", "mode", "stage", *NAMES["split"]} - {"dataset"}
csv.field_size_limit(text_files.MOST_LINE)  # A column that is not read may hold long notes.
_SEPARATORS = ",;\t|"
_SHOWN = 6  # Columns in a message.
_JSON_LINES = (".jsonl", ".ndjson")


@dataclasses.dataclass(frozen=True)
class Table:
    """A CSV file's rows.

    Attributes:
      path: the file.
      columns: the columns' names, in lower case.
      rows: {column: cell} of each row, without spaces at the ends.
      numbers: the line of the file at which each row ends.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, str]]
    numbers: Sequence[int]

    def column(self, kind: str) -> str | None:
        """Returns the name of the column for "path", "label", "split" or "group"; None if there is none.

        A column with a split's name counts only if a cell names a split: others hold a data set's or a group's name. A
        column of another name counts if all its cells name splits, both for training and for evaluation.
        """

        def parts(name: str) -> Iterator[int | None]:
            return (split_names.part_of(split_of(name, row[name])) for row in self.rows)

        names = [name for name in NAMES[kind] if name in self.columns]
        if kind == "split":
            names = [name for name in names if name == "split" or set(parts(name)) != {None}]
            others = () if names else set(self.columns).difference(*NAMES.values())
            words = (name for name in self.columns if name in others and None not in parts(name))
            names += [name for name in words if set(parts(name)) == {0, 1}]
        return next(iter(names), None)


def split_of(column: str, cell: str) -> str:
    """Returns the split, in lower case, that a cell names; 1 in a column is_valid is "valid", 0 is "train"."""
    word, text = column.removeprefix("is_"), text_files.normal(cell).lower()
    if word == column or split_names.part_of(word) is None or text not in (*_YES, *_NO):
        return text
    return word if text in _YES else ("val", "train")[split_names.part_of(word)]


@dataclasses.dataclass(frozen=True)
class Example:
    """A row: a file, its class, its split in lower case and its group; "" without such a column."""

    path: Path
    label: str
    split: str
    line: int
    group: str = ""


def read(path: str | os.PathLike) -> Table:
    """Reads a CSV file.

    Raises UserError if the file cannot be read, or a row has not the header's cells; the message names file and line.
    """
    path = Path(path)
    lines = text_files.read(path)
    if path.suffix.lower() in _JSON_LINES:
        filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        values = ((number, _value(path, f"line {number}: ", line)) for number, line in filled)
        return _of_objects(path, values)
    if path.suffix.lower() == ".json":
        return _of_list(path, "\n".join(lines))
    head, separator = _head(lines)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    for _ in range(head):
        next(reader)
    rows, numbers = [], []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                rows.append(cells)
                numbers.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; correct the quotes there") from error
    if not rows:
        raise UserError(f"{path}: no rows; expected path,label and lines of them")
    columns = tuple(map(_column, rows[0]))
    first = rows[0][0]
    if len(rows[0]) in (2, 3) and any(os.path.isfile(located(first, base)) for base in bases(path)):
        columns = ("path", "label", "split")[: len(rows[0])]
    else:
        rows, numbers = rows[1:], numbers[1:]
    if not rows:
        raise UserError(f"{path}: no rows below the line of column names; add an example a line")
    return Table(path, columns, [_row(path, columns, *row) for row in zip(rows, numbers)], numbers)


def _head(lines: Sequence[str]) -> tuple[int, str]:
    """Returns (the number of lines before the first row, the separator).

    Excel reads and writes a first line such as "sep=;", and people write lines of comment.
    """
    for number, line in enumerate(lines):
        text = line.strip()
        if text.lower().startswith("sep=") and len(text) == 5:
            return number + 1, text[-1]
        if text and not (text.startswith("#") and not any(sign in text for sign in _SEPARATORS)):
            separator = max(_SEPARATORS, key=lambda sign: (line.count(sign), -_SEPARATORS.index(sign)))
            return number, separator
    return 0, ","


def _column(cell: str) -> str:
    """Returns a column's name in one spelling: "File Name" is "file_name"."""
    return text_files.normal(cell).lower().replace(" ", "_").replace("-", "_")


def _of_list(path: Path, text: str) -> Table:
    """Returns the table of a JSON list of objects, as pandas writes it."""
    values = _value(path, "", text)
    if not isinstance(values, list):
        raise UserError(f"{path}: not a JSON list of objects with path and label; write one, or a CSV file")
    return _of_objects(path, enumerate(values, 1))


def _value(path: Path, place: str, text: str) -> object:
    try:
        return parsed(text)
    except ValueError as error:
        raise UserError(f"{path}: {place}no JSON ({error}); correct it") from error


def _of_objects(path: Path, numbered: Iterable[tuple[int, object]]) -> Table:
    """Returns the table of (number for messages, JSON object) pairs."""
    rows, numbers, several = [], [], {}
    for number, values in numbered:
        if not isinstance(values, dict):
            raise UserError(f"{path}: line {number}: no JSON object; write one a line")
        plain = {k: str(v).lower() if isinstance(v, bool) else v for k, v in values.items()}
        several = {_column(k): number for k, v in plain.items() if isinstance(v, list | dict)} | several
        plain = {k: v for k, v in plain.items() if isinstance(v, str | int | float) and v == v}
        if not all(text_files.is_text(f"{name}{value}") for name, value in plain.items()):
            raise UserError(f"{path}: line {number}: half a character, such as \\ud800; correct it")
        rows.append({_column(name): str(value).strip() for name, value in plain.items()})
        numbers.append(number)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    label = next((name for name in NAMES["label"] if name in columns or name in several), None)
    if label in several:
        raise UserError(f"{path}: line {several[label]}: {label} holds several values; give a file one class")
    return Table(path, tuple(columns), [dict.fromkeys(columns, "") | row for row in rows], numbers)


def _row(path: Path, columns: Sequence[str], cells: list[str], number: int) -> dict[str, str]:
    while len(cells) > len(columns) and not cells[-1]:
        cells.pop()
    if len(cells) > len(columns):
        fix = "put a cell with commas in quotes"
        raise UserError(f"{path}: line {number}: {len(cells)} cells, expected {len(columns)}; {fix}")
    if len(cells) < len(columns):
        raise UserError(f"{path}: line {number}: no {columns[len(cells)]}; give every row all columns")
    return dict(zip(columns, cells))


def bases(path: Path) -> tuple[Path, Path]:
    """Returns the folders to which a file's paths may be relative: its own, and the parent of it."""
    return path.parent, path.parent.parent


def located(cell: str, base: Path) -> Path:
    """Returns the file that a cell names; backslashes, as on Windows, separate folders if no such file exists."""
    found = base / cell
    return base / cell.replace("\\", "/") if "\\" in cell and not os.path.isfile(found) else found


def examples(table: Table, base: Path | None = None, report: Report | None = None) -> list[Example]:
    """Returns the examples that a table lists, each once.

    Raises UserError if there is no column of paths or labels, a cell is empty, or a name fits two files; the message
    names file and line.

    Args:
      base: folder of relative paths; by default, the first of `bases` that has any of the files.
      report: of a user's own list: receives columns that are not read, and rows that are there twice. With it, names
        are also found in another spelling or folder; see common/data/partners.py.
    """
    names = {kind: table.column(kind) for kind in NAMES}
    if names["path"] is None or names["label"] is None:
        raise UserError(
            f"{table.path}: columns {', '.join(sorted(filter(None, table.columns))[:_SHOWN]) or '(none)'}; expected "
            "path,label"
        )
    if report and names["split"] not in (None, *NAMES["split"]):
        report.change("a column of splits, by its cells", f"{table.path}: {names['split']}")
    for name in sorted(set(table.columns) - {*names.values(), ""}) if report else ():
        values = {row[name] for row in table.rows}
        if name in _MAYBE_SPLIT and 1 < len(values) < len(table.rows):
            report.suspect(
                "a column that may be a split, not taken",
                f"{table.path}: {name}: {min(values)}, {max(values)}",
            )
        report.skip("a column that is not read", f"{table.path}: {name}")
    cells = [row[names["path"]] for row in table.rows]
    if base is None:
        places = (p for p in bases(table.path) for cell in cells if cell and os.path.isfile(located(cell, p)))
        base = next(places, table.path.parent)
    rows = []
    for row, number in zip(table.rows, table.numbers):
        label = text_files.normal(row[names["label"]])
        for kind, cell in (("path", row[names["path"]]), ("label", label)):
            if not cell:
                raise UserError(f"{table.path}: line {number}: no {names[kind]}; give every row all columns")
        split = split_of(names["split"], row[names["split"]]) if names["split"] else ""
        group = text_files.normal(row[names["group"]]) if names["group"] else ""
        rows.append(Example(located(row[names["path"]], base), label, split, number, group))
    if report is not None:
        _respelled(rows, cells, base, table.path, report)
    if not any(one.split for one in rows):
        rows = _by_folder(rows, base)
    if report is None:
        return rows
    labels = {one.label for one in rows}
    for one in rows:
        several = re.split(r" *[|;,] *", one.label)
        if len(several) > 1 and labels.issuperset(several):
            report.suspect(
                "a label of several classes, taken as a class of its own", f"{table.path}: line {one.line}"
            )
    once: dict[tuple[Path, str, str], Example] = {}
    for one in rows:
        if once.setdefault((one.path, one.label, one.split), one) is not one:
            report.change("a row that is there twice, read once", f"{table.path}: line {one.line}")
    return list(once.values())


def _respelled(rows: list[Example], cells: Sequence[str], base: Path, near: Path, report: Report) -> None:
    """Gives rows of absent files the file that their cell, and no other, means in another spelling or folder."""
    inside = [os.path.relpath(row.path, base) if os.path.exists(row.path) else "" for row in rows]
    partners, taken = Partners(base, None), {*inside, *(plain(row.label) for row in rows)}
    absent = {cell: row for row, cell, there in zip(rows, cells, inside) if not there}
    files = {c: partners.of_row(c, near, row.split, plain(row.label), taken) for c, row in absent.items()}
    times = collections.Counter(files.values())
    for number, cell in enumerate(cells):
        if (file := files.get(cell)) and times[file] == 1:
            report.change("a file name found in another spelling", f"{cell} as {file}")
            rows[number] = dataclasses.replace(rows[number], path=base / file)


def _by_folder(rows: list[Example], base: Path) -> list[Example]:
    """Gives rows the split that a folder of each path names, if every row has one and both parts are there."""
    words = [split_names.of_path(os.path.relpath(row.path, base)) for row in rows]
    if {split_names.part_of(word) for word in words} != {0, 1}:
        return rows
    return [dataclasses.replace(row, split=word) for row, word in zip(rows, words)]
