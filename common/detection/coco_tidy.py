"""Normalizes a user's annotations: reads what has one meaning, and leaves out, with a line, what has none."""

import collections
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import folder_conversion, text_files
from common.data.pictures import Picture
from common.data.report import Report
from common.detection import label_lines, shapes
from common.detection.annotation_formats import Source
from common.detection.coco_objects import Entry, of_source
from common.detection.shapes import BadShapeError, key_of
from common.errors import UserError
from common.untrusted import stays_inside

# Names of regions that are not objects, in lower case: LabelMe's labels.txt, KITTI, VisDrone, and the usual background.
IGNORED = {"__ignore__", "ignore", "dontcare", "don't care", "ignored regions"}
NO_OBJECT = IGNORED | {"_background_", "__background__", "background"}
# From how many objects' areas, and how near they are to a box's, the layout of the boxes follows; our choice.
_MOST_AREAS, _SAME_AREA = 0.9, 0.01

UNCLEAR = (
    "the EXIF tag turns the picture, and nothing says whether its boxes are on the turned one; taken as such"
)
NOT_TURNED = "its EXIF tag turns it, but its boxes are on the stored pixels; save it turned, without the tag"


def tidy(
    sources: Sequence[Source], masks: bool, report: Report
) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Picture]]]:
    """Normalizes each split's annotations: fills in fields that tools omit, and leaves out unusable entries.

    It numbers categories from 1 in the order of their ids, the same in all sources, and renumbers pictures and
    annotations. Sizes come from the pictures, turned upright. Boxes are clipped to the picture. It leaves out a
    category without objects if it is only another category's `supercategory`. Raises UserError if a category has no id
    or name, two pictures have the same id, or boxes are fractions where pixels belong; the message says where.

    With `masks` every object needs a mask; without, masks are dropped. Returns (a content for each source, the
    categories' names in order, {file name: what is known of the picture} each).
    """
    names = _categories(sources, report)
    classes = list(dict.fromkeys(names.values()))
    numbers = {key: classes.index(name) + 1 for key, name in names.items()}
    if len(classes) < len(names):
        twice = next(name for name in classes if list(names.values()).count(name) > 1)
        report.change("categories of one name, read as one class", twice, len(names) - len(classes))
    contents, pictures = [], []
    first = 1
    for source in sources:
        _check_pixels(source)
        places, looked = _places(source, first, report)
        images = list({entry["id"]: entry for entry in places.values() if entry}.values())
        first += len(images)
        _check_corners(source, places)
        objects = of_source(_objects_alone(source, places, report), places, numbers, masks, report)
        images = _without_lost(images, objects, report)
        categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
        contents.append({"images": images, "annotations": objects, "categories": categories})
        pictures.append(looked)
    folder_conversion.report_unnamed(_listed_pictures(sources), "a picture that no annotation names", report)
    return contents, classes, pictures


def _objects_alone(source: Source, places: Mapping[str, Entry | None], report: Report) -> Source:
    """Returns a source without its regions of NO_OBJECT; a picture's entry counts those to ignore as `ignored`."""
    names = {key_of(c["id"]): str(c["name"]).strip().casefold() for c in source.content["categories"]}
    objects = []
    for item in source.content["annotations"]:
        name = names.get(key_of(item.get("category_id")) if isinstance(item, dict) else None, "")
        if name not in NO_OBJECT:
            objects.append(item)
        elif name in IGNORED:
            report.suspect(
                "a region to ignore, left out; a network learns it as background", f"{source.origin}: {name}"
            )
            if entry := places.get(key_of(item.get("image_id")) or ""):
                entry["ignored"] = entry.get("ignored", 0) + 1
        else:
            report.change(
                "a region of background, which is not an object, left out", f"{source.origin}: {name}"
            )
    return dataclasses.replace(source, content={**source.content, "annotations": objects})


ALL_LOST = "a picture all of whose objects were left out, left out with them"
ALL_IGNORED = "a picture that has only regions to ignore, left out with them"
SOME_LOST = "a picture some of whose objects were left out; a network learns them as background"


def _without_lost(
    images: Sequence[dict[str, Any]], objects: Sequence[Mapping[str, Any]], report: Report
) -> list[dict[str, Any]]:
    """Returns the entries of pictures without those that lost all objects, or have only regions to ignore.

    They would say that there are no objects.
    """
    with_objects, entries = {item["image_id"] for item in objects}, []
    for entry in images:
        lost, ignored = entry.pop("lost", 0), entry.pop("ignored", 0)
        if (lost or ignored) and entry["id"] not in with_objects:
            reason = ALL_LOST if lost else ALL_IGNORED
            report.change(reason, entry["file_name"])
            report.lost.add(reason)
            continue
        if lost:
            report.suspect(SOME_LOST, entry["file_name"])
        entries.append(entry)
    return entries


