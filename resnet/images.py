"""Finds images and their classes in class folders, in a CSV file, or in ImageNet's tar files, which stay packed."""

import dataclasses
import hashlib
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from common.data import folder_conversion, given_splits, pictures, table_examples, tables, text_files
from common.data.partners import LOSSLESS, MASK_ENDING
from common.data.report import Report
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Item:
    """An image file: `size` bytes at `offset` in the file `path`, with its class (WordNet id) and its name.

    `upright` rotates the image by its EXIF orientation; the published converters do not. `looked` is what a check
    found, or None. Images of one `group`, such as one patient's, stay on one side of a split.
    """

    path: str
    offset: int
    size: int
    synset: str
    name: str
    upright: bool = False
    looked: pictures.Picture | None = None
    group: str = ""

    def read(self) -> bytes:
        """Returns the file's content. Raises OSError if it cannot be read."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def train_items(source: str | os.PathLike, report: Report | None = None) -> list[Item]:
    """Lists the images of a folder with one folder per class, or of a tar file with one tar file per class.

    Raises UserError if the source has no images, or a tar file is damaged.

    Args:
      source: folder or tar file.
      report: for a user's own folder: receives the files that are not images; the images are turned upright.
    """
    source = Path(source)
    return _not_empty(source, _in_folders(source, report) if source.is_dir() else _in_nested_tar(source))


def validation_items(
    source: str | os.PathLike, labels: str | os.PathLike | None, classes: Collection[str]
) -> list[Item]:
    """Lists the images of a folder with one folder per class, or of a flat tar file.

    Raises UserError if the source has no images, a tar file is damaged, the numbers of labels and images differ, or a
    label is not in `classes`.

    Args:
      source: folder or tar file.
      labels: for a tar file, a text file of the images' classes, one WordNet id per line, in name order.
      classes: the classes of the training images.
    """
    source = Path(source)
    if source.is_dir():
        return _not_empty(source, _in_folders(source))
    if labels is None:
        raise UserError(f"{source} holds no labels; name the file of them with --validation_labels")
    synsets = lines(labels, "--validation_labels")
    while synsets and not synsets[-1]:
        synsets.pop()
    for number, synset in enumerate(synsets, 1):
        if synset not in classes:
            names = ", ".join(sorted(classes)[:2])
            raise UserError(
                f"{labels}:{number}: {synset[:40]!r} is none of the {len(classes)} classes of --train ({names}, ...); "
                "each line must be one of their WordNet ids"
            )
    listed = sorted(members(source), key=lambda member: member.name)
    if len(listed) != len(synsets):
        fix = "not its labels"
        raise UserError(f"{labels}: {len(synsets)} labels for {len(listed)} images in {source}; {fix}")
    return _not_empty(
        source,
        (
            Item(str(source), member.offset_data, member.size, synset, Path(member.name).name)
            for member, synset in zip(listed, synsets)
        ),
    )


def hold_out(items: Iterable[Item], part: float) -> tuple[list[Item], list[Item]]:
    """Splits images into (kept, held out) by a hash of their names; holds out about `part` of each class."""
    train, out = [], []
    for item in items:
        draw = int.from_bytes(hashlib.sha256(item.name.encode()).digest()[:8], "big") / 2**64
        (out if draw < part else train).append(item)
    return train, out


def listed(source: Path, report: Report) -> list[tuple[Item, str]]:
    """Returns the images of a user's CSV file, each with its split in lower case, "" without one.

    Args:
      source: the file; see common/data/table_examples.py.
      report: receives the images that do not exist.

    Raises:
      UserError: the file cannot be read, lists no image that exists, or a row is bad; the message names file and line.
    """
    examples = []
    for example in table_examples.examples(tables.read(source), report=report):
        if os.path.isfile(example.path):
            item = _item(example.path, example.label, upright=True)
            examples.append((dataclasses.replace(item, group=example.group), example.split))
        else:
            report.leave_out("no such file", f"{source}: line {example.line}: {example.path}")
    if not examples:
        raise UserError(f"{source}: none of its images exists; paths are relative to its folder")
    return examples


def members(source: Path, offset: int = 0) -> list[tarfile.TarInfo]:
    """Lists the files in the tar file that begins at `offset`; offset_data counts from the start of `source`.

    Raises UserError if the tar file cannot be read, or is damaged.
    """
    try:
        with open(source, "rb") as file:
            file.seek(offset)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                files = [member for member in tar if member.isfile()]
                file.seek(tar.offset)
                block = file.read(tarfile.BLOCKSIZE)
    except OSError as error:
        fix = "download it again or correct the path"
        raise UserError(f"cannot read {source}: {error.strerror}; {fix}") from error
    except (tarfile.TarError, ValueError, OverflowError) as error:  # The latter two: sizes that no file has.
        raise UserError(f"{source}: damaged at byte {offset} ({error}); download it again") from error
    # A whole tar file has an empty block behind the last member.
    if files and block != bytes(tarfile.BLOCKSIZE):
        raise UserError(f"{source}: ends inside or behind {files[-1].name}; download it again")
    return files


def lines(path: str | os.PathLike, flag: str) -> list[str]:
    """Returns a text file's lines without the spaces around them; `flag` names the file.

    Raises UserError if it cannot be read, or is not text.
    """
    return [line.strip() for line in text_files.read(path, f"give {flag} another file")]


def _in_folders(source: Path, report: Report | None = None) -> Iterator[Item]:
    for folder in folder_conversion.folders(source):
        paths = folder_conversion.files(folder, report)
        stems = {(path.parent, path.stem) for path in paths if path.suffix.lower() in pictures.SUFFIXES}
        for path in paths:
            whole = MASK_ENDING.sub("", path.stem)
            may_be_mask = report is not None and path.suffix.lower() in LOSSLESS and whole != path.stem
            if may_be_mask and (path.parent, whole) in stems:
                report.skip("a mask beside its picture", str(path))
            elif path.suffix.lower() in pictures.SUFFIXES or pictures.is_picture(path):
                yield _item(path, folder.name, upright=report is not None)
            elif report is not None:
                report.skip(f"no picture ({path.suffix or 'no suffix'})", str(path))


def _item(path: Path, label: str, upright: bool) -> Item:
    return Item(str(path), 0, path.stat().st_size, text_files.normal(label), path.name, upright)


def _in_nested_tar(source: Path) -> Iterator[Item]:
    for outer in members(source):
        for inner in members(source, outer.offset_data):
            yield Item(
                str(source), inner.offset_data, inner.size, Path(outer.name).stem, Path(inner.name).name
            )


def _not_empty(source: Path, items: Iterable[Item]) -> list[Item]:
    items = list(items)
    if not items:
        raise given_splits.nothing(
            source, "pictures", pictures.is_picture, "folders CLASS/*.JPEG, or ImageNet's tar file"
        )
    return items
