"""Reads CSV files that list examples: a column of paths, one of labels and perhaps one of splits. TensorFlow-free.

The separator is a comma, semicolon, tab or bar, whichever the first line has most. Columns may have any usual name, in
any case. In a file without a line of column names, the cells tell the columns.
"""

import csv
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.data import split_names, text_files
from common.errors import UserError

# Names of columns as people and tools write them: pandas, Excel, Hugging Face's `file_name`, Kaggle's `image`.
NAMES = {
    "path": (
        *("path", "file", "filename", "file_name", "filepath", "filepaths", "file_path", "image"),
        *("image_path", "video", "video_path", "video_name", "clip", "image_name", "image_id"),
    ),
    "label": ("label", "labels", "class", "class_name", "category", "label_name", "target"),
    "split": ("split", "set", "subset", "partition", "dataset", "data_set"),
    "group": ("group", "group_id", "patient", "patient_id", "subject", "subject_id", "film", "scene"),
}
csv.field_size_limit(text_files.MOST_LINE)  # A column that is not read may hold long notes.
_SEPARATORS = ",;\t|"
TINY = "val_annotations.txt"  # Tiny ImageNet's list: file, class, left, top, right, bottom.
_FIRST = 20  # Rows that tell whether a table has column names.
_MOST = 0.5  # Part of a column's cells that name a split. This project's choice.
_NUMBER = re.compile(r"-?[\d.]+(e[+-]?\d+)?", re.I)
# Lists that are not read, by their first lines.
_FOREIGN = (
    (r'\{ *"|\[ *[{"]|[\[{]$', "a list in JSON"),
    (r"(?!#)(?=[^,;\t|]+$)(\S+ +\S+|\S.* \d+)$", "a list divided by blanks, as of mmaction2 and Caffe"),
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A CSV file's rows.

    Attributes:
      path: the file.
      columns: the columns' names, in lower case.
      titles: the columns' names as they are written.
      rows: {column: cell} of each row, without spaces at the ends.
      numbers: the line of the file at which each row ends.
    """

    path: Path
    columns: tuple[str, ...]
    titles: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    numbers: Sequence[int]

    def column(self, kind: str) -> str | None:
        """Returns the name of the column for "path", "label", "split" or "group"; None if there is none.

        A column with a split's name counts only if a cell names a split: others hold a data set's or a group's name.
        """
        names = [name for name in NAMES[kind] if name in self.columns]
        if kind == "split":
            names = [name for name in names if name == "split" or any(self.parts(name))]
        return next(iter(names), None)

    def parts(self, name: str) -> list[bool]:
        """Returns whether each cell of a column names a split."""
        return [split_names.part_of(row[name]) is not None for row in self.rows]


def read(path: str | os.PathLike) -> Table:
    """Reads a CSV file.

    Raises UserError if the file cannot be read, is a list of _FOREIGN, or a row has not the header's cells; the message
    names file and line.
    """
    path = Path(path)
    lines = text_files.read(path)
    start = next(filter(None, map(str.strip, lines)), "")
    for pattern, what in _FOREIGN:
        if re.match(pattern, start):
            raise UserError(
                f"{path}: {what}, which is not read; write a CSV file with the columns path,label"
            )
    numbered = list(_split(path, lines))
    numbers, rows = [number for number, _ in numbered], [cells for _, cells in numbered]
    if not rows:
        raise UserError(f"{path}: no rows; expected path,label and lines of them")
    columns, titles = tuple(map(_column, rows[0])), list(map(text_files.normal, rows[0]))
    if path.name == TINY:
        columns = ("path", "label", "left", "top", "right", "bottom")
    elif (at := _files_at(path, columns, rows[:_FIRST])) is not None:
        columns = _by_cells(path, rows, at)
    else:
        rows, numbers = rows[1:], numbers[1:]
    if not rows:
        raise UserError(f"{path}: no rows below the line of column names; add an example a line")
    cells = [_row(path, columns, *row) for row in zip(rows, numbers)]
    table = Table(path, columns, titles, cells, numbers)
    for name in map(table.column, NAMES):
        if columns.count(name) > 1:
            raise UserError(f"{path}: two columns are called {name}; rename the one that does not count")
    return table


def _files_at(path: Path, names: Sequence[str], first: Sequence[Sequence[str]]) -> int | None:
    """Returns the column of files in a table without column names: its first cell is one, or as one of the next is.

    A folder, of frames, counts in the first column if it holds no file of the next rows. None: the table has column
    names, or one column.
    """
    column_names = {form for name in sum(NAMES.values(), ()) for form in (name, f"{name}s")}
    listed = [[row[n] for row in first if n < len(row)] for n in range(len(names))]
    if len(names) < 2 or not column_names.isdisjoint(names):
        return None
    for number, column in enumerate(listed):
        suffix = os.path.splitext(column[0])[1].lower()
        alike = [cell for cell in column if suffix and os.path.splitext(cell)[1].lower() == suffix]
        if any(os.path.isfile(located(cell, base)) for cell in (column[0], *alike) for base in bases(path)):
            return number
    place = located(first[0][0], path.parent)
    holds = any(place in located(cell, path.parent).parents for cell in listed[0])
    return 0 if first[0][0] and place.is_dir() and not holds else None


def _by_cells(path: Path, rows: Sequence[Sequence[str]], files: int) -> tuple[str, ...]:
    """Returns names for columns of which number `files` has the paths.

    Most cells of the split's name a split. The label is the only other column, or the only one that has words and
    has them several times, or has words, or numbers several times. Raises UserError if two columns may be the label.
    """
    numbers = (n for n in range(len(rows[0])) if n != files and any(row[n] for row in rows if n < len(row)))
    cells = {n: [row[n] for row in rows if n < len(row)] for n in numbers}
    shares = {n: sum(split_names.part_of(c) is not None for c in cells[n]) / len(cells[n]) for n in cells}
    split = max(cells, key=lambda n: (shares[n], n))
    others = [n for n in cells if len(cells) == 1 or n != split or shares[n] <= _MOST]
    words = [n for n in others if not all(map(_NUMBER.fullmatch, cells[n]))]
    labels = [n for n in words or others if len(others) == 1 or len({*cells[n]}) < len(cells[n])] or words
    if len(labels) != 1:
        both = ", ".join(f"{n + 1} ({rows[0][n]})" for n in labels or others)
        raise UserError(
            f"{path}: no line of column names, and any of columns {both} may be the label; write a first line such as "
            "path,label,split"
        )
    kinds = {files: "path", labels[0]: "label", **({} if split in others else {split: "split"})}
    return tuple(kinds.get(n, f"column_{n + 1}") for n in range(len(rows[0])))


def cells(path: str | os.PathLike, separator: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yields (line at which it ends, cells without spaces around them) of each row of a CSV file, column names too.

    Raises UserError if the file cannot be read, or its quotes are wrong. "": the first line tells the separator.
    """
    yield from _split(Path(path), text_files.read(path), separator)


def _split(path: Path, lines: Sequence[str], sign: str = "") -> Iterator[tuple[int, list[str]]]:
    head, separator = _head(lines)
    separator = sign or separator
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    for _ in range(head):
        next(reader)
    try:
        for row in reader:
            stripped = [cell.strip() for cell in row]
            if any(stripped):
                yield reader.line_num, stripped
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; correct the quotes there") from error


def _head(lines: Sequence[str]) -> tuple[int, str]:
    """Returns (the number of lines before the first row, the separator).

    Excel reads and writes a first line such as "sep=;", and people write lines of comment.
    """
    for number, line in enumerate(lines):
        text = line.strip()
        if text.lower().startswith("sep=") and len(text) == 5:
            return number + 1, text[-1]
        if text and not (text.startswith("#") and not any(sign in text for sign in _SEPARATORS)):
            return number, max(_SEPARATORS, key=lambda sign: (line.count(sign), -_SEPARATORS.index(sign)))
    return 0, ","


def _column(cell: str) -> str:
    """Returns a column's name in one spelling: "File Name" is "file_name"."""
    return text_files.normal(cell).lower().replace(" ", "_").replace("-", "_")


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
    path = base / cell
    return base / cell.replace("\\", "/") if "\\" in cell and not os.path.isfile(path) else path