def _listed_pictures(sources: Sequence[Source]) -> Iterator[Path]:
    """Yields the pictures that are there and listed, or left aside knowingly."""
    for source in sources:
        for image in source.content["images"]:
            name = image.get("file_name") if isinstance(image, dict) else None
            if isinstance(name, str) and stays_inside(name) and os.path.isfile(source.folder / name):
                yield source.folder / name
        yield from (source.folder / name for name in source.aside)


def _categories(sources: Sequence[Source], report: Report) -> dict[str, str]:
    """Returns {key of the id: name} in the order of the ids."""
    names: dict[str, str] = {}
    order: dict[str, tuple[bool, Any]] = {}
    above, used = set(), set()
    for source in sources:
        items = source.content["annotations"]
        used |= {key_of(item.get("category_id")) for item in items if isinstance(item, dict)}
        for number, entry in enumerate(source.content["categories"]):
            raw_id = entry.get("id") if isinstance(entry, dict) else None
            key, place = key_of(raw_id), f"{source.origin}: categories[{number}]"
            name = entry.get("name") if isinstance(entry, dict) else None
            if isinstance(name, bool) or not isinstance(name, str | int | float) or not str(name).strip():
                raise UserError(f"{place}: needs an id and a name; it is {shapes.quote(entry)}")
            if key is None:
                raise UserError(f"{place}: id is {shapes.quote(raw_id)}; give it a number or a text")
            name = text_files.normal(str(name).encode(errors="backslashreplace").decode())
            if names.setdefault(key, name) != name:
                fix = "give a class one number in all files"
                raise UserError(
                    f"{source.origin}: category {key} is {name!r}, elsewhere {names[key]!r}; {fix}"
                )
            order.setdefault(key, (isinstance(raw_id, str), raw_id))
            above.add(str(entry.get("supercategory")))
    numbers = [
        {float(key) for key in keys if key and label_lines.NUMBER.fullmatch(key)}
        for keys in (used, set(names))
    ]
    if label_lines.are_shifted(*numbers):
        of_used, of_known = (f"{min(part):g} to {max(part):g}" for part in numbers)
        raise UserError(
            f"{sources[0].origin}: annotations have the categories {of_used}, the list {of_known}; number both alike"
        )
    classes = {
        key: name
        for key, name in names.items()
        if name.casefold() not in NO_OBJECT and (key in used or name not in above)
    }
    if not classes:
        fix = "; ".join(report.summaries("left_out")) or "annotate objects first"
        raise UserError(f"{sources[0].origin}: no categories; {fix}")
    return {key: classes[key] for key in sorted(classes, key=order.__getitem__)}


def _boxed(source: Source) -> Iterator[tuple[str | None, list[float], Any]]:
    """Yields (key of the image, bbox, area) of each annotation whose bbox is four numbers in pixels."""
    for item in source.content["annotations"] if not source.fractions else ():
        try:
            yield key_of(item.get("image_id")), shapes.numbers(item["bbox"], 4), item.get("area")
        except (AttributeError, BadShapeError, KeyError, TypeError):
            continue


def _check_pixels(source: Source) -> None:
    """Refuses a file whose boxes all lie within 0 to 1: fractions, of which two layouts are common."""
    coordinates = [number for _, box, _ in _boxed(source) for number in box]
    if coordinates and min(coordinates) >= 0 and 0 < max(coordinates) <= 1:
        fix = "give x, y, width, height in pixels, not fractions"
        raise UserError(f"{source.origin}: every bbox lies within 0 to 1; {fix}")


def _check_corners(source: Source, places: Mapping[str, Entry | None]) -> None:
    """Refuses a file whose boxes are corners or centers: as such all fit, as x, y, width, height many do not.

    The stated areas tell corners too.
    """
    pairs = [(places.get(key or ""), box) for key, box, _ in _boxed(source)]
    boxes = [(box, (entry["width"], entry["height"])) for entry, box in pairs if entry]
    other = label_lines.other_layout(*([one[i] for one in boxes] for i in (0, 1)), "corner")
    if other:
        raise UserError(f"{source.origin}: {other}; convert them to that")
    areas = [(box, area) for _, box, area in _boxed(source) if isinstance(area, int | float) and area > 0]
    corners = sum(math.isclose(area, (c - a) * (d - b), rel_tol=_SAME_AREA) for (a, b, c, d), area in areas)
    sides = sum(math.isclose(area, c * d, rel_tol=_SAME_AREA) for (_, _, c, d), area in areas)
    if corners > _MOST_AREAS * len(areas) and sides < (1 - _MOST_AREAS) * len(areas):
        raise UserError(
            f"{source.origin}: the areas of {corners} of {len(areas)} objects are those of bbox read as two corners "
            "x, y, x, y; convert bbox to x, y, width, height"
        )


