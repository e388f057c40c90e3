"""Reads LabelMe's annotations, a JSON file for each picture, as COCO's JSON."""

import base64
import binascii
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from common.data.partners import Partners
from common.data.report import Report
from common.detection.annotation_formats import Builder, Source, around, ellipse, rectangle
from common.detection.shapes import BadShapeError, numbers
from common.errors import UserError, counted
from common.untrusted import parsed

_MOST_SIDE = 1 << 15  # Pixels of a mask's side.
NO_ANNOTATION = "no annotation of LabelMe"


def is_labelme(content: Any) -> bool:
    """Whether a JSON file's content is LabelMe's, which describes one picture."""
    return isinstance(content, dict) and isinstance(content.get("shapes"), list) and "imagePath" in content


def _content(path: Path) -> Any:
    try:
        return parsed(path.read_bytes())
    except (OSError, ValueError):
        return None


def read(folder: Path, paths: Sequence[Path], report: Report) -> Source:
    """Reads LabelMe's files, one for each picture: rectangles, polygons, circles and masks with a label.

    A file's picture is what imagePath names, relative to the file; else the picture with the file's own name.

    Raises UserError: no file can be used, or a name fits two pictures.
    """
    builder, partners = Builder(), Partners(folder)
    for path in paths:
        content = _content(path)
        if content is not None and not (
            isinstance(content, dict) and {"imagePath", "shapes"} & content.keys()
        ):
            report.skip("a JSON file beside the annotations that are read", str(path))
            continue
        if not is_labelme(content):
            line = f"{path}: {NO_ANNOTATION}: it is not a JSON file with shapes and imagePath"
            report.leave_out(NO_ANNOTATION, str(path), line)
            continue
        size = content.get("imageWidth"), content.get("imageHeight")
        picture = _picture(path, str(content["imagePath"] or ""), size, partners, report)
        if picture is None:
            inside = (
                ", but inside of the file (imageData); save it beside" if content.get("imageData") else ""
            )
            report.leave_out("its picture is missing", str(path), f"{path}: its picture is missing{inside}")
            continue
        builder.image(picture, *size)
        _objects(content["shapes"], str(path), size, builder, report)
    if not builder.images:
        raise UserError(f"{folder}: {NO_ANNOTATION} can be used; the first: {report.lines[0]}")
    return Source(builder.content(), folder, str(folder))


def _picture(path: Path, name: str, size: Sequence[Any], partners: Partners, report: Report) -> str | None:
    """Returns the picture of the file `path`, in which imagePath is `name`."""
    named = partners.find(name, path) if name else None
    place = path.parent.relative_to(partners.folder)
    beside = (one for one in partners.with_stem(path) if Path(one).parent == place)
    own = next(beside, None) if named else partners.of_stem(path.stem, near=path)
    return partners.of_two(own, named, size, path, report)


def _objects(shapes: list[Any], place: str, size: tuple[Any, Any], builder: Builder, report: Report) -> None:
    """Adds the objects of a picture; shapes of one label and group_id are one object's parts."""
    grouped: dict[Any, list[tuple[str, str, np.ndarray | dict[str, Any], list[float]]]] = {}
    for number, shape in enumerate(shapes):
        where = f"{place}: shapes[{number}]"
        try:
            label, outline, box = _shape(shape, size)
        except BadShapeError as error:
            report.leave_out(str(error), where)
            continue
        group = shape.get("group_id")
        grouped.setdefault((label, str(group)) if group is not None else number, []).append(
            (where, label, outline, box)
        )
    for outlines in grouped.values():
        where, label, outline, box = outlines[0]
        if len(outlines) == 1 and isinstance(outline, dict):
            builder.add(label, box, outline, where)
            continue
        corners = np.array([[b[0], b[1], b[0] + b[2], b[1] + b[3]] for *_, b in outlines])
        low, high = corners[:, :2].min(0), corners[:, 2:].max(0)
        polygons = [part.ravel().tolist() for _, _, part, _ in outlines if not isinstance(part, dict)]
        masks = [part for _, _, part, _ in outlines if isinstance(part, dict)]
        shape = _merged(polygons, masks) if masks else polygons
        builder.add(label, [*low.tolist(), *(high - low).tolist()], shape, where)
        if len(outlines) > 1:
            report.change("shapes of one group_id, read as one object", where)


def _merged(polygons: list[list[float]], masks: list[dict[str, Any]]) -> dict[str, Any]:
    height, width = masks[0]["size"]
    every = [*masks, *(coco_mask.frPyObjects(polygons, height, width) if polygons else [])]
    return _text(coco_mask.merge(every))


def _text(encoded: dict[str, Any]) -> dict[str, Any]:
    counts = encoded["counts"]
    return {"size": list(encoded["size"]), "counts": counts.decode() if isinstance(counts, bytes) else counts}


def _shape(shape: Any, size: tuple[Any, Any]) -> tuple[str, np.ndarray | dict[str, Any], list[float]]:
    """Returns (label, corners [n, 2] or run lengths, box [x, y, width, height])."""
    if not isinstance(shape, dict) or not str(shape.get("label") or "").strip():
        raise BadShapeError("a shape without a label")
    given = shape.get("points")
    points = np.array([numbers(point, 2) for point in given] if isinstance(given, list) else []).reshape(
        -1, 2
    )
    kind, label = shape.get("shape_type") or "polygon", str(shape["label"]).strip()
    if kind == "rectangle" and len(points) >= 2:
        return label, *around(rectangle(*points.min(0), *points.max(0)))
    if kind == "circle" and len(points) == 2:
        radius = float(np.linalg.norm(points[1] - points[0]))
        return label, *around(ellipse(*points[0], radius, radius))
    if kind in ("polygon", "rotation") and len(points) >= 3:
        return label, *around(points)
    if kind == "mask" and len(points) == 2:
        return label, *_mask(shape.get("mask"), points, size)
    raise BadShapeError(f"a shape {str(kind)[:40]!r} of {counted(len(points), 'point')} is no area")


def _mask(data: Any, points: np.ndarray, size: tuple[Any, Any]) -> tuple[dict[str, Any], list[float]]:
    """Reads LabelMe's mask, a PNG of the rectangle between two corners; returns (run lengths, box)."""
    width, height = (int(side) for side in numbers(list(size)))
    left, top = (int(round(side)) for side in points.min(0))
    try:
        with Image.open(io.BytesIO(base64.b64decode(str(data), validate=True)), formats=("PNG",)) as image:
            part = np.asarray(image.convert("L")) > 0
    except (binascii.Error, OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadShapeError(f"a mask that is no PNG ({str(error)[:40]})") from error
    if not (0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE) or left < 0 or top < 0:
        raise BadShapeError("a mask outside of its picture")
    whole = np.zeros((height, width), np.uint8, order="F")
    target = whole[top : top + part.shape[0], left : left + part.shape[1]]
    target[:] = part[: target.shape[0], : target.shape[1]]
    if not whole.any():
        raise BadShapeError("an empty mask")
    rows, columns = np.nonzero(whole.any(1))[0], np.nonzero(whole.any(0))[0]
    box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
    return _text(coco_mask.encode(whole)), [float(side) for side in box]
