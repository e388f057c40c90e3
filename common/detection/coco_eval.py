"""Computes COCO's average precision with pycocotools from an evaluation's arrays. TensorFlow-free.

It runs in worker processes (common/train/evaluation_pool.py); each process reads the annotations once. Boxes alone take
seconds. For masks, many workers paste and encode a few images at a time (`parts`, `encoded_results`); then two workers
score boxes and masks (`score`).
"""

import contextlib
import functools
import io
import json
import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from common.detection import masks, shapes

# The order of COCOeval.stats.
STATISTICS = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"),
)
OF_CLASS = "AP of "


@functools.lru_cache(maxsize=4)
def ground_truth(annotations: str) -> COCO:
    """Reads and indexes the annotation file.

    Raises ValueError if it is not a COCO file, or has an object that cannot be evaluated; the message names the image.
    """
    try:
        with open(annotations, encoding="utf-8") as file:
            content = json.load(file)
        images = {image["id"]: image for image in content["images"]}
        for image in images.values():
            for side in ("height", "width"):
                if not (_numbers([image.get(side)]) and image[side] > 0):
                    raise ValueError(f"{annotations}: image {image['id']}: {side} is {_text_of(image, side)}")
        categories = {category["id"] for category in content["categories"]}
        for item in content["annotations"]:
            _check(item, images, categories, annotations)
    except OSError as error:
        raise ValueError(f"cannot read {annotations}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{annotations} is not a COCO annotation file ({type(error).__name__}: {error})"
        ) from error
    truth = COCO()
    truth.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
    return truth


@functools.lru_cache(maxsize=4)
def image_sizes(annotations: str) -> dict[int, tuple[int, int]]:
    """Returns {image id: (height, width)}; most workers need nothing else from the annotation file."""
    with open(annotations, encoding="utf-8") as file:
        images = json.load(file)["images"]
    return {image["id"]: (image["height"], image["width"]) for image in images}


def check_masks(annotations: str) -> None:
    """Checks that masks can be evaluated, beyond what `ground_truth` checks.

    Raises ValueError if an object has no mask or an invalid one; the message names its image.
    """
    content = ground_truth(annotations).dataset
    images = {image["id"]: image for image in content["images"]}
    for item in content["annotations"]:
        shape, name = item.get("segmentation"), _name(item, annotations)
        size = images[item["image_id"]]
        if not shape:
            raise ValueError(f"{name}: it has no segmentation")
        try:
            sound = shapes.checked(shape, size["height"], size["width"])
        except shapes.BadShapeError as error:
            raise ValueError(
                f"{name}: its segmentation is neither polygons nor run lengths of the image: {error}"
            ) from error
        if isinstance(shape, list) and sound != shape:  # pycocotools reads the file's own polygons.
            raise ValueError(f"{name}: its segmentation is neither polygons within the image nor run lengths")


def _check(item: Mapping, images: Mapping, categories: set, path: str) -> None:
    name = _name(item, path)
    if item["image_id"] not in images:
        raise ValueError(f"{name}: there is no such image")
    if item["category_id"] not in categories:
        raise ValueError(f"{name}: category {item['category_id']} is unknown")
    box = item.get("bbox")
    if not (isinstance(box, list) and len(box) == 4 and _numbers(box)):
        raise ValueError(f"{name}: bbox is {_text_of(item, 'bbox')}")
    if not (box[2] > 0 and box[3] > 0):
        raise ValueError(f"{name}: box {box} has no area")
    if not _numbers([item.get("area")]):
        raise ValueError(f"{name}: area is {_text_of(item, 'area')}")
    if item.get("iscrowd") not in (0, 1):
        raise ValueError(f"{name}: iscrowd is {_text_of(item, 'iscrowd')}")
    shape, size = item.get("segmentation"), images[item["image_id"]]
    if isinstance(shape, list) and any(len(polygon) < 6 for polygon in shape):
        raise ValueError(f"{name}: a polygon of fewer than three points")
    if isinstance(shape, dict) and list(shape["size"]) != [size["height"], size["width"]]:
        raise ValueError(f"{name}: mask of {shape['size']}, image of {[size['height'], size['width']]}")


def _name(item: Mapping, path: str) -> str:
    return f"{path}: image {item['image_id']}, annotation {item['id']}"


