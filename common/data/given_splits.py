"""Reads a user's own train/validation split from lists or folders, and describes the held-out part. TensorFlow-free."""

import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from common.data import folder_conversion, split_names, text_files
from common.data.partners import Partners
from common.data.report import Report
from common.errors import UserError

T = TypeVar("T")


def given_split(folder: Path, pair: bool = True, report: Report | None = None) -> tuple[Path, Path | None]:
    """Returns the folders of training and evaluation examples; (folder, None) if there is no such pair.

    seg_train/ and seg_test/ are a pair too; train_tube/ and test_tube/ may be classes, of two pairs neither counts.
    `report` receives what may be a split, but is not taken.

    Raises UserError if the folder is missing, or with `pair` has a training folder but no evaluation folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name the folder with your files")
    folder = folder_conversion.undoubled(folder)
    listed = sorted(folder_conversion.folders(folder), key=lambda path: len(path.name))
    held_out = [path for path in listed if split_names.part_of(split_names.of_folder(path.name)) == 1]
    empty = [path for path in held_out if not folder_conversion.files(path)]
    for path in empty if len(empty) < len(held_out) else ():
        listed.remove(path)
        if report:
            report.suspect("an empty folder of a split; another one is read", f"{path}/")
    words = {path: split_names.of_folder(path.name) for path in listed}
    train, held_out = split_names.pair(words)
    if train:
        return folder_conversion.undoubled(train[0]), folder_conversion.undoubled(held_out[0])
    pairs = list(split_names.pairs({path: path.name for path in listed}).items())
    if len(pairs) == 1 and all(path.name.lower().startswith(pairs[0][0]) for path in sum(pairs[0][1], [])):
        return tuple(folder_conversion.undoubled(paths[0]) for paths in pairs[0][1])
    if pairs and report:
        report.suspect("folders that may be a split, not taken as one", f"{pairs[0][1][0][0]}/", len(pairs))
    alone = next((path for path, word in words.items() if split_names.part_of(word) == 0), None)
    if alone and pair and all(words.values()):
        missing = "test" if words[alone] == "trainval" else "val"
        fix = f"add it, or name {alone} to split that"
        raise UserError(f"{folder}: holds {alone.name}/ but no {missing}/; {fix}")
    for path, word in words.items() if report and pair else ():
        if split_names.part_of(word) == 1 and not alone:
            report.suspect("a folder named as a part to evaluate on, read as a class", f"{path}/")
    return folder, None


def of_list(path: Path, partners: Partners, report: Report) -> set[str]:
    """Returns the files that a text file lists: a path, file name or stem a line, perhaps with a flag or a number.

    Raises UserError if the list cannot be read, or no line names one of `partners`; or a line fits two files. `report`
    receives the lines that name no file.
    """
    listed, lines = set(), text_files.read(path)
    for number, line in enumerate(lines, 1):
        name = text_files.normal(line)
        if not name:
            continue
        forms = dict.fromkeys([name, _AFTER_NAME.sub("", name)])
        ways = (look(form, path) for look in (partners.find, partners.of_stem) for form in forms)
        file = next(filter(None, ways), None)
        if file is None:
            report.leave_out("named in a list, but not there", f"{path}: line {number}: {name}")
        else:
            listed.add(file)
    if not listed:
        raise UserError(f"{path}: none of its {len(lines)} lines names a file that is there; correct it")
    return listed


def report_unused(
    folder: Path, used: Sequence[Path], report: Report, names: Sequence[str] | None = None
) -> None:
    """Notes the folders beside a split's two that the conversion does not read, such as test/.

    `names` limits them to folders with these names, in lower case.
    """
    both = " and ".join(f"{path.name}/" for path in used)
    for path in folder_conversion.folders(folder):
        if not any(one.is_relative_to(path) for one in used) and (
            names is None or path.name.lower() in names
        ):
            report.skip(
                f"beside {both}, which are read", f"{path}/", max(1, len(folder_conversion.files(path)))
            )


def lists(folder: Path, suffixes: Collection[str] = (".csv", ".tsv", ".json", ".jsonl")) -> list[Path]:
    """Returns the files below a folder that may list examples."""
    return [path for path in folder_conversion.files(folder) if path.suffix.lower() in suffixes]


# A flag of -1, 0 or 1 behind a name, or any number behind one with a suffix.
_AFTER_NAME = re.compile(r" +-?[01]$|(?<=\.\w{3})[ ,;]+\d+$|(?<=\.\w{4})[ ,;]+\d+$")
PACKED = (".tar", ".gz", ".tgz", ".zip", ".7z", ".rar", ".xz", ".zst", ".parquet", ".arrow", ".h5", ".npz")


def report_layout(folder: Path, suffixes: Collection[str], report: Report) -> None:
    """Notes what in a folder of classes its layout does not explain; examples have one of `suffixes`.

    That is files in no class's folder, packed files, and classes that are all divided in the same way.
    """
    classes, files = folder_conversion.folders(folder), folder_conversion.files(folder)
    examples = {path for path in files if path.suffix.lower() in suffixes}
    for path in files:
        if path.parent == folder and path in examples:
            report.skip("in no class's folder", str(path), lost=True)
        if classes and path.parent == folder and path.suffix.lower() in PACKED:
            report.suspect("a packed file beside the folders, not read; unpack it", str(path))
    inside = [{path.name for path in folder_conversion.folders(place)} for place in classes]
    if examples and min(map(len, inside), default=0) > 1 and all(p.parent.parent != folder for p in examples):
        what = f"the outer folders, such as {classes[0].name}, not those inside of them"
        report.choose("classes", what, "the converter")
    same = sorted(set.intersection(*inside)) if len(inside) > 1 else []
    if len(same) > 1 and (examples or any(map(split_names.of_folder, same))):  # Not names of clips of frames.
        both = f"{classes[0]}/{same[0]} and {classes[-1]}/{same[0]}"
        report.suspect("the same folders in every class's folder, read as parts of the class", both)


def inner(folder: Path, examples: Sequence[str]) -> str:
    """Returns the end of an error about a folder of one class: the folder around all examples, or a table in it."""
    around = Path(os.path.commonpath([os.path.dirname(path) for path in examples])) if examples else folder
    if around != folder and len(folder_conversion.folders(around)) > 1:
        return f"; name {around} if its folders are the classes"
    tables = lists(folder, (".csv", ".tsv")) if folder.is_dir() else []
    return f"; name {tables[0]} if it lists them" if tables else ""


def nothing(source: Path, kind: str, is_one: Callable[[Path], bool], expected: str) -> UserError:
    """Returns the error about a folder without examples of a `kind` such as "pictures": loose ones, packed ones, none.

    `expected` is what is read, such as "folders CLASS/*.mp4".
    """
    files = folder_conversion.files(source) if source.is_dir() else []
    if loose := next(filter(is_one, files), None):
        places = [source, source.parent][: 1 + bool(split_names.of_folder(source.name))]
        lists = [path for place in places for path in sorted(place.glob("*.[ct]sv"))]
        return UserError(
            f"{source}: its {kind}, such as {loose.name}, are in no class's folder; put each class into a folder of "
            f"its own, or give {lists[0] if lists else 'a CSV file of path,label'}"
        )
    if packed := next((path for path in files if path.suffix.lower() in PACKED), None):
        return UserError(
            f"{packed}: a file {packed.suffix}, which is not read there; unpack it to {expected}"
        )
    return UserError(f"{source}: no {kind}; expected {expected}")


def listed_split(source: Path, rows: Sequence[tuple[T, str]], report: Report) -> tuple[list[T], list[T]]:
    """Returns the training and the evaluation examples of a list with a column of splits.

    If the list has a validation and a test split, the test split stays out, and the report says so. Raises UserError,
    which names the list `source`, if a row's split is unknown, or a part has no row. A row is (example, split in lower
    case).
    """
    names = list(dict.fromkeys(name for _, name in rows))
    unknown = [name for name in names if split_names.part_of(name) is None]
    evals = [name for name in names if split_names.part_of(name) == 1]
    if unknown or not evals or len(evals) == len(names):
        words = ", ".join(name or "(empty)" for name in names)
        raise UserError(f"{source}: column split has {words}; expected train and val (or test)")
    tests = (
        [name for name in evals if name in split_names.TESTS] if set(evals) - set(split_names.TESTS) else []
    )
    for name in tests:
        count = sum(part == name for _, part in rows)
        report.skip(f"split {name}, because another one is for evaluation", str(source), count)
    remaining = [(item, name) for item, name in rows if name not in tests]
    return tuple([item for item, name in remaining if split_names.part_of(name) == part] for part in (0, 1))


def class_names(source: Path, classes: Sequence[str], report: Report) -> list[str]:
    """Returns the classes' names by classes.txt, lines of class and name, if it names every one; else the classes.

    Numbers are no names. Raises UserError if a class has two names. "name (class)" tells classes of one name apart.
    """
    # A folder's name that is not UTF-8 gets escapes.
    texts = [name.encode(errors="backslashreplace").decode() for name in classes]
    path = (source if source.is_dir() else source.parent) / "classes.txt"
    if not path.is_file():
        return texts
    names = names_of(path, text_files.read(path), classes)
    if not set(classes) <= names.keys() or all(names[one].isdigit() for one in classes):
        report.skip("a list that does not name every class, not read", str(path))
        return texts
    titles = [names[name] for name in classes]
    return [f"{name} ({one})" if titles.count(name) > 1 else name for name, one in zip(titles, texts)]


def names_of(path: Any, lines: Sequence[str], classes: Collection[str] | None = None) -> dict[str, str]:
    """Returns {class: name} of a file's lines. Raises UserError if one of `classes`, by default any, has two names."""
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        word, _, name = text_files.normal(line).partition(" ")
        if name and names.setdefault(word, name) != name and (classes is None or word in classes):
            raise UserError(
                f"{path}: line {number}: {word} is {name}, above {names[word]}; give a class one name"
            )
    return names


def own_split(
    items: Sequence[T],
    classes: Sequence[str],
    groups: Sequence[str],
    options: folder_conversion.Options,
    what: str = "each class",
) -> tuple[list[T], list[T]]:
    """Returns the training and the evaluation examples of files without a split: holds out a part of each class.

    Notes the choice in `options.report`, of `what` a part is held out. Raises UserError as `folder_conversion.divide`,
    which has the arguments.
    """
    part = f"{options.eval_part:.3g} of {what} held out"
    options.report.choose("split", part, "the converter (--eval_part, --seed)")
    sides = folder_conversion.divide(classes, options.eval_part, options.seed, groups)
    return tuple([item for item, is_held in zip(items, sides) if is_held == side] for side in (False, True))


def relative(paths: Sequence[str], source: Path) -> list[str]:
    """Returns paths of files as seen from the source folder, or from the folder of a source file."""
    base = source if source.is_dir() else source.parent
    return [os.path.relpath(path, base) for path in paths]
