"""Keeps evaluated examples as pictures beside a run's log, with the network's answer and whether it is right.

examples_<i>/ holds the pictures and examples.json, rewritten after each evaluation. About half of the examples are
wrong answers, if there are enough. TensorFlow-free, except for the batches and network passed in.
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from common import files
from common.errors import UserError

NAME = "examples.json"
# Candidates read per wanted example; the shown ones are chosen among them.
LOOKED_AT = 4
# Minimum score for a detection to count, and minimum overlap with an object of its class to match it, as in AP50.
SCORE, OVERLAP = 0.5, 0.5
SIDE = 240  # Minimum side of a picture, in pixels.
_TRUE, _RIGHT, _WRONG = (255, 255, 255), (60, 200, 90), (235, 60, 60)


@dataclasses.dataclass(frozen=True)
class Example:
    """A picture (uint8 [H, W, 3]), the network's answer, and whether it is right.

    `boxes`: (ymin, xmin, ymax, xmax as fractions of the picture, label, color).
    """

    image: np.ndarray
    right: bool
    text: str
    boxes: Sequence[tuple[Sequence[float], str, tuple[int, int, int]]] = ()


class Looker:
    """Shows the same evaluation examples after each evaluation."""

    def __init__(self, programs: Any, folder: pathlib.Path, count: int):
        """`programs`: of a run on a single replica.

        Raises UserError if the benchmark has no pictures, or the run has several replicas.
        """
        task = programs.task
        if not task.has_pictures:
            raise UserError(
                f"--examples={count}: {programs.config.benchmark} has no pictures to keep; leave it out"
            )
        if programs.config.replicas != "single":
            raise UserError(f"--examples={count}: needs --replicas=single, not {programs.config.replicas}")
        from common.train.probe import Probe

        self._programs, self._folder, self._count = programs, folder, count
        self._probe = Probe(programs)
        # Read on first use: some names are in the data, which a run may not touch before the clock starts.
        self._names: Sequence[str] | None = None
        self._truth: Any = None
        self._batches: list[Any] | None = None

    def look(self, step: int) -> None:
        """Writes the examples with the current weights."""
        if self._batches is None:
            self._batches = list(self._probe.first_eval_batches(LOOKED_AT * self._count))
        examples = [e for batch in self._batches for e in self._of(self._probe.look(batch))]
        wrong = [e for e in examples if not e.right][: (self._count + 1) // 2]
        right = [e for e in examples if e.right][: self._count - len(wrong)]
        chosen = [*wrong, *right]
        chosen += [e for e in examples if not any(e is c for c in chosen)][: self._count - len(chosen)]
        write(self._folder, chosen, step)

    def _of(self, seen: Mapping[str, np.ndarray]) -> Iterator[Example]:
        if self._names is None:
            self._names = self._programs.task.labels()
        for i in np.flatnonzero(seen["weight"] > 0):
            one = {name: value[i] for name, value in seen.items()}
            one["image"] = np.clip(one["image"], 0, 255).astype(np.uint8)
            if "content" in one:
                rows, columns = one["content"]
                one["image"] = one["image"][:rows, :columns]
            yield self._detected(one) if "boxes" in one else classified(one, self._names)

    def _detected(self, one: Mapping[str, np.ndarray]) -> Example:
        from common.detection import coco_eval, coco_records

        if self._truth is None:
            task = self._programs.task
            self._truth = coco_eval.ground_truth(coco_records.annotation_file(task.config, task.data_dir))
        image = self._truth.imgs[int(one["image_id"])]
        names = {number: category["name"] for number, category in self._truth.cats.items()}
        objects = []
        for item in self._truth.imgToAnns.get(image["id"], []):
            if not item.get("iscrowd"):
                x, y, width, height = item["bbox"]
                ends = y / image["height"], x / image["width"], (y + height) / image["height"]
                objects.append(((*ends, (x + width) / image["width"]), item["category_id"]))
        return detected(one, objects, names)


def classified(one: Mapping[str, np.ndarray], names: Sequence[str]) -> Example:
    """Makes the example of an image ("image", "label", "scores" [classes] that sum to 1)."""

    def name(label: int) -> str:
        return names[label] if label < len(names) else str(label)

    label, said = int(one["label"]), int(np.argmax(one["scores"]))
    text = f"{name(said)} ({100 * float(one['scores'][said]):.0f} %)"
    return Example(one["image"], said == label, text if said == label else f"{text}, is {name(label)}")


def detected(
    one: Mapping[str, np.ndarray], objects: Sequence[tuple[Sequence[float], int]], names: Mapping[int, str]
) -> Example:
    """Makes the example of an image with detections ("boxes" [d, 4] as fractions, "scores", "categories").

    The answer is right if it finds every object once and nothing else.
    """
    order = [i for i in np.argsort(-one["scores"], kind="stable") if one["scores"][i] >= SCORE]
    left = list(objects)
    boxes = [(box, "", _TRUE) for box, _ in objects]
    mistakes = 0
    for i in order:
        category, box = int(one["categories"][i]), [float(x) for x in one["boxes"][i]]
        overlaps = [overlap(box, b) if c == category else 0.0 for b, c in left]
        hit = bool(overlaps) and max(overlaps) >= OVERLAP
        if hit:
            del left[int(np.argmax(overlaps))]
        mistakes += not hit
        label = f"{names.get(category, category)} {100 * float(one['scores'][i]):.0f} %"
        boxes.append((box, label, _RIGHT if hit else _WRONG))
    text = f"{len(objects) - len(left)} of {len(objects)} objects found"
    if mistakes:
        text += f", {mistakes} detection{'s' * (mistakes > 1)} of none"
    return Example(one["image"], not left and not mistakes, text, boxes)


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the intersection over union of two boxes (ymin, xmin, ymax, xmax)."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    inside = float(np.prod(np.maximum(high - low, 0)))
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)]
    return inside / (sum(areas) - inside) if inside else 0.0


def write(folder: pathlib.Path, examples: Sequence[Example], step: int) -> None:
    """Writes the pictures, then examples.json. Raises UserError if the folder cannot be written."""
    rows = []
    for number, example in enumerate(examples):
        name = f"{number:03d}.jpg"
        files.write_atomically(folder / name, _jpeg(example))
        rows.append({"picture": name, "step": step, "right": example.right, "text": example.text})
    files.write_atomically(folder / NAME, json.dumps({"examples": rows}, indent=1).encode())


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a folder's examples (picture, step, right, text); [] if there are none."""
    try:
        return json.loads((folder / NAME).read_text())["examples"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _jpeg(example: Example) -> bytes:
    from PIL import Image, ImageDraw

    pixels = np.squeeze(example.image, -1) if example.image.shape[-1] == 1 else example.image
    image = Image.fromarray(pixels).convert("RGB")
    factor = max(1, round(SIDE / min(image.size)))
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    for (ymin, xmin, ymax, xmax), label, color in example.boxes:
        x, y = xmin * image.width, ymin * image.height
        ends = [x, y, max(xmax * image.width, x), max(ymax * image.height, y)]
        draw.rectangle(ends, outline=color, width=1 if color == _TRUE else 2)
        if label:
            place = (min(max(x + 2, 0), image.width - 60), min(max(y - 12, 0), image.height - 12))
            draw.rectangle(draw.textbbox(place, label), fill=color)
            draw.text(place, label, fill=(0, 0, 0))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=90)
    return data.getvalue()
