"""Finds the file that an annotation means, by a name or by its own; every format shares these rules. TensorFlow-free.

Names come from other systems: with backslashes, a drive, URL escapes, another Unicode form or case, or folders that are
not there. A name that fits two files with different contents is an error that names both.
"""

import collections
import filecmp
import os
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Collection, Sequence, Set
from pathlib import Path, PurePosixPath

from common.data import folder_conversion, pictures, split_names
from common.data.report import Report
from common.errors import UserError

# Pascal VOC's folders of masks, which have the pictures' names.
_MASKS = {"SegmentationClass", "SegmentationObject"}
# Folders of masks, in lower case: common names, Pascal VOC's, LabelMe's and Penn-Fudan's.
MASK_FOLDERS = {
    *("masks", "mask", "gt_masks", "instances", "pedmasks", "segmentationobject", "segmentationclass"),
    *("segmentationobjectpng", "segmentationclasspng"),
}
LOSSLESS = {".png", ".bmp", ".tif", ".tiff", ".gif"}  # Suffixes that a mask may have.
# The end of a mask's name, behind its picture's.
MASK_ENDING = re.compile(
    r"[-_](masks?|seg|gt|label|instances?|gtfine_instanceids|segmentation)([-_ ]?\d+)?$", re.I
)
Fits = Callable[[str, str], bool]  # Of (file, name): whether the name may mean the file.


def plain(name: str) -> str:
    """Returns a path in one spelling: "/" between folders, no drive, no "." or "..", composed Unicode, lower case."""
    text = unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()
    return "/".join(one for one in re.sub(r"^[a-z]:", "", text).split("/") if one not in ("", ".", ".."))


def stems(path: str | os.PathLike) -> list[str]:
    """Returns a file's plain path without its suffix, and without all: p.webp.jpg is p.webp or p."""
    stem = plain(os.path.splitext(os.fspath(path))[0])
    forms = [stem]
    while os.path.splitext(stem)[1] in pictures.SUFFIXES:
        stem = os.path.splitext(stem)[0]
        forms.append(stem)
    return forms