def _text_of(entry: Mapping, field: str) -> str:
    return repr(entry[field]) if field in entry else "missing"


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def each_image_once(
    annotations: str | os.PathLike, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Removes padding from `arrays`: "image_id" [n], "weight" [n] (0 for padding), and others [n, ...].

    Raises ValueError if an image of the annotation file is missing, or one is unknown or repeated.
    """
    real = np.asarray(arrays["weight"]) > 0
    without_padding = {name: np.asarray(array)[real] for name, array in arrays.items()}
    ids = without_padding["image_id"].tolist()
    evaluated = set(ground_truth(os.fspath(annotations)).imgs)
    if len(ids) != len(set(ids)) or set(ids) != evaluated:
        missing, unknown = evaluated - set(ids), set(ids) - evaluated
        example = next(iter(sorted(missing or unknown) or sorted(i for i in ids if ids.count(i) > 1)))
        raise ValueError(
            f"{len(ids)} images seen, {len(set(ids))} of them different, {len(missing)} missing, {len(unknown)} not in "
            f"{annotations}; image {example} for one"
        )
    return without_padding


def box_results(
    annotations: str | os.PathLike, arrays: Mapping[str, np.ndarray], category_ids: Sequence[int]
) -> list[dict[str, Any]]:
    """Returns detections in pycocotools' form, in pixels of the original images, with the original category ids.

    Args:
      annotations: file with the images' sizes.
      arrays: "image_id" [n]; "boxes" [n, d, 4], corners as fractions of the image; "scores" [n, d], 0 means no
        detection; "classes" [n, d], from 1.
      category_ids: category ids of classes 1, 2, ...
    """

    def sides(number: int, detected: np.ndarray, corners: np.ndarray, *size: int) -> list:
        ymin, xmin, ymax, xmax = corners.T
        return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], -1).tolist()

    return _results(annotations, arrays, category_ids, "bbox", sides)


def mask_results(
    annotations: str | os.PathLike, arrays: Mapping[str, np.ndarray], category_ids: Sequence[int]
) -> list[dict[str, Any]]:
    """Like `box_results`, with masks pasted into the original images in place of boxes.

    `arrays` also has "masks" [n, d, M, M], probabilities inside the boxes.
    """

    def encoded(number: int, detected: np.ndarray, corners: np.ndarray, *size: int) -> list:
        return masks.encode(masks.paste(arrays["masks"][number][detected], corners, *size))

    return _results(annotations, arrays, category_ids, "segmentation", encoded)


def _results(
    annotations: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    category_ids: Sequence[int],
    key: str,
    shapes: Callable[..., list],
) -> list[dict[str, Any]]:
    sizes, ids = image_sizes(os.fspath(annotations)), np.asarray(category_ids)
    results = []
    for number, image in enumerate(arrays["image_id"].tolist()):
        detected = arrays["scores"][number] > 0
        height, width = sizes[image]
        corners = arrays["boxes"][number][detected].astype(np.float64) * [height, width, height, width]
        shapes_here = shapes(number, detected, corners, height, width)
        classes = ids[arrays["classes"][number][detected] - 1].tolist()
        scores = arrays["scores"][number][detected].astype(np.float64).tolist()
        results += [
            {"image_id": image, "category_id": category, key: shape, "score": score}
            for category, shape, score in zip(classes, shapes_here, scores)
        ]
    return results


def parts(arrays: Mapping[str, np.ndarray], images: int = 16) -> list[dict[str, np.ndarray]]:
    """Splits arrays into parts of `images` images; drops padding and detection columns that no image uses."""
    real = np.flatnonzero(np.asarray(arrays["weight"]) > 0)
    arrays = {name: array for name, array in arrays.items() if name != "weight"}
    slices = []
    for first in range(0, len(real), images):
        rows = real[first : first + images]
        most = 1 + np.flatnonzero((arrays["scores"][rows] > 0).any(0)).max(initial=-1)
        slices.append({name: x[rows, :most] if x.ndim > 1 else x[rows] for name, x in arrays.items()})
    return slices


def encoded_results(
    annotations: str | os.PathLike, category_ids: Sequence[int], part: Mapping[str, np.ndarray]
) -> dict[str, bytes]:
    """Returns the boxes and masks of one of the `parts` in pycocotools' form, {"bbox": ..., "segm": ...}.

    Both values are pickled, so that the process that forwards them need not unpickle half a million objects.
    """
    return {
        "bbox": pickle.dumps(box_results(annotations, part, category_ids)),
        "segm": pickle.dumps(mask_results(annotations, part, category_ids)),
    }


def score(annotations: str | os.PathLike, work: tuple[str, Sequence[bytes]]) -> dict[str, float]:
    """Returns `average_precision` for `work`: (kind, that kind's entry of all `encoded_results`)."""
    kind, encoded = work
    return average_precision(annotations, [item for part in encoded for item in pickle.loads(part)], kind)


def average_precision(
    annotations: str | os.PathLike, results: Sequence[dict[str, Any]], kind: str
) -> dict[str, float]:
    """Returns COCO's twelve statistics of `kind`, "bbox" or "segm", over all images of the annotation file.

    They are {name from STATISTICS: value}; -1 if no object has that size, as in pycocotools. After them comes
    {OF_CLASS + name: AP} of each class that the images show. pycocotools modifies the `results`, of its form.
    """
    truth = ground_truth(os.fspath(annotations))
    with contextlib.redirect_stdout(io.StringIO()):
        detections = truth.loadRes(list(results)) if results else COCO()
        if not results:  # loadRes reads the first result.
            detections.dataset = truth.dataset | {"annotations": []}
            detections.createIndex()
        evaluation = COCOeval(truth, detections, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    statistics = {name: float(value) for name, value in zip(STATISTICS, evaluation.stats, strict=True)}
    for number, precision in zip(evaluation.params.catIds, evaluation.eval["precision"][..., 0, -1].T):
        if (values := precision[precision > -1]).size:
            statistics[OF_CLASS + truth.cats[number]["name"]] = float(values.mean())
    return statistics


def by_class(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns {class: AP} of what `average_precision` returned."""
    return {name.removeprefix(OF_CLASS): value for name, value in scores.items() if name.startswith(OF_CLASS)}
