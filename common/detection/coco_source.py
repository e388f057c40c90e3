"""Finds and normalizes the annotations of a user's pictures: COCO JSON as tools write it, or Pascal VOC XML."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from common.data import folder_conversion, pictures
from common.data.folder_conversion import Options
from common.errors import UserError
from common.files import stays_inside

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
_HELP = "expected COCO's JSON beside the pictures, or Pascal VOC's XML files"


@dataclasses.dataclass(frozen=True)
class Source:
    """A split's annotations, and the folder to which their file names are relative.

    Attributes:
      content: annotations in the form of COCO's JSON.
      folder: folder of the pictures.
      named: the annotation file, for errors.
    """

    content: Mapping[str, Any]
    folder: Path
    named: str


def find(folder: Path, options: Options) -> tuple[Source, Source | None]:
    """Finds the training annotations and, if the folder has a split, the evaluation annotations.

    Raises:
      UserError: there are no annotations, there are several and the user named none, or a file cannot be read.
    """
    if options.annotations:
        held = _coco(folder, options.eval_annotations) if options.eval_annotations else None
        return _coco(folder, options.annotations), held
    first, second = folder_conversion.given_split(folder)
    if second and _jsons(first) and _jsons(second):
        return _coco(first, _only(first, _jsons(first))), _coco(second, _only(second, _jsons(second)))
    found = _jsons(folder) + (_jsons(folder / "annotations") if (folder / "annotations").is_dir() else [])
    by_name = {split: [p for p in found if split in p.stem.lower()] for split in ("train", "val")}
    if len(by_name["train"]) == len(by_name["val"]) == 1:
        return _coco(folder, by_name["train"][0]), _coco(folder, by_name["val"][0])
    if found:
        return _coco(folder, _only(folder, found)), None
    if second:
        return _voc(first), _voc(second)
    return _voc_with_lists(folder)


def _jsons(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.is_file())


def _only(folder: Path, found: Sequence[Path]) -> Path:
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise UserError(f"{folder}: several annotation files ({names}); name one with --annotations")
    return found[0]


def _coco(folder: Path, path: Path) -> Source:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; correct the path or name another file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON file ({error}); correct it or name another") from error
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise UserError(f"{path}: images is no list; get a COCO file of object instances")
    for kind in ("annotations", "categories"):
        if not isinstance(content.get(kind), list):
            raise UserError(f"{path}: {kind} is no list; get a COCO file of object instances")
    return Source(content, _pictures_of(folder, path, content["images"]), str(path))


def _pictures_of(folder: Path, path: Path, images: Sequence[Any]) -> Path:
    """Returns the folder that contains the pictures listed in the file."""
    given = [
        str(image["file_name"]) for image in images if isinstance(image, dict) and image.get("file_name")
    ]
    names = [name for name in given if stays_inside(name)][:20]
    inside = [folder, folder / "images", path.parent, path.parent.parent / "images"]
    inside += sorted(p for p in folder.iterdir() if p.is_dir())
    inside += sorted(p for p in (folder / "images").glob("*") if p.is_dir())
    for place in inside:
        if any((place / name).is_file() for name in names):
            return place
    shown = f", such as {names[0]}" if names else ""
    raise UserError(f"{path}: none of its pictures{shown} is in {folder}; name the folder that holds them")


def _voc_with_lists(folder: Path) -> tuple[Source, Source | None]:
    """Reads Pascal VOC's layout; ImageSets/Main/train.txt and val.txt define the split if they exist."""
    source = _voc(folder)
    lists = {split: folder / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val")}
    if not all(path.is_file() for path in lists.values()):
        return source, None
    parts = []
    for path in lists.values():
        stems = {line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.split()}
        images = [image for image in source.content["images"] if Path(image["file_name"]).stem in stems]
        parts.append(dataclasses.replace(source, content={**source.content, "images": images}))
    return parts[0], parts[1]


def _voc(folder: Path) -> Source:
    files = sorted(path for path in folder.rglob("*.xml") if path.is_file())
    if not files:
        raise UserError(f"{folder}: no annotations; {_HELP}")
    finder = _Pictures(folder)
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    broken: list[str] = []
    for path in files:
        try:
            root = _root(path)
            picture = finder.of(path, root.findtext("filename") or "")
            found = [_voc_object(item) for item in root.iter("object")]
        except (OSError, ElementTree.ParseError, TypeError, ValueError) as error:
            broken.append(f"{path}: no annotation of Pascal VOC ({error})")
            continue
        except LookupError as error:
            broken.append(f"{path}: {error.args[0]}")
            continue
        images.append({"id": len(images) + 1, "file_name": str(picture.relative_to(folder))})
        objects += [{**item, "image_id": len(images)} for item in found]
    if not images:
        raise UserError(f"{folder}: no annotation of Pascal VOC among its XML files; the first: {broken[0]}")
    names = sorted({item["category_id"] for item in objects})
    categories = [{"id": name, "name": name} for name in names]
    content = {"images": images, "annotations": objects, "categories": categories, "broken": broken}
    return Source(content, folder, str(folder))


def _root(path: Path) -> ElementTree.Element:
    """Parses an XML file; rejects entities, because they can expand to any size or name other files.

    Raises:
      OSError, ElementTree.ParseError, ValueError: it cannot be read, is not XML, or defines an entity.
    """
    data = path.read_bytes()

    def refuse(name: str, *_: Any) -> None:
        raise ValueError(f"it defines the entity {name[:40]!r}")

    looking = expat.ParserCreate()
    looking.EntityDeclHandler = refuse
    try:
        looking.Parse(data, True)
    except expat.ExpatError as error:
        raise ElementTree.ParseError(str(error)) from error
    return ElementTree.fromstring(data)


class _Pictures:
    """Finds an XML file's picture: beside the file, else in JPEGImages, else by the name in the file.

    Pascal VOC's own SegmentationClass folder has masks with the same names as pictures.
    """

    def __init__(self, folder: Path):
        self._by_stem: dict[str, list[Path]] = collections.defaultdict(list)
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in _SUFFIXES and path.is_file():
                self._by_stem[path.stem].append(path)

    def of(self, path: Path, name: str) -> Path:
        """Returns the picture of the XML file `path`; `name` is its name in that file, or "".

        Raises:
          LookupError: there is no picture or more than one; the message says which.
        """
        found = self._by_stem.get(path.stem) or self._by_stem.get(Path(name).stem, [])
        if not found:
            raise LookupError("its picture is missing")
        found = [picture for picture in found if picture.parent == path.parent] or found
        found = [picture for picture in found if picture.parent.name == "JPEGImages"] or found
        found = [picture for picture in found if picture.name == name] or found
        if len(found) > 1:
            raise LookupError(f"its picture is {found[0]} or {found[1]}; give each a name of its own")
        return found[0]


def _voc_object(item: ElementTree.Element) -> dict[str, Any]:
    """Parses an object of an XML file; corners are pixels counted from 1, as in Pascal VOC."""
    box = item.find("bndbox")
    if box is None:
        raise ValueError("an object without bndbox")
    left, top, right, bottom = (float(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
    name = (item.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object without a name")
    return {"category_id": name, "bbox": [left - 1, top - 1, right - left + 1, bottom - top + 1]}


def tidy(sources: Sequence[Source], masks: bool) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Normalizes annotations: fills in fields that tools omit, and leaves out unusable entries.

    It numbers categories from 1 in the order of their ids, the same in all sources, and renumbers pictures and
    annotations. Sizes come from the pictures. Boxes are clipped to the picture. It leaves out a category without
    objects if it is only another category's `supercategory`.

    Args:
      sources: one per split.
      masks: whether every object needs a mask.

    Returns:
      (a content for each source, the categories' names in order, a line for each entry that was left out).

    Raises:
      UserError: an entry has no id or name; the message says where.
    """
    broken: list[str] = []
    names = _categories(sources)
    numbers = {key: number for number, key in enumerate(names, 1)}
    contents = []
    first = 1
    for source in sources:
        broken += source.content.get("broken", ())
        images, places = _images(source, first, broken)
        first += len(images)
        objects = _objects(source, places, numbers, masks, broken)
        categories = [{"id": numbers[key], "name": name} for key, name in names.items()]
        contents.append({"images": images, "annotations": objects, "categories": categories})
    return contents, list(names.values()), broken


def _categories(sources: Sequence[Source]) -> dict[Any, str]:
    """Returns {id: name} in the order of the ids."""
    names: dict[Any, str] = {}
    above, used = set(), set()
    for source in sources:
        used |= {item.get("category_id") for item in source.content["annotations"] if isinstance(item, dict)}
        for number, entry in enumerate(source.content["categories"]):
            if not isinstance(entry, dict) or "id" not in entry or not entry.get("name"):
                raise UserError(f"{source.named}: categories[{number}]: needs an id and a name")
            if names.setdefault(entry["id"], str(entry["name"])) != str(entry["name"]):
                raise UserError(
                    f"{source.named}: category {entry['id']} is {entry['name']!r}, elsewhere {names[entry['id']]!r}"
                )
            above.add(entry.get("supercategory"))
    kept = {key: name for key, name in names.items() if key in used or name not in above}
    if not kept:
        raise UserError(f"{sources[0].named}: no categories; annotate objects first")
    return {key: kept[key] for key in sorted(kept, key=lambda key: (isinstance(key, str), key))}


def _images(source: Source, first: int, broken: list[str]) -> tuple[list[dict], dict[Any, dict]]:
    """Returns (the sound pictures' entries, {id in the source: entry})."""

    def fault(image: Any) -> str | None:
        if not isinstance(image, dict) or "id" not in image or not image.get("file_name"):
            return f"{source.named}: an image without id or file_name: {str(image)[:60]}"
        if not stays_inside(str(image["file_name"])):
            return f"{source.named}: {str(image['file_name'])[:60]!r} leaves the folder of the pictures"
        path = source.folder / str(image["file_name"])
        why = pictures.fault(path)
        if why:
            return why
        said, found = (image.get("width"), image.get("height")), pictures.size(path)
        if all(said) and said != found:
            return f"{path}: has {found[0]}x{found[1]} pixels, its entry says {said[0]}x{said[1]}"
        return None

    sound, faults = folder_conversion.sound(source.content["images"], fault, "pictures")
    broken += faults
    images, places = [], {}
    for number, image in enumerate(sound, first):
        width, height = pictures.size(source.folder / image["file_name"])
        entry = {"id": number, "file_name": image["file_name"], "width": width, "height": height}
        images.append(entry)
        places[image["id"]] = entry
    return images, places


def _objects(
    source: Source, places: Mapping[Any, dict], numbers: Mapping[Any, int], masks: bool, broken: list[str]
) -> list[dict[str, Any]]:
    known = {image.get("id") for image in source.content["images"] if isinstance(image, dict)}
    objects = []
    for number, item in enumerate(source.content["annotations"]):
        place = f"{source.named}: annotations[{number}]"
        if not isinstance(item, dict):
            broken.append(f"{place}: no object")
        elif item.get("image_id") in places:
            entry, why = _object(item, places[item["image_id"]], numbers, masks)
            if why:
                broken.append(f"{place}: {why}")
            else:
                objects.append({**entry, "id": len(objects) + 1})
        elif item.get("image_id") not in known and "broken" not in source.content:
            broken.append(f"{place}: of an unknown image {item.get('image_id')!r}")
    return objects


def _object(
    item: Mapping[str, Any], image: Mapping[str, Any], numbers: Mapping[Any, int], masks: bool
) -> tuple[dict[str, Any], str]:
    """Returns (the entry, "") or ({}, the reason why it is left out)."""
    if item.get("category_id") not in numbers:
        return {}, f"category {item.get('category_id')!r} is unknown"
    shape = item.get("segmentation") or None
    if masks and not shape:
        return {}, "it has no segmentation"
    try:
        x, y, width, height = map(float, item["bbox"])
    except (KeyError, TypeError, ValueError):
        return {}, f"bbox is {item.get('bbox')!r}"
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + width, float(image["width"])), min(y + height, float(image["height"]))
    if not (right > left and bottom > top):  # Also true if a side is NaN.
        return {}, "its box has no area within the picture"
    if isinstance(shape, list):
        shape = [polygon for polygon in shape if isinstance(polygon, list) and len(polygon) >= 6]
        if not shape and masks:
            return {}, "its polygons have fewer than three points"
    size = [image["height"], image["width"]]
    if isinstance(shape, dict) and shape.get("size") != size:
        return {}, f"a mask of size {shape.get('size')} in a picture of {size}"
    area = item.get("area")
    entry = {
        "image_id": image["id"],
        "category_id": numbers[item["category_id"]],
        "bbox": [left, top, right - left, bottom - top],
        "area": float(area)
        if isinstance(area, int | float) and area > 0
        else (right - left) * (bottom - top),
        "iscrowd": int(bool(item.get("iscrowd"))),
        "segmentation": shape or None,
    }
    return entry, ""
