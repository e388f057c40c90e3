"""Reads CSV files that list examples: a column of paths, one of labels and perhaps one of splits. TensorFlow-free.

The separator is a comma, semicolon, tab or bar, whichever the first line has most. Columns may have any usual name, in
any case. In a file without a line of column names, the cells tell the columns.
"""

import collections
import csv
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.data import pictures, split_names, text_files
from common.data.partners import Partners, plain
from common.data.report import Report
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
# Columns that often hold a split in words of their own.
_MAYBE_SPLIT = {"fold", "folds", "kfold", "phase", "usage", "mode", "stage", "set", "subset", "partition"}
csv.field_size_limit(text_files.MOST_LINE)  # A column that is not read may hold long notes.
_SEPARATORS = ",;\t|"
TINY = "val_annotations.txt"  # Tiny ImageNet's list: file, class, left, top, right, bottom.
_SHOWN = 6  # Columns in a message.
_FIRST = 20  # Rows that tell whether a table has column names.
_MOST = 0.5  # Part of a column's cells that name a split. This project's choice.
_NUMBER = re.compile(r"-?[\d.]+(e[+-]?\d+)?", re.I)
_LIST = str.maketrans("", "", "[](){}'\"")  # Signs of a list in a cell.
_MARKS = {"0", "1", "0.0", "1.0"}  # Of a column that says whether an example is of a class.
# Columns of an example's first and last second or frame.
_PART = re.compile(r"(t_|time_)?(start|begin|end|stop)(_(time|frame|second|seconds|timestamp))?")
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


def examples(table: Table, base: Path | None = None, report: Report | None = None) -> list[Example]:
    """Returns the examples that a table lists, each once.

    Raises UserError if there is no column of paths or labels, a cell is empty, or a name fits two files; the message
    names file and line.

    Args:
      base: folder of relative paths; by default, the first of `bases` that has any of the files.
      report: of a user's own list: receives columns that are not read, and rows that are there twice. With it, a name
        of an absent file may also be that of one file in a folder below; see common/data/partners.py.
    """
    names = {kind: table.column(kind) for kind in NAMES}
    if names["path"] and names["label"] is None and report:
        table = _of_marks(table, report)
        names["label"] = table.column("label")
    if names["path"] is None or names["label"] is None:
        raise UserError(
            f"{table.path}: columns {', '.join(sorted(filter(None, table.columns))[:_SHOWN]) or '(none)'}; expected "
            "path,label, or a first line of a file that is there and its class"
        )
    original_cells = cells = [row[names["path"]] for row in table.rows]
    base = base or _base(cells, table.path)
    if base is None:
        cells, base = _of_this_machine(cells, table.path) if report else (cells, table.path.parent)
    rows: list[Example] = []
    for row, number, cell in zip(table.rows, table.numbers, cells):
        label = text_files.normal(row[names["label"]])
        for kind, value in (("path", cell), ("label", label)):
            if not value:
                raise UserError(f"{table.path}: line {number}: no {names[kind]}; give every row all columns")
        split = text_files.normal(row[names["split"]]).lower() if names["split"] else ""
        group = text_files.normal(row[names["group"]]) if names["group"] else ""
        rows.append(Example(located(cell, base), label, split, number, group))
    if report:
        rows = _with_partners(rows, cells, base, table.path, report)
        if cells is not original_cells and any(os.path.exists(one.path) for one in rows):
            report.change(
                "paths of another machine, read below the list", f"{original_cells[0]} as {cells[0]}"
            )
        elif cells is not original_cells:
            rows = [dataclasses.replace(one, path=Path(cell)) for one, cell in zip(rows, original_cells)]
    if not any(one.split for one in rows):
        rows = _by_folder(rows, base)
    return _check_rows(table, names, rows, report) if report else rows


def _of_marks(table: Table, report: Report) -> Table:
    """Returns a table of columns of 0 and 1, one for each class, with a column of labels; another one as it is.

    Leaves out rows of no class or of several; raises UserError if these are most.
    """
    titles = dict(zip(table.columns, table.titles))
    marks = [name for name in table.columns if name and {row[name] for row in table.rows} <= _MARKS]
    rows, numbers, columns = [], [], ", ".join(titles[name] for name in marks[:_SHOWN])
    for row, number in zip(table.rows, table.numbers) if len(marks) > 1 else ():
        classes = [titles[name] for name in marks if float(row[name])]
        if len(classes) == 1:
            rows.append({**row, "label": classes[0]})
            numbers.append(number)
        else:
            what = f"a row of {'several classes' if classes else 'no class'}"
            report.leave_out(what, f"{table.path}: line {number}", most=_SHOWN)
    if len(marks) > 1 and 2 * len(rows) < len(table.rows):
        what = f"a column for each class ({columns}), of which most rows have several or none"
        raise UserError(f"{table.path}: {what}; give each file one class, in a column label")
    if not rows:
        return table
    report.choose("classes", f"the columns {columns}", str(table.path))
    names = (*(name for name in table.columns if name not in marks), "label")
    return dataclasses.replace(table, columns=names, rows=rows, numbers=numbers)