def _places(source: Source, first: int, report: Report) -> tuple[dict[str, Entry | None], dict[str, Picture]]:
    """Returns ({key of the id: entry in the result, or None}, {file name: what is known of the picture}).

    None stands for a picture that was left out. The sound pictures are numbered from `first`.
    """
    listed = _listed(source, report)
    there = [file for file in dict.fromkeys(listed.values()) if file]
    results = folder_conversion.examined([source.folder / file for file in there], png=True)
    images = {key_of(image.get("id")): image for image in source.content["images"] if isinstance(image, dict)}
    boxes: dict[str | None, list[list[float]]] = collections.defaultdict(list)
    for key, box, _ in _boxed(source):
        boxes[key].append(box)
    by_file: dict[str, Entry | None] = {}
    pictures: dict[str, Picture] = {}
    looked = {"": "", **dict(zip(there, results))}
    places: dict[str, Entry | None] = {}
    for key, file in listed.items():
        result = looked[file]
        if file in by_file:
            if file:
                report.change("a picture under two ids, read as one", file)
        elif isinstance(result, str):
            if result:
                report.leave_out("no whole picture", file, result)
            by_file[file] = None
        elif not _fits(images[key], boxes[key], result, str(source.folder / file), report):
            by_file[file] = None
        else:
            entry = {"id": first + len(pictures), "file_name": file, "width": result.width}
            entry |= {"height": result.height, "lost": images[key].get("lost", 0)}
            by_file[file], pictures[file] = entry, result
        places[key] = by_file[file]
    return places, pictures


def _listed(source: Source, report: Report) -> dict[str, str]:
    """Returns {key of the id: file name below the source's folder, or "" if the entry was left out}.

    Raises UserError if two pictures have the same id.
    """
    listed: dict[str, str] = {}
    where: dict[str, int] = {}
    for number, image in enumerate(source.content["images"]):
        key = key_of(image.get("id")) if isinstance(image, dict) else None
        if key is None or not isinstance(image.get("file_name"), str) or not image["file_name"]:
            line = f"{source.origin}: an image without id or file_name: {str(image)[:60]}"
            report.leave_out("an image without id or file_name", f"images[{number}]", line)
            continue
        file = _file(source, image["file_name"], report)
        if key in where and (file or image["file_name"]) != (listed[key] or image["file_name"]):
            raise UserError(
                f"{source.origin}: images[{where[key]}] ({listed[key]}) and images[{number}] ({file}) have the same "
                f"id {image['id']}; give each picture an id of its own"
            )
        if key in where:
            report.change("a picture listed twice, read once", image["file_name"])
        where.setdefault(key, number)
        listed[key] = file
    return listed


def _file(source: Source, name: str, report: Report) -> str:
    """Returns a picture's path below the source's folder, or "" if it is not there or outside of the folder."""
    if not stays_inside(name):
        line = f"{source.origin}: {name[:60]!r} leaves the folder of the pictures"
        report.leave_out("leaves the folder of the pictures", name[:60], line)
        return ""
    path = source.folder / name
    if os.path.isfile(path):
        return os.path.normpath(name)
    why = folder_conversion.look(path, png=True)
    report.leave_out("no whole picture", str(path), why if isinstance(why, str) else None)
    return ""


def _fits(
    entry: Mapping[str, Any], boxes: Sequence[Sequence[float]], looked: Picture, path: str, report: Report
) -> bool:
    """Whether an entry's size, or else its boxes, fit its picture as it is shown; the report says why not."""
    upright = looked.width, looked.height
    stored = upright[::-1] if looked.orientation >= 5 else upright
    try:
        claim = _size(entry)
    except BadShapeError as error:
        report.leave_out("its size is not a number of pixels", path, f"{path}: {error}")
        return False
    if claim not in (None, upright):
        line = f"{path}: has {upright[0]}x{upright[1]} pixels, its entry says {claim[0]}x{claim[1]}"
        reason = "its size differs from its entry's"
        report.leave_out(*((NOT_TURNED, path) if claim == stored else (reason, path, line)))
        return False
    on_upright, on_stored = (all(label_lines.fits(box, size) for box in boxes) for size in (upright, stored))
    if claim is None and on_stored and not on_upright:
        report.leave_out(NOT_TURNED, path)
        return False
    if looked.orientation != 1 and (claim is None or upright == stored):
        report.suspect(UNCLEAR, path)
    return True


def _size(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns an entry's (width, height); None if it has none, as VIA's -1 or Pascal VOC's 0.

    Raises BadShapeError if a side is not a whole number.
    """
    sides = []
    for side in ("width", "height"):
        value = entry.get(side)
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            return None
        number = shapes.numbers([value])[0] if not isinstance(value, list | dict) else math.nan
        if not number == number // 1:
            raise BadShapeError(f"{side} is {shapes.quote(value)}")
        sides.append(int(number))
    return (sides[0], sides[1]) if min(sides) > 0 else None
