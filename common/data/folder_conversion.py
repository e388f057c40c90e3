"""Tools that convert a user's folder to records: split, shard counts, broken files, the description."""

import concurrent.futures
import dataclasses
import errno
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tqdm

from common import machine_tools
from common.config import data_description
from common.config.data_description import Description
from common.data import pictures
from common.data.pictures import Picture
from common.data.report import Report
from common.errors import UserError, printable
from common.files import write_atomically

SHARD_BYTES = 128 << 20  # Approximate size of a shard, as in ImageNet's 1,024 shards.
LEAST_SHARDS, MOST_SHARDS = 8, 1024  # With at least 8, several readers share a small set.
HELD_OUT = "held_out.txt"  # Lists the examples to evaluate on, one file a line.
# Pictures checked at once; decoding releases the interpreter lock. More threads than cores cost processor time.
_THREADS = min(8, max(2, os.cpu_count() or 2))


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `timetotrain data` besides folders.

    Attributes:
      eval_part: fraction of the examples to hold out, if the source has no split.
      seed: seed of the split.
      workers: processes that write shards.
      annotations, eval_annotations: annotation files, if the folder does not show which they are.
      eval_sources: files or a folder to evaluate on, in place of a split.
      vocabulary_size, max_length: for text; 0 chooses them by the amount of text.
      languages: ISO codes of source and target; None takes them from the file names.
      short_side: maximum length of a video's shorter side, in pixels; larger videos are scaled down.
      tokenizer: a tokenizer.json for text; None makes tokens in the benchmark's own way.
      report: receives what the converter takes, leaves out, changes and suspects, also if the conversion fails.
    """

    eval_part: float = 0.1
    seed: int = 0
    workers: int = 1
    annotations: Path | None = None
    eval_annotations: Path | None = None
    eval_sources: tuple[Path, ...] = ()
    vocabulary_size: int = 0
    max_length: int = 0
    languages: tuple[str, str] | None = None
    short_side: int = 256
    tokenizer: Path | None = None
    report: Report = dataclasses.field(default_factory=Report)


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A conversion's result, for the description and the page.

    Attributes:
      description: the description written beside the records.
      balance: (class, training examples, evaluation examples) of every class; empty for text.
      counted: the unit of `balance`, such as "pictures".
      facts: (name, value) pairs of sizes, as text.
    """

    description: Description
    balance: Sequence[tuple[str, int, int]]
    counted: str
    facts: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Card:
    """An example as the network sees it: a title, a PNG picture or None, and lines of text."""

    title: str
    picture: bytes | None = None
    lines: Sequence[str] = ()


class Converter(Protocol):
    """A benchmark's custom_data.py; tests/timetotrain/test_converter_contract.py holds every one to it.

    Attributes:
      PREVIEW: the preset with whose sizes the page shows examples.
    """

    PREVIEW: str

    def convert(self, sources: Sequence[Path], out: Path, options: Options) -> Conversion:
        """Writes records and description into `out`; raises UserError if the sources do not fit."""

    def preview(self, data_dir: Path, description: Description, count: int) -> list[Card]:
        """Returns about `count` training examples and half as many others, as the network sees them."""


def divide(classes: Sequence[str], part: float, seed: int, groups: Sequence[str] | None = None) -> np.ndarray:
    """Chooses the examples to hold out, bool [examples]: about `part` of each class, at least one if it has two.

    Raises UserError if `part` is not between 0 and 1, or no class has two examples or two groups.

    Args:
      classes: the class of each example.
      groups: a group's name for each example; a group stays on one side. A group counts to the class of its first
        example. None: every example is a group.
    """
    if not 0 < part < 1:
        raise UserError(f"--eval_part={part}: must lie between 0 and 1, such as 0.1")
    if groups is not None:
        names, first, of_group = np.unique(np.asarray(groups, str), return_index=True, return_inverse=True)
        if len(names) < len(groups):
            firsts = [classes[i] for i in first]
            if len(set(firsts)) == len(firsts):
                raise UserError(
                    f"each class is one group, of the list or of near copies ({len(groups)} examples): nothing can "
                    "be held out to evaluate on; rename the list's column of groups, or give a split of your own"
                )
            return divide(firsts, part, seed)[of_group]
    kinds, numbers = np.unique(np.asarray(classes, dtype=str), return_inverse=True)
    held_out = np.zeros(len(classes), bool)
    for kind in range(len(kinds)):
        members = np.flatnonzero(numbers == kind)
        count = min(max(round(part * len(members)), 1), len(members) - 1)
        order = np.random.default_rng([seed, kind]).permutation(len(members))
        held_out[members[order[:count]]] = True
    if not held_out.any():
        raise UserError("no class has two examples: nothing can be held out to evaluate on; add files")
    return held_out


