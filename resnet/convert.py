"""Converts ImageNet's tar files, or folders of classes, to the TFRecords that the TPU reference and tf-models read.

    python -m resnet.convert DATA_DIR --train ILSVRC2012_img_train.tar --validation ILSVRC2012_img_val.tar \\
        --validation-labels imagenet_2012_validation_synset_labels.txt
    python -m resnet.convert DATA_DIR --train photos/train --validation photos/val --train-shards 16
    python -m resnet.convert DATA_DIR --train photos/train --hold-out 0.2

The converter reads tar files in place and never unpacks them. It numbers classes from 1, sorted by WordNet id.
A shard gets its final name only when it is complete, so a restart after an interruption keeps the finished shards.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import tarfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tqdm

from common.data import conversion, folder_conversion, pictures, record_counts, tables, text_files, tfrecords
from common.data.report import Report
from common.errors import UserError

_ORDER_SEED = 2012  # Seeds the order that deals images to shards.


@dataclasses.dataclass(frozen=True)
class Item:
    """An image file: `size` bytes at `offset` in the file `path`, with its class (WordNet id) and its name.

    `upright` rotates the image by its EXIF orientation; the published converters do not. `looked` is what a check
    found, or None.
    """

    path: str
    offset: int
    size: int
    synset: str
    name: str
    upright: bool = False
    looked: folder_conversion.Looked | None = None

    @property
    def place(self) -> str:
        """Its path, with the name of the member of a tar file, which no other image has."""
        return f"{self.path}/{self.name}" if self.offset else self.path

    def read(self) -> bytes:
        """Returns the file's content.

        Raises:
          OSError: it cannot be read.
        """
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def train_items(source: str | os.PathLike, report: Report | None = None) -> list[Item]:
    """Lists the images of a folder with one folder per class, or of a tar file with one tar file per class.

    Args:
      source: folder or tar file.
      report: for a user's own folder: receives the files that are no images; the images are turned upright.

    Raises:
      UserError: the source has no images, or a tar file is damaged.
    """
    source = Path(source)
    return _found(source, _in_folders(source, report) if source.is_dir() else _in_nested_tar(source))


def validation_items(
    source: str | os.PathLike, labels: str | os.PathLike | None, classes: Collection[str]
) -> list[Item]:
    """Lists the images of a folder with one folder per class, or of a flat tar file.

    Args:
      source: folder or tar file.
      labels: for a tar file, a text file of the images' classes, one WordNet id per line, in name order.
      classes: the classes of the training images.

    Raises:
      UserError: the source has no images, a tar file is damaged, the numbers of labels and images differ, or a label is
        not in `classes`.
    """
    source = Path(source)
    if source.is_dir():
        return _found(source, _in_folders(source))
    if labels is None:
        raise UserError(f"{source} holds no labels; name the file of them with --validation-labels")
    synsets = _lines(labels, "--validation-labels")
    while synsets and not synsets[-1]:
        synsets.pop()
    for number, synset in enumerate(synsets, 1):
        if synset not in classes:
            some = ", ".join(sorted(classes)[:2])
            raise UserError(
                f"{labels}:{number}: {synset[:40]!r} is none of the {len(classes)} classes of --train ({some}, ...); "
                "each line must be one of their WordNet ids"
            )
    listed = sorted(members(source), key=lambda member: member.name)
    if len(listed) != len(synsets):
        raise UserError(
            f"{labels}: {len(synsets)} labels for {len(listed)} images in {source}; not its labels"
        )
    return _found(
        source,
        (
            Item(str(source), member.offset_data, member.size, synset, Path(member.name).name)
            for member, synset in zip(listed, synsets)
        ),
    )


def hold_out(items: Iterable[Item], part: float) -> tuple[list[Item], list[Item]]:
    """Splits images into (kept, held out) by a hash of their names; holds out about `part` of each class."""
    kept, out = [], []
    for item in items:
        draw = int.from_bytes(hashlib.sha256(item.name.encode()).digest()[:8], "big") / 2**64
        (out if draw < part else kept).append(item)
    return kept, out


def convert(
    data_dir: str | os.PathLike,
    splits: dict[str, tuple[list[Item], int]],
    names: dict[str, str],
    workers: int = 1,
) -> None:
    """Writes the shards of `splits`, {prefix: (images, number of shards)}; keeps shards that exist.

    Args:
      data_dir: folder for the TFRecords.
      splits: "train" comes first and defines the classes.
      names: readable class names by WordNet id.
      workers: number of processes.

    Raises:
      UserError: the first split lacks a class of a later one, the folder holds another conversion, or the disk is full.
    """
    folder = Path(data_dir)
    synsets = sorted({item.synset for item in next(iter(splits.values()))[0]})
    labels = {synset: number for number, synset in enumerate(synsets, 1)}
    for split, (items, shards) in splits.items():
        if not 1 <= shards <= len(items):
            raise UserError(f"--{split}-shards {shards}: must be 1..{len(items)}, the number of images")
        unknown = next((item for item in items if item.synset not in labels), None)
        if unknown:
            raise UserError(
                f"{split}: class {unknown.synset} ({unknown.path}) has no training images; check the sources"
            )
    _note(folder, splits)
    tasks = []
    for split, (items, shards) in splits.items():
        order = np.random.default_rng(_ORDER_SEED).permutation(len(items))
        for shard in range(shards):
            path = folder / tfrecords.shard_name(split, shard, shards)
            if not path.is_file():
                tasks.append((path, [items[i] for i in order[shard::shards]], labels, names))
    conversion.write_shards(_write_shard, tasks, workers)
    record_counts.write(folder, tfrecords.shard_names((s, shards) for s, (_, shards) in splits.items()))


def _write_shard(path: Path, items: list[Item], labels: dict[str, int], names: dict[str, str]) -> None:
    tfrecords.write(
        path, (_example(item, labels[item.synset], names.get(item.synset, item.synset)) for item in items)
    )


def _example(item: Item, label: int, name: str) -> bytes:
    """Serializes the same features as the TPU reference's converter, which also turns PNG and CMYK into RGB JPEG."""
    try:
        encoded = item.read()
    except OSError as error:
        raise UserError(f"{item.path}: cannot read {item.name}: {error.strerror}") from error
    try:
        known = item.looked
        if known and pictures.digest(encoded) == known.digest:  # It was checked, and is stored as it is.
            picture = pictures.Picture(encoded, known.width, known.height)
        else:
            picture = pictures.read(encoded, turn=item.upright)
    except pictures.BadPictureError as error:
        raise UserError(f"{item.path}: {item.name} is no picture ({error}); get a sound copy") from error
    return tfrecords.example(
        {
            "image/encoded": picture.encoded,
            "image/format": "JPEG",
            "image/colorspace": "RGB",
            "image/channels": 3,
            "image/height": picture.height,
            "image/width": picture.width,
            "image/filename": item.name,
            "image/class/label": label,
            "image/class/synset": item.synset,
            "image/class/text": name,
        }
    )


