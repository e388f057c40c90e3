"""Converts COCO 2017 to the TFRecords that tf-models and the TPU submissions read, with or without masks.

    python -m common.detection.convert DATA_DIR --train train2017.zip --val val2017.zip \\
        --annotations annotations_trainval2017.zip [--masks]
    python -m common.detection.convert DATA_DIR --train photos --train_annotations train.json \\
        --val photos --val_annotations val.json --train_shards 4 --val_shards 2

Zip files are read in place, never unpacked. The annotation files are copied next to the records as
instances_train2017.json and instances_val2017.json. A shard gets its name when it is complete; after an interruption,
the same command keeps the finished ones.
"""

import argparse
import hashlib
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import conversion, pictures, tfrecords
from common.detection import coco_write, notes
from common.errors import Parser, UserError, answering
from common.files import write_atomically
from common.untrusted import stays_inside

_ORDER_SEED = 2017  # Seed for the order in which shards receive images.
SPLITS = ("train", "val")


class Pictures:
    """Reads JPEGs from a zip file or a folder by file name; `upright` turns them as their EXIF data say."""

    def __init__(self, source: str, upright: bool = False):
        self.source, self._zip, self._upright = source, None, upright
        if not os.path.isdir(source):
            try:
                self._zip = zipfile.ZipFile(source)
            except (OSError, zipfile.BadZipFile) as error:
                raise UserError(f"{source} is not a folder or zip ({error}); download it again") from error
            self._names = {os.path.basename(name): name for name in self._zip.namelist()}

    def read(self, image: Mapping[str, Any]) -> bytes:
        """Returns the JPEG of an entry in "images", after decoding it once as a check.

        Raises UserError if the JPEG is missing, damaged or has another size; the message names the image.
        """
        name, where = image["file_name"], f"{self.source}: image {image['id']} ({image['file_name']})"
        if not stays_inside(name):
            raise UserError(f"{where} leaves the folder of the pictures; get good annotations")
        try:
            encoded = self._zip.read(self._names[name]) if self._zip else Path(self.source, name).read_bytes()
        except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{where} cannot be read ({type(error).__name__}); get a good copy") from error
        try:
            # A user's own pictures were checked before.
            read = pictures.read if self._upright else pictures.checked
            picture = read(encoded, png=True, turn=self._upright)
        except pictures.BadPictureError as error:
            raise UserError(f"{where} is not a whole picture ({error}); get a good copy") from error
        size = image["width"], image["height"]
        if (picture.width, picture.height) != size:
            raise UserError(
                f"{where} has {picture.width}x{picture.height} pixels, its entry says {size[0]}x{size[1]}"
            )
        return picture.encoded


def read_annotations(path: str, split: str) -> bytes:
    """Reads the split's annotation file: `path` itself, or instances_<split>2017.json in a zip file.

    Raises UserError if the file cannot be read.
    """
    try:
        if not path.endswith(".zip"):
            return Path(path).read_bytes()
        with zipfile.ZipFile(path) as packed:
            return packed.read(_member(split))
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: no annotations of {split} in it ({error}); download it again") from error


def _member(split: str) -> str:
    return f"annotations/instances_{split}2017.json"


