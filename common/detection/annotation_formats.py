"""Collects annotations of any program as COCO's JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from common.data.report import Report
from common.detection import masks
from common.detection.shapes import key_of


@dataclasses.dataclass(frozen=True)
class Object:
    """An object of a picture.

    Attributes:
      name: its class.
      box: x, y, width, height.
      shape: polygons, each x0, y0, x1, y1, ..., or COCO's run lengths as text, or None.
      difficult: whether no answer has to find it.
    """

    name: str
    box: Sequence[float]
    shape: list[Sequence[float]] | dict[str, Any] | None = None
    difficult: bool = False


def outlined(name: str, values: Sequence[float], difficult: bool = False) -> Object:
    """Returns the object of a polygon's corners x, y, x, y, ...."""
    points = np.array(values).reshape(-1, 2)
    low, high = points.min(0), points.max(0)
    return Object(name, [*low.tolist(), *(high - low).tolist()], [list(values)], difficult)


def masked(name: str, mask: np.ndarray) -> Object:
    """Returns the object of a mask, bool [height, width] of the picture's size. Raises ValueError if it is empty."""
    if not mask.any():
        raise ValueError("an empty mask")
    (shape,) = masks.encode(mask[..., None].astype(np.uint8))
    return Object(name, coco_mask.toBbox(shape).tolist(), shape)


@dataclasses.dataclass(frozen=True)
class Source:
    """A split's annotations, and the folder to which their file names are relative.

    Attributes:
      content: annotations in the form of COCO's JSON.
      folder: folder of the pictures.
      origin: the annotation file, for errors.
      fractions: whether boxes and polygons are fractions of the picture's width and height, not pixels.
      aside: names of pictures that are left aside knowingly.
      films: whether the pictures of a folder are frames of one film.
    """

    content: Mapping[str, Any]
    folder: Path
    origin: str
    fractions: bool = False
    aside: Collection[str] = ()
    films: bool = False

    def divided(
        self, splits: Sequence[Collection[str]], report: Report, outside: str = ""
    ) -> tuple[Source, Source]:
        """Returns the sources of the training and the evaluation pictures, by the names that lists give to each.

        Entries without a name are in the first, whose reader reports them. `outside` is what the report says of a
        picture in neither, "" for nothing.
        """
        images = self.content["images"]
        names = [str(image.get("file_name") or "") if isinstance(image, dict) else "" for image in images]
        for name in filter(None, names) if outside else ():
            if not any(name in split for split in splits):
                report.skip(outside, name)
        sources = []
        for number, split in enumerate(splits):
            marks = [name in split if name else number == 0 for name in names]
            inside = [image for image, is_in in zip(images, marks) if is_in]
            out = [image for image, is_in in zip(images, marks) if not is_in and isinstance(image, dict)]
            others = {key_of(image.get("id")) for image in out} - {None}
            items = self.content["annotations"]
            items = [i for i in items if not isinstance(i, dict) or key_of(i.get("image_id")) not in others]
            content = {**self.content, "images": inside, "annotations": items}
            sources.append(dataclasses.replace(self, content=content, aside=list(filter(None, names))))
        return tuple(sources)


class Builder:
    """Collects pictures and objects in the form of COCO's JSON; a category's id is its name."""

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []

    def image(self, name: str, width: Any = None, height: Any = None) -> None:
        """Adds a picture; the objects that follow are of it."""
        self.images.append({"id": len(self.images) + 1, "file_name": name, "width": width, "height": height})

    def read(
        self, items: Iterable[tuple[str, Any]], to_object: Callable[[Any], Object], report: Report
    ) -> None:
        """Adds the objects of the last picture: (place for messages, what a program says of an object) each.

        `to_object` raises ValueError or TypeError for one that cannot be used, and the report has it.
        """
        for place, item in items:
            try:
                one = to_object(item)
            except (TypeError, ValueError) as error:
                self.images[-1]["lost"] = self.images[-1].get("lost", 0) + 1
                report.leave_out(str(error).partition(":")[0], place, f"{place}: {error}")
                continue
            self.objects.append(
                {
                    "image_id": len(self.images),
                    "category_id": one.name,
                    "bbox": list(one.box),
                    "segmentation": one.shape,
                    "place": place,
                    "ignore": int(one.difficult),
                }
            )

    def content(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the content; `names` are the categories in order, or by default all that objects have, sorted."""
        used = sorted({item["category_id"] for item in self.objects})
        ids = {name: number for number, name in enumerate(names) if name} or {name: name for name in used}
        categories = [{"id": number, "name": name} for name, number in ids.items()]
        objects = [{**item, "category_id": ids[item["category_id"]]} for item in self.objects]
        return {"images": self.images, "annotations": objects, "categories": categories}