def _base(cells: Sequence[str], path: Path) -> Path | None:
    places = (p for p in bases(path) for cell in cells if cell and os.path.isfile(located(cell, p)))
    return next(places, None)


def _of_this_machine(cells: list[str], path: Path) -> tuple[list[str], Path]:
    """Returns (absolute paths without folders that all have: as few as make a file exist, else all; its base)."""
    absolute = all(re.match(r"([A-Za-z]:)?[/\\]", cell) for cell in cells)
    words = [re.split(r"[/\\]+", cell) for cell in cells]
    common = len(os.path.commonprefix([one[:-1] for one in words])) if absolute else 0
    for count in range(1, common + 1):
        # Where the next folder that all share is missing, no file needs a look.
        if count == common or any(os.path.isdir(place / words[0][count]) for place in bases(path)):
            cells = ["/".join(one[count:]) for one in words]
            if base := _base(cells, path):
                return cells, base
    return cells, path.parent


def _with_partners(
    rows: Sequence[Example], cells: Sequence[str], base: Path, near: Path, report: Report
) -> list[Example]:
    """Gives rows of absent files the file that their cell, and no other, means in another spelling or folder."""
    inside = [os.path.relpath(row.path, base) if os.path.exists(row.path) else "" for row in rows]
    partners, occupied_names = Partners(base, None), {*inside, *(plain(row.label) for row in rows)} - {""}
    absent = {(c, row.split, plain(row.label)) for row, c, there in zip(rows, cells, inside) if not there}
    files = {(c, *more): partners.of_row(c, near, *more, occupied_names) for c, *more in sorted(absent)}
    cells_of = collections.defaultdict(set)
    for (cell, *_), file in files.items():
        cells_of[file].add(cell)
    result = []
    for row, cell in zip(rows, cells):
        file = files.get((cell, row.split, plain(row.label)))
        if file and len(cells_of[file]) == 1:
            report.change("a file name found in another folder", f"{cell} as {file}")
            row = dataclasses.replace(row, path=base / file)
        result.append(row)
    return result


def _check_rows(
    table: Table, names: Mapping[str, str | None], rows: Sequence[Example], report: Report
) -> list[Example]:
    """Returns the rows, each once; notes what of a table is not read, and what looks wrong."""
    for name in sorted(set(table.columns) - {*names.values(), ""}):
        values, parts = {row[name] for row in table.rows}, table.parts(name)
        split_like = name in _MAYBE_SPLIT or split_names.part_of(name.removeprefix("is_")) is not None
        if all(parts) or split_like and 1 < len(values) < len(table.rows):
            what = "a column that may be a split, not taken; call it split, with train and val"
            report.suspect(what, f"{table.path}: {name}: {min(values)}, {max(values)}")
        pairs = {(one.path, row[name]) for one, row in zip(rows, table.rows)} if _PART.fullmatch(name) else ()
        videos = [path for path, _ in pairs if path.suffix.lower() not in pictures.SUFFIXES]
        if len(videos) > len({*videos}):
            what = "a column of an example's start or end, not read: the whole file is taken"
            report.suspect(what, f"{table.path}: {name}")
        report.skip("a column that is not read", f"{table.path}: {name}")
        both = {(row[names["label"]], row[name]) for row in table.rows} if name in NAMES["label"] else set()
        if len(both) > min((len({*side}) for side in zip(*both)), default=0):
            raise UserError(
                f"{table.path}: columns {names['label']} and {name} may both be the labels, and they differ; rename one"
            )
    labels, of_file = {one.label for one in rows}, {one.path: one.label for one in rows}
    plain_labels = {label.translate(_LIST) for label in labels}
    in_classes = {plain(one.path.parent.name) for one in rows} == set(map(plain, labels))
    once: dict[tuple[Path, str, str], Example] = {}
    for one in rows:
        place = f"{table.path}: line {one.line}"
        for sign in (r" *[|;,] *", " +"):
            several = re.split(sign, one.label.translate(_LIST))
            if len(several) > 1 and plain_labels.issuperset(several):
                report.suspect("a label of several classes, taken as a class of its own", place)
        if in_classes and plain(one.path.parent.name) != plain(one.label):
            report.suspect(
                "a label that is not the name of its file's folder", f"{place}: {one.label}, {one.path}"
            )
        if of_file[one.path] != one.label:
            report.suspect("a file with two classes", f"{place}: {one.label} and {of_file[one.path]}")
        if once.setdefault((one.path, one.label, one.split), one) is not one:
            report.change("a row that is there twice, read once", place)
    return list(once.values())


def _by_folder(rows: list[Example], base: Path) -> list[Example]:
    """Gives rows the split that a folder of each path names, if every row has one and both parts are there."""
    words = [split_names.of_path(os.path.relpath(row.path, base)) for row in rows]
    if {split_names.part_of(word) for word in words} != {0, 1}:
        return rows
    return [dataclasses.replace(row, split=word) for row, word in zip(rows, words)]