def convert(
    data_dir: str | os.PathLike,
    split: str,
    source: str,
    annotations: bytes,
    shards: int,
    masks: bool,
    workers: int,
    origin: str = "",
    upright: bool = False,
) -> list[str]:
    """Writes the missing shards of one of SPLITS and its annotation file into `data_dir`.

    Returns a line for each annotation that was left out: image, annotation, reason. Raises UserError if the source is
    damaged, the folder holds other data or cannot be written, or the disk is full.

    Args:
      source: zip file or folder with the pictures.
      annotations: content of the annotation file, whose name in errors is `origin`.
      workers: number of processes.
      upright: whether to turn pictures as their EXIF data say; the published converters do not.
    """
    folder, origin = Path(data_dir), origin or f"the annotations of {split}"
    try:
        content = json.loads(annotations)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin}: not a JSON file ({error}); download the annotations again") from error
    coco_write.check(content, origin, masks)
    images, objects = content["images"], coco_write.by_image(content)
    if not 1 <= shards <= len(images):
        raise UserError(f"--{split}_shards {shards}: must be 1..{len(images)}, the number of images")
    of_files = [Path(source, image["file_name"]) for image in images] if os.path.isdir(source) else [source]
    about = f"{hashlib.sha256(annotations).hexdigest()} {shards} {masks} {conversion.fingerprint(of_files)}"
    conversion.keep_apart(folder, [split], f"convert-{split}.txt", about)
    tasks = []
    for path, part in tfrecords.deal(folder, {split: (images, shards)}, _ORDER_SEED):
        path = path.with_suffix(".tfrecord")
        if not path.exists():
            items = [item for image in part for item in objects.get(image["id"], ())]
            slice_ = {"images": part, "annotations": items, "categories": content["categories"]}
            tasks.append((path, source, slice_, masks, upright))
    dropped = [line for lines in conversion.write_shards(_write_shard, tasks, workers) for line in lines]
    notes.write(folder, index=masks, splits=[split])
    target = folder / f"instances_{split}2017.json"
    write_atomically(target, annotations, "free some space or name another DATA_DIR")
    return dropped


def _write_shard(
    path: Path, source: str, content: dict[str, Any], masks: bool, upright: bool = False
) -> list[str]:
    dropped: list[str] = []
    tfrecords.write(path, coco_write.examples(content, Pictures(source, upright).read, masks, dropped))
    return dropped


@answering(interrupted="interrupted; the same command goes on with the shards that are missing")
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m common.detection.convert`; see --help."""
    parser = Parser(
        prog="python -m common.detection.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data_dir", help="folder for the TFRecords")
    parser.add_argument("--annotations", help="annotations_trainval2017.zip")
    parser.add_argument("--annotations_md5", help="refuse an annotation zip file with another checksum")
    for split, shards in (("train", 256), ("val", 32)):
        parser.add_argument(f"--{split}", required=True, help=f"{split}2017.zip, or a folder of its JPEGs")
        parser.add_argument(f"--{split}_annotations", help="its annotation file, in place of --annotations")
        parser.add_argument(f"--{split}_shards", type=int, default=shards)
        parser.add_argument(f"--{split}_md5", help="refuse a zip file with another checksum")
    parser.add_argument("--masks", action="store_true", help="write the masks too, which Mask R-CNN needs")
    processes = "processes (default: one per core for a zip file of over 1 GB)"
    parser.add_argument("--workers", type=int, help=processes)
    arguments = vars(parser.parse_args(argv))
    if arguments["annotations"]:
        conversion.verify(arguments["annotations"], arguments["annotations_md5"])
    for split in SPLITS:
        _convert_split(split, arguments)
    return 0


def _convert_split(split: str, arguments: Mapping[str, Any]) -> None:
    path = arguments[f"{split}_annotations"] or arguments["annotations"]
    if not path:
        fix = "name the annotation file, or the zip file with --annotations"
        raise UserError(f"--{split}_annotations: {fix}")
    conversion.verify(arguments[split], arguments[f"{split}_md5"])
    large = os.path.isfile(arguments[split]) and os.path.getsize(arguments[split]) > 1e9
    dropped = convert(
        arguments["data_dir"],
        split,
        arguments[split],
        read_annotations(path, split),
        arguments[f"{split}_shards"],
        arguments["masks"],
        arguments["workers"] or (os.cpu_count() or 1 if large else 1),
        f"{path}: {_member(split)}" if path.endswith(".zip") else path,
    )
    for line in dropped[:20]:
        print(f"{split}: left out: {line}", file=sys.stderr)
    print(f"{split}: {arguments[f'{split}_shards']} shards, {len(dropped)} annotations left out")


if __name__ == "__main__":
    sys.exit(main())