def _note(folder: Path, splits: dict[str, tuple[list[Item], int]]) -> None:
    """Rejects a folder that holds shards of another conversion."""
    digest = hashlib.sha256()
    for split, (items, shards) in splits.items():
        digest.update(f"{split} {shards}\n".encode())
        for item in items:
            digest.update(f"{item.synset} {item.name} {item.size}\n".encode(errors="surrogateescape"))
    text = json.dumps(
        {"conversion": digest.hexdigest(), **{s: len(items) for s, (items, _) in splits.items()}}
    )
    conversion.keep_apart(folder, splits, "convert.json", text)


def _in_folders(source: Path, report: Report | None = None) -> Iterator[Item]:
    for folder in folder_conversion.folders(source):
        for path in folder_conversion.files(folder, report):
            if path.suffix.lower() in pictures.SUFFIXES or pictures.is_picture(path):
                yield _item(path, folder.name, upright=report is not None)
            elif report is not None:
                report.skip(f"no picture ({path.suffix or 'no suffix'})", str(path))


def _item(path: Path, label: str, upright: bool) -> Item:
    return Item(str(path), 0, path.stat().st_size, text_files.normal(label), path.name, upright)


def listed(source: Path, report: Report) -> list[tuple[Item, str]]:
    """Returns the images of a user's CSV file, each with its split in lower case, "" without one.

    Args:
      source: the file; see common/data/tables.py.
      report: receives the images that do not exist.

    Raises:
      UserError: the file cannot be read, lists no image that exists, or a row is bad; the message names file and line.
    """
    found = []
    for example in tables.examples(tables.read(source), report=report):
        if os.path.isfile(example.path):
            found.append((_item(example.path, example.label, upright=True), example.split))
        else:
            report.leave_out("no such file", f"{source}: line {example.line}: {example.path}")
    if not found:
        raise UserError(f"{source}: none of its images exists; paths are relative to its folder")
    return found


def _in_nested_tar(source: Path) -> Iterator[Item]:
    for outer in members(source):
        for inner in members(source, outer.offset_data):
            yield Item(
                str(source), inner.offset_data, inner.size, Path(outer.name).stem, Path(inner.name).name
            )


def members(source: Path, offset: int = 0) -> list[tarfile.TarInfo]:
    """Lists the files in the tar file that begins at `offset`; offset_data counts from the start of `source`.

    Raises:
      UserError: the tar file cannot be read, or is damaged.
    """
    try:
        with open(source, "rb") as file:
            file.seek(offset)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                found = [member for member in tar if member.isfile()]
            end = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise UserError(
            f"cannot read {source}: {error.strerror}; download it again or correct the path"
        ) from error
    except (tarfile.TarError, ValueError, OverflowError) as error:  # The latter two: sizes that no file has.
        raise UserError(f"{source}: damaged at byte {offset} ({error}); download it again") from error
    if found and found[-1].offset_data + found[-1].size > end:
        raise UserError(f"{source}: ends inside {found[-1].name}; download it again")
    return found


