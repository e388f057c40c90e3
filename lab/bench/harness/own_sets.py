"""Data sets of different sizes and class counts for lab/bench/here.py: generated ones, and parts of the real ones.

Each function fills a folder and returns the arguments of `timetotrain data`.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from common.data import folder_conversion, videos
from lab.studies import data

_SIZE = 96  # Pixels of a generated picture's side.
_COLOURS = ((220, 60, 50), (60, 190, 80), (70, 100, 230), (225, 195, 60))
_CORNERS = (3, 4, 5, 0)  # Corners of a shape; 0 is a disc. With _COLOURS, 16 classes.
_DIRECTIONS = ((2, 0), (-2, 0), (0, 2), (0, -2), (2, 2), (-2, -2))


def _noise(rng: np.random.Generator) -> Image.Image:
    return Image.fromarray(np.clip(rng.normal(110, 40, (_SIZE, _SIZE, 3)), 0, 255).astype(np.uint8))


def _draw(image: Image.Image, kind: int, box: Sequence[int], rng: np.random.Generator) -> list[float]:
    """Draws a shape of a class into a square box; returns its polygon."""
    left, top, side = box
    count = _CORNERS[kind % 4] or 24
    angles = np.arange(count) * (2 * np.pi / count) - np.pi / 2
    points = np.stack([np.cos(angles), np.sin(angles)], 1) * side / 2 + side / 2 + [left, top]
    colour = tuple(int(value) for value in np.array(_COLOURS[kind // 4 % 4]) + rng.integers(-25, 25, 3))
    ImageDraw.Draw(image).polygon([tuple(point) for point in points.tolist()], fill=colour)
    return points.ravel().tolist()


def photographs(folder: Path, classes: int, each: int) -> list[Path]:
    """A folder per class: one shape of a class's colour and form anywhere on noise."""
    rng = np.random.default_rng(classes)
    for kind, number in itertools.product(range(classes), range(each)):
        place = folder / f"kind{kind:02d}"
        place.mkdir(parents=True, exist_ok=True)
        image, side = _noise(rng), int(rng.integers(_SIZE // 4, _SIZE // 2))
        _draw(image, kind, [*rng.integers(0, _SIZE - side, 2).tolist(), side], rng)
        image.save(place / f"{number:03d}.jpg", quality=95)
    return [folder]


def objects(folder: Path, classes: int, count: int) -> list[Path]:
    """Pictures of up to three shapes each, with boxes and polygons in COCO's JSON."""
    rng, images, items = np.random.default_rng(classes), [], []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image = _noise(rng)
        for cell in rng.permutation(4)[: int(rng.integers(1, 4))]:  # A quarter each, so that none overlap.
            side = int(rng.integers(_SIZE // 5, _SIZE // 2 - 2))
            left, top = (int(cell) % 2 * _SIZE // 2, int(cell) // 2 * _SIZE // 2)
            kind = int(rng.integers(classes))
            polygon = _draw(image, kind, (left, top, side), rng)
            corners = np.array(polygon).reshape(-1, 2)
            box = [*corners.min(0).tolist(), *np.ptp(corners, 0).tolist()]
            entry = {"id": len(items) + 1, "image_id": number, "category_id": kind}
            items.append(entry | {"bbox": box, "segmentation": [polygon], "iscrowd": 0})
        image.save(folder / f"{number:04d}.png")
        images.append({"id": number, "file_name": f"{number:04d}.png", "width": _SIZE, "height": _SIZE})
    names = [{"id": kind, "name": f"kind{kind:02d}"} for kind in range(classes)]
    content = {"images": images, "annotations": items, "categories": names}
    (folder / "labels.json").write_text(json.dumps(content))
    return [folder]


def clips(folder: Path, classes: int, each: int) -> list[Path]:
    """A folder per class: a bright square moves in the class's direction."""
    rng, side, square = np.random.default_rng(classes), 64, 14
    for kind, number in itertools.product(range(classes), range(each)):
        (folder / f"way{kind}").mkdir(parents=True, exist_ok=True)
        start = rng.integers(0, side - square, 2)
        frames = rng.integers(30, 60, (16, side, side, 3)).astype(np.uint8)
        for index, frame in enumerate(frames):
            left, top = (start + index * np.array(_DIRECTIONS[kind])) % (side - square)
            frame[top : top + square, left : left + square] = 220
        videos.write(folder / f"way{kind}" / f"{number:03d}.mp4", frames, 8)
    return [folder]


def sentences(folder: Path, words: int, count: int) -> list[Path]:
    """Sentences of made words; the translation has other words, each two neighbours in the other order."""
    rng = np.random.default_rng(words)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    made = [a + b for a, b in itertools.product(syllables, syllables)]
    source, target = (rng.permutation(made)[:words] for _ in range(2))
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[list[str]] = [[], []]
    for _ in range(count):
        chosen = rng.integers(0, words, int(rng.integers(2, 8)))
        pairs = [chosen[i : i + 2][::-1] for i in range(0, len(chosen), 2)]
        lines[0].append(" ".join(source[chosen]))
        lines[1].append(" ".join(target[np.concatenate(pairs)]))
    paths = [folder / "train.en", folder / "train.de"]
    for path, part in zip(paths, lines):
        path.write_text("\n".join(part) + "\n")
    return paths


def tiny_imagenet(folder: Path, classes: int, each: int) -> list[Path]:
    """A part of Tiny ImageNet: `each` training pictures of the first classes, half as many to evaluate on."""
    source = data.unpack("tiny_imagenet_20")
    for split, count in (("train", each), ("val", min(50, each // 2))):
        for place in folder_conversion.folders(source / split)[:classes]:
            (folder / split / place.name).mkdir(parents=True, exist_ok=True)
            for path in folder_conversion.files(place)[:count]:
                _link(path, folder / split / place.name / path.name)
    return [folder]


def frames(folder: Path, classes: int, each: int) -> list[Path]:
    """Photographs: the middle frames of UCF101's clips, split as the clips are."""
    for path, label, split in _ucf101(classes, each):
        place = folder / ("train" if split == "train" else "val") / label
        place.mkdir(parents=True, exist_ok=True)
        shown = videos.read(path, 128).frames
        (place / f"{path.stem}.jpg").write_bytes(shown[len(shown) // 2])
    return [folder]


def ucf101(folder: Path, classes: int, each: int) -> list[Path]:
    """A part of UCF101: at most `each` clips of the first classes for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{path},{label},{split}" for path, label, split in _ucf101(classes, each)]
    (folder / "clips.csv").write_text("path,label,split\n" + "\n".join(lines) + "\n")
    return [folder / "clips.csv"]


def _ucf101(classes: int, each: int) -> list[tuple[Path, str, str]]:
    source = data.unpack("ucf101_10_128")
    with open(source / "metadata" / "clips.csv", newline="", encoding="utf-8") as file:
        rows = [(source / row["path"], row["label"], row["split"]) for row in csv.DictReader(file)]
    names = sorted({label for _, label, _ in rows})[:classes]
    found = []
    for name, split in itertools.product(names, sorted({split for *_, split in rows})):
        found += [row for row in rows if row[1:] == (name, split)][:each]
    return found


def nuclei(_: Path) -> list[Path]:
    """The nuclei of the 2018 Data Science Bowl."""
    return [data.unpack("dsb2018_256")]


def coco(folder: Path, most: int = 0) -> list[Path]:
    """100 and 100 pictures of COCO; `most` keeps only the classes that have most objects to train on."""
    source = data.unpack("coco200")
    contents = {
        split: json.loads(next(source.rglob(f"instances_{split}2017_100.json")).read_text())
        for split in ("train", "val")
    }
    used = [item["category_id"] for item in contents["train"]["annotations"]]
    kept = sorted(set(used), key=lambda number: (-used.count(number), number))[: most or None]
    for split, content in contents.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for kind, field in (("annotations", "category_id"), ("categories", "id")):
            content[kind] = [entry for entry in content[kind] if entry[field] in kept]
        (folder / split / "labels.json").write_text(json.dumps(content))
        for image in content["images"]:
            name = Path(image["file_name"]).name
            _link(next(source.rglob(name)), folder / split / name)
    return [folder]


def multi30k(folder: Path, count: int, back: bool = False) -> list[Path]:
    """The first English and German sentences of Multi30k; `back` translates from German."""
    source = data.unpack("text") / "multi30k"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for language in ("de", "en") if back else ("en", "de"):
        lines = gzip.decompress((source / f"train.{language}.gz").read_bytes()).splitlines(True)[:count]
        paths.append(folder / f"train.{language}")
        paths[-1].write_bytes(b"".join(lines))
    return paths


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    target.symlink_to(source.resolve())