def shard_count(examples: int, size: int) -> int:
    """Returns the number of files for `examples` of `size` bytes in total: about SHARD_BYTES each, none empty."""
    count = min(max(size // SHARD_BYTES, LEAST_SHARDS), MOST_SHARDS)
    return max(min(count, examples), 1)


def shards_by_split(train: Sequence[Any], held_out: Sequence[Any]) -> dict[str, tuple[Sequence[Any], int]]:
    """Returns {split: (items, number of shards)}, by the size of the files at the items' `path`; folders count 0."""
    sizes = [size([one.path for one in part if os.path.isfile(one.path)]) for part in (train, held_out)]
    parts = {"train": (train, sizes[0]), "validation": (held_out, sizes[1])}
    return {split: (part, shard_count(len(part), total)) for split, (part, total) in parts.items()}


DENIED = "no permission to read the folder"


# Folders that systems make beside a user's files, in lower case: macOS, Linux, Synology, QNAP, Windows, Python.
_SYSTEMS = {
    *("__macosx", "lost+found", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp"),
    *("$recycle.bin", "recycler", "recycled", "system volume information", "found.000", "__pycache__"),
}


def visible(name: str) -> bool:
    """Whether a file or folder may hold a user's data: not hidden, and not a system's own."""
    return not name.startswith(".") and name.lower() not in _SYSTEMS


def files(folder: Path, report: Report | None = None) -> list[Path]:
    """Returns the visible files in a folder, at any depth and behind links, in a fixed order.

    A link to a folder around `folder` is not followed: its files belong to other classes. `report` receives links to
    nothing, pipes and the like.
    """
    paths: list[Path] = []
    real_paths = {os.path.realpath(path) for path in folder.absolute().parents}

    def denied(error: OSError) -> None:
        if report and error.errno in (errno.EACCES, errno.EPERM):
            report.leave_out(DENIED, str(error.filename))

    for place, inside, names in os.walk(folder, onerror=denied, followlinks=True):
        real = os.path.realpath(place)
        if real in real_paths:
            inside[:] = []
            continue
        inside[:] = sorted(filter(visible, inside))
        paths += [Path(place, name) for name in filter(visible, names)]
        real_paths.add(real)
    for path in sorted(paths) if report else ():
        if not path.is_file():
            report.leave_out("a link to nothing" if path.is_symlink() else "not a regular file", str(path))
    return sorted(path for path in paths if path.is_file())


def undoubled(folder: Path) -> Path:
    """Returns the folder, or the only one in it if that has its name, as archives unpack: train/train/cats."""
    while [path.name for path in folder.iterdir() if visible(path.name)] == [folder.name]:
        folder = folder / folder.name
    return folder


def folders(folder: Path) -> list[Path]:
    """Returns the visible folders directly in a folder, in order."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and visible(path.name))


def look(path: str | os.PathLike, png: bool) -> Picture | str:
    """Returns `pictures.checked` of a file without the encoded picture, or a line about its fault."""
    try:
        return dataclasses.replace(pictures.checked(pictures.contents(path), png), encoded=b"")
    except pictures.BadPictureError as error:
        return f"{os.fspath(path)}: no whole picture ({error})"


def examined(paths: Sequence[str | os.PathLike], png: bool) -> list[Picture | str]:
    """Returns `look(path, png)` of each path, in order; works in several threads, shows progress."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        results = threads.map(lambda path: look(path, png), paths)
        return list(tqdm.tqdm(results, "checking pictures", len(paths), disable=None))


def report_pictures(report: Report, by_name: Mapping[str, Picture]) -> None:
    """Notes what reading changed in sound pictures {name: what is known}."""
    for name, looked in by_name.items():
        for change in looked.changes:
            report.change(f"picture: {change}", name)
        for doubt in looked.doubts:
            report.suspect(doubt, name)


def picture_facts(images: Iterable[Picture]) -> list[tuple[str, str]]:
    """Returns the sizes of the smallest, the median and the largest picture for the page."""
    sizes = sorted(((one.width, one.height) for one in images), key=math.prod)
    by_rank = {"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]}
    return [(f"{which} picture", f"{width} x {height}") for which, (width, height) in by_rank.items()]


def report_unnamed(paths: Iterable[Path], what: str, report: Report) -> None:
    """Notes the pictures directly in the folders of those that a list names, which it does not name."""
    names: dict[Path, set[str]] = {}
    for path in paths:
        names.setdefault(path.parent, set()).add(path.name)
    for folder in sorted(place for place in names if place.is_dir() and os.access(place, os.R_OK)):
        for path in sorted(folder.iterdir()):
            a_picture = path.suffix.lower() in pictures.SUFFIXES and path.is_file() and visible(path.name)
            # A link to a named picture is the same picture.
            if a_picture and not {path.name, path.resolve().name} & names[folder]:
                report.skip(what, str(path), lost=True)


def check_broken(broken: Sequence[str], count: int) -> None:
    """Raises UserError if no item is left."""
    if not count:
        first = f", such as {broken[0]}" if broken else ""
        raise UserError(f"nothing to convert: every file was left out{first}")


def start(out: Path, benchmark: str) -> bool:
    """Marks `out` as unfinished before the first record is written; `read` rejects it until `finish`.

    Returns whether an interrupted conversion left something in `out`. Raises UserError if `out` holds a finished
    conversion, or files that no conversion wrote.
    """
    path = out / data_description.NAME
    before = None
    if path.exists():
        before = data_description.unfinished(out)
        if before is None:
            raise UserError(f"{out} holds converted data already; remove the folder, or name another")
        if before != benchmark:
            raise UserError(f"{out} holds unfinished data of {before}; remove the folder, or name another")
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and holds no conversion; name another folder")
    data_description.begin(out, benchmark)
    return before is not None


def finish(
    out: Path,
    benchmark: str,
    patterns: Sequence[str],
    fields: Mapping[str, Any],
    split: tuple[int, int],
    broken: Sequence[str],
    labels: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    baseline: tuple[Any, str] | None = None,
    held_out: Sequence[str] = (),
) -> Description:
    """Writes and returns the description of complete records.

    Args:
      patterns: match the files in `out` that a run reads.
      split: number of training and evaluation examples.
      baseline: a trivial answer's quality, and the answer.
      held_out: names of the examples to evaluate on, for HELD_OUT.
      benchmark, fields, broken, labels, defaults: see `Description`.
    """
    if held_out:
        text = "".join(f"{printable(name)}\n" for name in sorted(held_out))
        write_atomically(out / HELD_OUT, text.encode())
    names = sorted({path.name for pattern in patterns for path in out.glob(pattern)})
    files = data_description.listed(out, names)
    installed = machine_tools.versions("timetotrain").get("timetotrain", "of a checkout")
    description = Description(
        benchmark,
        tuple(labels),
        dict(fields),
        dict(defaults or {}),
        files,
        data_description.digest(files),
        f"timetotrain data {benchmark}, version {installed}",
        {"train": split[0], "eval": split[1]},
        tuple(map(printable, broken)),
        dict(zip(("value", "what"), baseline)) if baseline else {},
    )
    data_description.write(out, description)
    return description


def balance(labels: Sequence[str], train: Sequence[str], evals: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns (class, training examples, evaluation examples) for each of `labels`, in order."""
    counts = Counter(train), Counter(evals)
    return [(label, counts[0][label], counts[1][label]) for label in labels]


def size(paths: Sequence[str | os.PathLike]) -> int:
    """Returns the total size of the files in bytes."""
    return sum(os.path.getsize(path) for path in paths)
