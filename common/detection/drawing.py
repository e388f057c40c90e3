"""Generates small data sets of pictures with overlapping figures, in the layout of COCO's TFRecords and annotations.

An image has up to `most` figures of four kinds; later figures cover earlier ones. The visible part of a figure is an
object with a box and a mask. Colors, sizes, angles, places and image sizes are random, so only the outline reveals the
kind. As in COCO, some objects are crowds, a few images are empty, and category ids have gaps.
"""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from common.data import record_counts, tfrecords, tiny_data
from common.detection import coco_write, notes

CATEGORIES = {2: "disc", 3: "square", 7: "triangle", 11: "cross"}
SPLITS = {"train": "instances_train2017.json", "val": "instances_val2017.json"}
VERSION = 1  # Version of the drawing: raise it if the same settings produce different pictures.


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The number, size and difficulty of the images. Lengths are fractions of the image's short side, gray values 0..1.

    Attributes:
      seed: seed of all random numbers.
      sizes: (height, width) of the stored JPEGs, in pixels.
      train_images, eval_images: number in each set; the second is not a multiple of a batch, so that there is padding.
      train_files, eval_files: number of shards.
      most: maximum number of figures in an image.
      radius: range of half a figure's extent.
      visible: minimum fraction of a figure that later figures must leave visible.
      crowds: fraction of images in which the smallest figure is annotated as a crowd.
      empty: fraction of images without a figure.
      noise: standard deviation of the noise on each value.
    """

    seed: int = 17
    sizes: tuple[tuple[int, int], ...] = ((96, 128), (128, 96), (112, 112))
    train_images: int = 2000
    eval_images: int = 301
    train_files: int = 8
    eval_files: int = 4
    most: int = 4
    radius: tuple[float, float] = (0.17, 0.32)
    visible: float = 0.4
    crowds: float = 0.03
    empty: float = 0.02
    noise: float = 0.03


def draw(pictures: Pictures, split: str, number: int) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Draws image `number` of a split: (uint8 [H, W, 3], [(category id, bool [H, W] visible mask)])."""
    rng = np.random.default_rng([pictures.seed, list(SPLITS).index(split), number])
    height, width = pictures.sizes[rng.integers(len(pictures.sizes))]
    y, x = np.mgrid[0.5:height, 0.5:width]
    slope = rng.normal(0, 0.15, [2, 3])
    image = rng.uniform(0.2, 0.8, 3) + y[..., None] / height * slope[0] + x[..., None] / width * slope[1]
    figures: list[tuple[int, np.ndarray]] = []
    for _ in range(0 if rng.random() < pictures.empty else rng.integers(1, pictures.most + 1)):
        kind = rng.integers(len(CATEGORIES))
        radius = rng.uniform(*pictures.radius) * min(height, width)
        middle = rng.uniform(radius, np.array([height, width]) - radius)
        turn, color = rng.uniform(-0.4, 0.4), rng.uniform(0, 1, 3)
        if abs(color.mean() - image[int(middle[0]), int(middle[1])].mean()) < 0.2:
            color = (color + 0.5) % 1
        dy, dx = (y - middle[0]) / radius, (x - middle[1]) / radius
        mask = _inside(kind, np.cos(turn) * dx + np.sin(turn) * dy, np.cos(turn) * dy - np.sin(turn) * dx)
        visible = [(k, before & ~mask, before.sum()) for k, before in figures]
        if any(after.sum() < pictures.visible * count for _, after, count in visible):
            continue
        figures = [(k, after) for k, after, _ in visible] + [(int(list(CATEGORIES)[kind]), mask)]
        image = np.where(mask[..., None], color, image)
    image = image + pictures.noise * rng.standard_normal(image.shape)
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8), figures


def _inside(kind: int, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns a mask of the points inside the figure of radius 1; all kinds have about the same area."""
    if kind == 0:
        return u**2 + v**2 < 0.8
    if kind == 1:
        return np.maximum(abs(u), abs(v)) < 0.8
    if kind == 2:
        return (v < 0.75) & (1.6 * abs(u) - 0.9 < v)
    return (np.minimum(abs(u), abs(v)) < 0.35) & (np.maximum(abs(u), abs(v)) < 0.95)


def annotations(pictures: Pictures, split: str) -> tuple[dict[str, Any], dict[int, bytes]]:
    """Returns the COCO annotation file as a dict, and {image id: JPEG}."""
    total = pictures.train_images if split == "train" else pictures.eval_images
    images, objects, encoded = [], [], {}
    for number in range(total):
        pixels, figures = draw(pictures, split, number)
        image_id = 1000 + 3 * number  # Ids do not start at 0 and have gaps.
        jpeg = io.BytesIO()
        Image.fromarray(pixels).save(jpeg, "JPEG", quality=92)
        encoded[image_id] = jpeg.getvalue()
        height, width = pixels.shape[:2]
        images.append({"id": image_id, "file_name": f"{image_id:012d}.jpg", "height": height, "width": width})
        rng = np.random.default_rng([pictures.seed, 9, list(SPLITS).index(split), number])
        crowd = (
            min(range(len(figures)), key=lambda i: figures[i][1].sum())
            if len(figures) > 1 and rng.random() < pictures.crowds
            else None
        )
        for i, (category, mask) in enumerate(figures):
            run_lengths = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
            objects.append(
                {
                    "id": len(objects) + 1,
                    "image_id": image_id,
                    "category_id": category,
                    "iscrowd": int(i == crowd),
                    "area": float(coco_mask.area(run_lengths)),
                    "bbox": coco_mask.toBbox(run_lengths).tolist(),
                    "segmentation": {"size": [height, width], "counts": run_lengths["counts"].decode()},
                }
            )
    categories = [{"id": number, "name": name} for number, name in CATEGORIES.items()]
    return {"images": images, "annotations": objects, "categories": categories}, encoded


def generate(data_dir: str | os.PathLike, pictures: Pictures, benchmark: str) -> None:
    """Writes train-*, val-* and the annotation files into `data_dir`; does nothing if the same data are there.

    Raises UserError if the folder holds other TFRecords or another benchmark's data, or cannot be written.
    """

    def write(folder: Path) -> None:
        for split, total in (("train", pictures.train_files), ("val", pictures.eval_files)):
            content, encoded = annotations(pictures, split)
            serialized = list(
                coco_write.examples(content, lambda image, jpegs=encoded: jpegs[image["id"]], masks=True)
            )
            for i in range(total):
                name = f"{tfrecords.shard_name(split, i, total)}.tfrecord"
                tfrecords.write(folder / name, serialized[i::total])
            (folder / SPLITS[split]).write_text(json.dumps(content))
        notes.write(folder, index=benchmark == "maskrcnn")

    settings = {**dataclasses.asdict(pictures), "version": VERSION}
    patterns = [*(f"{split}-*-of-*" for split in SPLITS), *SPLITS.values(), record_counts.NAME]
    if benchmark == "maskrcnn":
        patterns += [f"{split}.index.npz" for split in SPLITS]
    tiny_data.make(benchmark, data_dir, settings, patterns, write)
