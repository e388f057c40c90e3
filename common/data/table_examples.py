"""Reads the examples that a table lists: finds their files, and notes what looks wrong. TensorFlow-free."""

import collections
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.data import pictures, split_names, text_files
from common.data.partners import Partners, plain
from common.data.report import Report
from common.data.tables import NAMES, Table, bases, located
from common.errors import UserError

_SHOWN = 6  # Columns in a message.
_LIST = str.maketrans("", "", "[](){}'\"")  # Signs of a list in a cell.
_MARKS = {"0", "1", "0.0", "1.0"}  # Of a column that says whether an example is of a class.
# Columns of an example's first and last second or frame.
_PART = re.compile(r"(t_|time_)?(start|begin|end|stop)(_(time|frame|second|seconds|timestamp))?")
# Columns that often hold a split in words of their own.
_MAYBE_SPLIT = {"fold", "folds", "kfold", "phase", "usage", "mode", "stage", "set", "subset", "partition"}


@dataclasses.dataclass(frozen=True)
class Example:
    """A row: a file, its class, its split in lower case and its group; "" without such a column."""

    path: Path
    label: str
    split: str
    line: int
    group: str = ""


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
    if any(map(_may_be_split, marks)):
        return table
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
        if all(parts) or _may_be_split(name) and 1 < len(values) < len(table.rows):
            what = "a column that may be a split, not taken; call it split, with train and val"
            report.suspect(what, f"{table.path}: {name}: {min(values)}, {max(values)}")
        pairs = {(one.path, row[name]) for one, row in zip(rows, table.rows)} if _PART.fullmatch(name) else ()
        videos = [path for path, _ in pairs if path.suffix.lower() not in pictures.SUFFIXES]
        if len(videos) > len({*videos}):
            what = "a column of an example's start or end, not read: the whole file is taken"
            report.suspect(what, f"{table.path}: {name}")
        report.skip("a column that is not read", f"{table.path}: {name}")
        if name in NAMES["label"]:
            _check_labels(table, names["label"], name, report)
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


def _may_be_split(name: str) -> bool:
    return name in _MAYBE_SPLIT or split_names.part_of(name.removeprefix("is_")) is not None


def _check_labels(table: Table, name: str, other: str, report: Report) -> None:
    """Compares the labels with another column of such a name: its classes may be the same, or finer or coarser."""
    both = {(row[name], row[other]) for row in table.rows}
    sizes = [len({*side}) for side in zip(*both)]
    if len(both) > max(sizes):
        raise UserError(
            f"{table.path}: columns {name} and {other} may both be the labels, and they differ; rename one"
        )
    if len(both) > min(sizes) > 1:
        report.suspect(
            f"a column of finer or coarser classes than {name}, not read", f"{table.path}: {other}"
        )


def _by_folder(rows: list[Example], base: Path) -> list[Example]:
    """Gives rows the split that a folder of each path names, if every row has one and both parts are there."""
    words = [split_names.of_path(os.path.relpath(row.path, base)) for row in rows]
    if {split_names.part_of(word) for word in words} != {0, 1}:
        return rows
    return [dataclasses.replace(row, split=word) for row, word in zip(rows, words)]
