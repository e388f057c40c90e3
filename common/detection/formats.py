"""Knows the formats of annotations that are not read by their contents and names, and says which export helps."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.data import given_splits, pictures
from common.untrusted import parsed

_COCO, _BOXES, _FRAMES = "export it as COCO", "export it as COCO or Pascal VOC", "convert its frames to COCO"
# Keys of one JSON object (of a list, its first), the program, and what to do there.
_JSON = (
    (
        {"image_id", "category_id", "score", "bbox"},
        "predictions (COCO's results)",
        "name the file of the labels",
    ),
    ({"videos", "annotations"}, "YouTube-VIS", _FRAMES),
    ({"video_id", "bboxes"}, "YouTube-VIS", _FRAMES),
    ({"image_id", "segments_info"}, "COCO panoptic", "get the instances file"),
    ({"image_id", "caption"}, "COCO captions", "get the instances file"),
    ({"asset", "regions"}, "VoTT", _BOXES),
    ({"assets", "tags"}, "VoTT", _BOXES),
    ({"objects", "size"}, "Supervisely", _COCO),
    ({"data", "annotations"}, "Label Studio", _COCO),
    ({"data", "completions"}, "Label Studio", _COCO),
    ({"External ID", "Label"}, "Labelbox", _BOXES),
    ({"data_row", "projects"}, "Labelbox", _BOXES),
    ({"item", "annotations"}, "Darwin (V7)", _COCO),
    ({"imageHeight", "imageWidth", "labels"}, "Labelbox", _COCO),
    ({"imgHeight", "imgWidth", "objects"}, "Cityscapes", "convert it to COCO"),
    ({"name", "labels"}, "BDD100K or Scalabel", "convert it to COCO"),
    ({"annotation_id"}, "Label Studio", _COCO),
    ({"classes", "tags"}, "Supervisely", _COCO),
    ({"project", "metadata", "file"}, "VIA 3", _COCO),
    ({"_via_img_metadata"}, "VIA", _COCO),
    ({"filename", "regions"}, "VIA", _COCO),
    ({"categories", "items"}, "Datumaro", _COCO),
    ({"image", "annotations"}, "CreateML", _BOXES),
    ({"file_name", "objects"}, "Hugging Face (objects)", "convert it to COCO"),
)
# Programs by the first tag of their XML.
_XML = {
    "annotations": "CVAT for images; export it as COCO 1.0 or Pascal VOC 1.1",
    "dataset": "dlib (imglab); export it as Pascal VOC or COCO",
}
_HEAD = 4096


def of_json(content: Any) -> str:
    """Returns the program and the fix, such as "VoTT; export it as Pascal VOC"; "" if the content is not known."""
    places: list[Any] = content[:1] if isinstance(content, list) else [content]
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        places += content["annotations"][:1]
    elif isinstance(content, dict):
        places += list(content.values())[:1]  # VIA has an entry for each picture.
    for keys, program, fix in _JSON:
        if any(
            isinstance(place, dict) and keys <= set(place) and ("bbox" in keys or "bbox" not in place)
            for place in places
        ):
            return f"{program}; {fix}"
    return ""


def of_columns(columns: Sequence[str]) -> str:
    """Returns the program and the fix for a table of boxes, by its columns in lower case; "" if it is not known."""
    names = set(columns)
    if "region_shape_attributes" in names:
        return f"VIA as a table (CSV); {_COCO}"
    if "annotation_id" in names:
        return f"Label Studio as a table (CSV); {_COCO}"
    numbers = sum(word.replace(".", "", 1).isdigit() for word in columns)  # There may be no line of names.
    corners = ({"xmin", "ymin", "xmax", "ymax"}, {"x1", "y1", "x2", "y2"}, {"bbox"})
    if any(one <= names for one in corners) or numbers > 3:
        program = "OpenImages' table" if "imageid" in names else "a table (CSV) of boxes"
        return f"{program}, which is not read; convert it to COCO, Pascal VOC or YOLO"
    return ""


def of_file(path: Path) -> str:
    """Returns the program and the fix for a file, by its first bytes, or a JSON file by its content."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".json":
            return of_json(parsed(path.read_bytes()))
        if suffix in given_splits.PACKED:
            return f"an unknown program in a file {suffix}, which is not read; unpack or convert it"
        with open(path, "rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    except (OSError, ValueError):
        return ""
    if suffix in (".jsonl", ".ndjson"):
        with contextlib.suppress(ValueError):
            return of_json(parsed(head.partition("\n")[0]))
    if suffix in (".csv", ".tsv", ".txt"):
        return of_columns([word.strip(' "').lower() for word in re.split(r"[,;\t]", head.partition("\n")[0])])
    if suffix == ".xml":
        tag = re.search(r"<([A-Za-z][\w:.-]*)", re.sub(r"<\?.*?\?>|<!--.*?-->", "", head, flags=re.S))
        return _XML.get(tag.group(1), "") if tag else ""
    return ""


def first(paths: Sequence[Path]) -> str:
    """Returns "FILE: annotations of PROGRAM; FIX" of the first file that is known; "" if none is."""
    for path in paths:
        text = of_file(path) if path.suffix.lower() not in (*pictures.SUFFIXES, ".txt") else ""
        if path.name.startswith("wider_face"):
            text = "WIDER FACE, which is not read; convert them to COCO"
        if text:
            return f"{path}: annotations of {text}"
    return ""


def is_known(content: Any) -> bool:
    """Whether a JSON file's content is annotations of many pictures, COCO's."""
    return isinstance(content, dict) and (
        isinstance(content.get("images"), list) or {"annotations", "categories"} <= content.keys()
    )


def is_labelme(content: Any) -> bool:
    """Whether a JSON file's content is LabelMe's, which describes one picture."""
    return isinstance(content, dict) and isinstance(content.get("shapes"), list) and "imagePath" in content