class Partners:
    """The files below a folder with one of `suffixes` (None: with any), by the names that annotations give them."""

    def __init__(self, folder: Path, suffixes: Collection[str] | None = pictures.SUFFIXES):
        self.folder, self._suffixes = folder, suffixes
        self._by_last: dict[str, list[str]] | None = None
        self._by_stem: dict[str, list[str]] = collections.defaultdict(list)

    def find(self, name: str, near: Path, fits: Fits = lambda *_: True) -> str | None:
        """Returns the file that `name` means, relative to the folder; None if there is none.

        Of several files that fit, the first of these rules that tells them apart decides: the folder's split is the
        annotation's (train, val); the name is relative to the annotation's folder; the folder is none of masks; the
        file is nearest to the annotation; the letters' case is the same. Raises UserError if the name fits two files.

        Args:
          name: a file name or path, relative to the annotation file, to the folder, or to a folder of another system.
        """
        by_last = self._index()
        forms = dict.fromkeys((name, urllib.parse.unquote(name), name.partition("?")[0]))
        for form in forms:
            tail = plain(form).split("/")
            same = by_last.get(tail[-1], [])
            for length in range(len(tail), 0, -1):
                ends = [one for one in same if plain(one).split("/")[-length:] == tail[-length:]]
                if fitting := [one for one in ends if fits(one, form)]:
                    return self._one(fitting, form, near)
        return None

    def of_stem(self, stem: str, near: Path, fits: Fits = lambda *_: True) -> str | None:
        """Returns the file whose name without its suffix is `stem`, or None; raises UserError for two. See `find`."""
        self._index()
        name = plain(stem)
        same = self._by_stem.get(name.rpartition("/")[2], [])
        fitting = [one for one in same if f"/{name}." in f"/{plain(one)}." and fits(one, stem)]
        return self._one(fitting, stem, near) if fitting else None

    def of_row(self, name: str, near: Path, split: str, label: str, exclusions: Set[str]) -> str | None:
        """Returns the file that a table's row means; stricter than `find`, as a wrong file would get the row's label.

        It has all folders of the name, and more only if these name no class, such as train_images, and no other part
        of the split. The name may lack the suffix.

        Args:
          name, split, label: the row's: a path relative to the folder, "" for the split of the path's folders, and the
            label in the spelling of `plain`.
          near: the table.
          exclusions: the files that rows name as they are, and the labels of all rows, which no other row's file may
            have as a folder.
        """

        def fits(file: str, form: str) -> bool:
            rest = (
                plain(file).removesuffix(plain(form))
                if os.path.splitext(form)[1]
                else plain(os.path.dirname(file))
            )
            words = split or split_names.of_path(form.replace("\\", "/")), split_names.of_path(file)
            if len({*map(split_names.part_of, words)} - {None}) > 1:
                return False
            if file in exclusions or exclusions.intersection(rest.split("/")) - {label}:
                return False
            return rest != plain(file) and split_names.names_no_class(rest)

        file = self.find(name, near, fits)
        return file if file or "/" in name or os.path.splitext(name)[1] else self.of_stem(name, near, fits)

    def of_annotation(self, path: Path, name: str, report: Report) -> str | None:
        """Returns the picture of an annotation file: that of its own name, or else the one that it names.

        Raises UserError if its own name or the one that it has, `name` or "", fits two pictures, and the other none.
        If both are there and differ, the report says so, and its own name counts.
        """
        fits, faults = [], []
        for look in (lambda: self.of_stem(path.stem, near=path)), (lambda: name and self.find(name, path)):
            try:
                fits += filter(None, [look()])
            except UserError as error:
                faults.append(error)
        if not fits and faults:
            raise faults[0]
        if len(fits) < 2 or os.path.basename(fits[0]) == name:
            return fits[0] if fits else None
        beside = Path(fits[0]).parent == path.parent.relative_to(self.folder)
        if not beside and ("/" in name.replace("\\", "/") or stems(name)[-1] == plain(path.stem)):
            return fits[1]
        if not filecmp.cmp(self.folder / fits[0], self.folder / fits[1], shallow=False):
            what = "an annotation that names another picture than its own name does"
            report.suspect(what, f"{path}: {fits[0]}, not {fits[1]}")
        return fits[0]

    def with_stem(self, path: Path) -> list[str]:
        """Returns the files whose stem is that of `path`, in any folder."""
        self._index()
        return self._by_stem.get(plain(path.stem), [])

    def below(self, place: Path) -> list[str]:
        """Returns the files in a folder of the folder, at any depth."""
        inside = os.path.relpath(place, self.folder)
        every = (one for same in self._index().values() for one in same)
        return [one for one in every if inside == "." or one.startswith(f"{inside}/")]

    def _index(self) -> dict[str, list[str]]:
        if self._by_last is None:
            self._by_last = collections.defaultdict(list)
            for path in folder_conversion.files(self.folder):
                fits = self._suffixes is None or path.suffix.lower() in self._suffixes
                if fits and path.parent.name not in _MASKS:
                    inside = path.relative_to(self.folder).as_posix()
                    self._by_last[plain(path.name)].append(inside)
                    for stem in stems(path.name):
                        self._by_stem[stem].append(inside)
        return self._by_last

    def _one(self, fitting: Sequence[str], name: str, near: Path) -> str:
        """Returns the one file of several that the rules choose.

        Raises UserError if they do not tell two files apart.
        """
        ranks = {one: self._rank(one, name, near) for one in fitting} if len(fitting) > 1 else {}
        best = [one for one in fitting if ranks.get(one) == min(ranks.values(), default=None)]
        first, *others = best
        for other in others:
            two = self.folder / first, self.folder / other
            if not two[0].stat().st_size or not filecmp.cmp(*two, shallow=False):
                raise UserError(
                    f"{near}: {name} fits {two[0]} and {two[1]}; write the folder into the name, or "
                    "give each file a name of its own"
                )
        return first

    def _rank(self, one: str, name: str, near: Path) -> tuple[int, bool, bool, int, bool]:
        """Returns the rank of a file that fits. The lowest rank wins."""
        inside = Path(os.path.relpath(near, self.folder))
        place, folder = inside.parent.as_posix(), os.path.dirname(one)
        posix = name.replace("\\", "/")
        shared = os.path.commonpath([place, folder]) if place != "." and folder else ""
        return (
            split_names.distance(split_names.word_of(inside.with_suffix("").as_posix()), folder),
            one != os.path.normpath(f"{place}/{posix}"),
            os.path.basename(folder).lower() in {*MASK_FOLDERS, "trimaps"},
            -len(shared.split("/")) if shared else 0,
            PurePosixPath(one).name != posix.rpartition("/")[2],
        )