def _found(source: Path, items: Iterable[Item]) -> list[Item]:
    items = list(items)
    if not items:
        loose = source.is_dir() and next(filter(pictures.is_picture, folder_conversion.files(source)), None)
        if loose:
            raise UserError(
                f"{source}: its pictures, such as {loose.name}, are in no class's folder; put each class into a folder "
                "of its own, or give a CSV file of path,label"
            )
        raise UserError(f"{source}: no images; expected folders CLASS/*.JPEG, or ImageNet's tar file")
    return items


def verify(path: str | os.PathLike, expected: str) -> None:
    """Compares a file's MD5 with the published one.

    Raises:
      UserError: they differ, or the file cannot be read.
    """
    digest = hashlib.md5()
    try:
        size = os.path.getsize(path)
        with (
            open(path, "rb") as file,
            tqdm.tqdm(
                total=size, unit="B", unit_scale=True, desc=f"verifying {Path(path).name}", disable=None
            ) as bar,
        ):
            while block := file.read(1 << 22):
                digest.update(block)
                bar.update(len(block))
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; download it again or correct the path"
        ) from error
    if digest.hexdigest() != expected.lower():
        raise UserError(
            f"{path}: MD5 is {digest.hexdigest()}, must be {expected}; remove the file, download it again"
        )


def class_names(path: str | os.PathLike | None, flag: str = "--class-names") -> dict[str, str]:
    """Reads lines with a WordNet id (or class folder) and a name; skips other lines.

    Raises:
      UserError: the file cannot be read, or a line is no text; the message names `flag`.
    """
    if not path:
        return {}
    names: dict[str, str] = {}
    for number, line in enumerate(_lines(path, flag), 1):
        words = text_files.normal(line).split(None, 1)
        if len(words) == 2 and names.setdefault(words[0], words[1]) != words[1]:
            raise UserError(
                f"{path}: line {number}: {words[0]} is {words[1]}, above {names[words[0]]}; give a class one name"
            )
    return names


def _lines(path: str | os.PathLike, flag: str) -> list[str]:
    return [line.strip() for line in text_files.read(path, f"give {flag} another file")]


def _splits(arguments: argparse.Namespace) -> dict[str, tuple[list[Item], int]]:
    if (arguments.validation is None) == (arguments.hold_out is None):
        raise UserError("give either --validation or --hold-out")
    for option, path, md5 in (
        ("--train", arguments.train, arguments.train_md5),
        ("--validation", arguments.validation, arguments.validation_md5),
    ):
        if path is not None and not os.path.exists(path):
            raise UserError(f"{option} {path}: not there; correct the path or download it")
        if md5:
            verify(path, md5)
    train = train_items(arguments.train)
    if arguments.hold_out is None:
        validation = validation_items(
            arguments.validation, arguments.validation_labels, {item.synset for item in train}
        )
    elif 0 < arguments.hold_out < 1:
        train, validation = hold_out(train, arguments.hold_out)
    else:
        raise UserError(f"--hold-out {arguments.hold_out}: must lie between 0 and 1")
    return {"train": (train, arguments.train_shards), "validation": (validation, arguments.validation_shards)}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m resnet.convert`, see --help; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m resnet.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data_dir", help="folder for the TFRecords")
    parser.add_argument("--train", required=True, help="ILSVRC2012_img_train.tar, or a folder CLASS/*.JPEG")
    parser.add_argument("--validation", help="ILSVRC2012_img_val.tar, or a folder CLASS/*.JPEG")
    parser.add_argument("--validation-labels", help="the WordNet id of each image of a validation tar file")
    parser.add_argument(
        "--hold-out", type=float, metavar="PART", help="validate on this part of --train instead"
    )
    parser.add_argument("--class-names", metavar="FILE", help="lines of WordNet id and name")
    parser.add_argument("--train-shards", type=int, default=1024)
    parser.add_argument("--validation-shards", type=int, default=128)
    parser.add_argument("--train-md5", help="refuse a training tar file with another checksum")
    parser.add_argument("--validation-md5", help="refuse a validation tar file with another checksum")
    parser.add_argument(
        "--workers", type=int, help="processes (default: one per core for over 1 GB of images)"
    )
    arguments = parser.parse_args(argv)
    try:
        splits = _splits(arguments)
        size = sum(item.size for items, _ in splits.values() for item in items)
        workers = arguments.workers or (os.cpu_count() or 1 if size > 1e9 else 1)
        convert(arguments.data_dir, splits, class_names(arguments.class_names), workers)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the shards that are missing", file=sys.stderr)
        return 130
    for split, (items, shards) in splits.items():
        per_class = Counter(item.synset for item in items)
        print(f"{split}: {len(items)} images of {len(per_class)} classes in {shards} shards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
