"""Converts ImageNet's tar files, or folders of classes, to the TFRecords that the TPU reference and tf-models read.

    python -m resnet.convert DATA_DIR --train ILSVRC2012_img_train.tar --validation ILSVRC2012_img_val.tar \\
        --validation_labels imagenet_2012_validation_synset_labels.txt
    python -m resnet.convert DATA_DIR --train photos/train --validation photos/val --train_shards 16
    python -m resnet.convert DATA_DIR --train photos/train --hold_out 0.2

The converter reads tar files in place and never unpacks them. It numbers classes from 1, sorted by WordNet id.
A shard gets its final name only when it is complete, so a restart after an interruption keeps the finished shards.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.data import conversion, given_splits, pictures, record_counts, tfrecords
from common.errors import Parser, UserError, answering, near
from resnet import images

_ORDER_SEED = 2012  # Seeds the order that deals images to shards.


def convert(
    data_dir: str | os.PathLike,
    splits: dict[str, tuple[list[images.Item], int]],
    names: dict[str, str],
    workers: int = 1,
) -> None:
    """Writes the shards of `splits`, {prefix: (images, number of shards)}; keeps shards that exist.

    Raises UserError if the first split, "train", lacks a class of a later one, the folder holds another conversion, or
    the disk is full. `names` has readable class names by WordNet id, `workers` is the number of processes.
    """
    folder = Path(data_dir)
    synsets = sorted({item.synset for item in next(iter(splits.values()))[0]})
    labels = {synset: number for number, synset in enumerate(synsets, 1)}
    for split, (items, shards) in splits.items():
        if not 1 <= shards <= len(items):
            raise UserError(f"--{split}_shards {shards}: must be 1..{len(items)}, the number of images")
        unknown = next((item for item in items if item.synset not in labels), None)
        if unknown:
            fix = f"give it some, or another name{near(unknown.synset, synsets)}"
            raise UserError(f"{split}: class {unknown.synset} ({unknown.path}) has no training images; {fix}")
    _note(folder, splits)
    parts = tfrecords.deal(folder, splits, _ORDER_SEED)
    tasks = [(path, part, labels, names) for path, part in parts if not path.is_file()]
    conversion.write_shards(_write_shard, tasks, workers)
    record_counts.write(folder, tfrecords.shard_names((s, shards) for s, (_, shards) in splits.items()))


def _write_shard(path: Path, items: list[images.Item], labels: dict[str, int], names: dict[str, str]) -> None:
    tfrecords.write(
        path, (_example(item, labels[item.synset], names.get(item.synset, item.synset)) for item in items)
    )


def _example(item: images.Item, label: int, name: str) -> bytes:
    """Serializes the same features as the TPU reference's converter, which also turns PNG and CMYK into RGB JPEG."""
    try:
        encoded = item.read()
    except OSError as error:
        raise UserError(f"{item.path}: cannot read {item.name}: {error.strerror}") from error
    try:
        check = item.looked
        if check and pictures.digest(encoded) == check.digest:  # It was checked, and is stored as it is.
            picture = pictures.Picture(encoded, check.width, check.height)
        else:
            picture = pictures.read(encoded, turn=item.upright)
    except pictures.BadPictureError as error:
        raise UserError(f"{item.path}: {item.name} is not a picture ({error}); get a good copy") from error
    return tfrecords.example({
        "image/encoded": picture.encoded, "image/format": "JPEG", "image/colorspace": "RGB",
        "image/channels": 3, "image/height": picture.height, "image/width": picture.width,
        "image/filename": item.name, "image/class/label": label, "image/class/synset": item.synset,
        "image/class/text": name,
    })  # fmt: skip


def _note(folder: Path, splits: dict[str, tuple[list[images.Item], int]]) -> None:
    """Rejects a folder that holds shards of another conversion."""
    digest = conversion.digest_of(splits, lambda item: f"{item.synset} {item.name} {item.size}")
    text = json.dumps({"conversion": digest, **{s: len(items) for s, (items, _) in splits.items()}})
    conversion.keep_apart(folder, splits, "convert.json", text)


def class_names(path: str | os.PathLike | None) -> dict[str, str]:
    """Reads lines with a WordNet id (or class folder) and a name; skips other lines.

    Raises UserError if the file cannot be read, or a line is not text; the message names the flag.
    """
    return given_splits.names_of(path, images.lines(path, "--class_names")) if path else {}


def _splits(arguments: argparse.Namespace) -> dict[str, tuple[list[images.Item], int]]:
    if (arguments.validation is None) == (arguments.hold_out is None):
        raise UserError("give either --validation or --hold_out")
    for option, path, md5 in (
        ("--train", arguments.train, arguments.train_md5),
        ("--validation", arguments.validation, arguments.validation_md5),
    ):
        if path is not None and not os.path.exists(path):
            raise UserError(f"{option} {path}: not there; correct the path or download it")
        conversion.verify(path, md5)
    train = images.train_items(arguments.train)
    if arguments.hold_out is None:
        validation = images.validation_items(
            arguments.validation, arguments.validation_labels, {item.synset for item in train}
        )
    elif 0 < arguments.hold_out < 1:
        train, validation = images.hold_out(train, arguments.hold_out)
    else:
        raise UserError(f"--hold_out {arguments.hold_out}: must lie between 0 and 1")
    return {"train": (train, arguments.train_shards), "validation": (validation, arguments.validation_shards)}


@answering(interrupted="interrupted; the same command goes on with the shards that are missing")
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m resnet.convert`, see --help; returns the exit code."""
    parser = Parser(
        prog="python -m resnet.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data_dir", help="folder for the TFRecords")
    parser.add_argument("--train", required=True, help="ILSVRC2012_img_train.tar, or a folder CLASS/*.JPEG")
    parser.add_argument("--validation", help="ILSVRC2012_img_val.tar, or a folder CLASS/*.JPEG")
    parser.add_argument("--validation_labels", help="the WordNet id of each image of a validation tar file")
    part = "validate on this part of --train instead"
    parser.add_argument("--hold_out", type=float, metavar="PART", help=part)
    parser.add_argument("--class_names", metavar="FILE", help="lines of WordNet id and name")
    parser.add_argument("--train_shards", type=int, default=1024)
    parser.add_argument("--validation_shards", type=int, default=128)
    parser.add_argument("--train_md5", help="refuse a training tar file with another checksum")
    parser.add_argument("--validation_md5", help="refuse a validation tar file with another checksum")
    processes = "processes (default: one per core for over 1 GB of images)"
    parser.add_argument("--workers", type=int, help=processes)
    arguments = parser.parse_args(argv)
    splits = _splits(arguments)
    size = sum(item.size for items, _ in splits.values() for item in items)
    workers = arguments.workers or (os.cpu_count() or 1 if size > 1e9 else 1)
    convert(arguments.data_dir, splits, class_names(arguments.class_names), workers)
    for split, (items, shards) in splits.items():
        per_class = Counter(item.synset for item in items)
        print(f"{split}: {len(items)} images of {len(per_class)} classes in {shards} shards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
