"""Pastes predicted masks into their images and encodes them for pycocotools, on the host. TensorFlow-free.

It runs in worker processes: an image takes only a few milliseconds, but 5,000 images have half a million masks.
"""

from collections.abc import Mapping

import numpy as np
from pycocotools import mask as coco_mask

from common.detection import shapes

# Minimum probability of an object's pixels (Mask R-CNN, section 3; G7 mask_rcnn coco_metric.py).
THRESHOLD = 0.5


def paste(masks: np.ndarray, boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns whether each pixel belongs to each object: uint8 [height, width, n] of 0 and 1, in Fortran order.

    A mask fills its box and is 0 outside. It is sampled at the pixels' centers, bilinearly between the centers of its
    cells. Published code does the same with a border of zeros around the mask and with boxes rounded to whole pixels;
    here the boxes keep their fractions. pycocotools needs the order.

    Args:
      masks: float [n, M, M], probabilities.
      boxes: [n, 4] (ymin, xmin, ymax, xmax) in pixels.
    """
    pasted = np.zeros([height, width, len(masks)], np.uint8, order="F")
    for number, (mask, box) in enumerate(zip(masks, np.asarray(boxes, np.float64))):
        if not (box[2] > box[0] and box[3] > box[1]):
            continue
        top, rows = _sampled(box[0], box[2], mask.shape[0], height)
        left, columns = _sampled(box[1], box[3], mask.shape[1], width)
        probability = rows @ np.asarray(mask, np.float32) @ columns.T
        pasted[top : top + len(rows), left : left + len(columns), number] = probability >= THRESHOLD
    return pasted


def _sampled(low: float, high: float, cells: int, size: int) -> tuple[int, np.ndarray]:
    """Returns, for the pixels with centers between `low` and `high`, the first one and all weights [pixels, cells]."""
    first = max(int(np.ceil(low - 0.5)), 0)
    centers = np.arange(first, min(int(np.floor(high - 0.5)) + 1, size)) + 0.5
    places = (centers - low) / (high - low) * cells - 0.5
    return first, np.maximum(1 - abs(places[:, None] - np.arange(cells)), 0).astype(np.float32)


def encode(pasted: np.ndarray) -> list[dict]:
    """Encodes uint8 [height, width, n] as pycocotools' run lengths; the counts are text, as in COCO's result files."""
    return [
        {"size": mask["size"], "counts": mask["counts"].decode()}
        for mask in coco_mask.encode(np.asfortranarray(pasted))
    ]


def decode(segmentation: list | Mapping, height: int, width: int) -> np.ndarray:
    """Decodes a COCO annotation's polygons or run lengths (text or numbers) to uint8 [height, width] of 0 and 1.

    Raises BadShapeError if they are not sound (`shapes.checked`).
    """
    sound = shapes.checked(segmentation, height, width)
    return np.ascontiguousarray(coco_mask.decode(shapes.encoded(sound, height, width)))
