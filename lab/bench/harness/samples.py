"""Makes the smallest sound files of a user's data, and models, for scripts and tests that damage them."""

import dataclasses
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_SIZE = 48, 32  # Width and height in pixels.
_COUNT = 3
_BOX = [8, 6, 20, 16]
_POLYGON = [8, 6, 28, 6, 28, 22, 8, 22]
CONTAINERS = {
    "mp4": "mpeg4", "avi": "mpeg4", "mkv": "libx264", "mpg": "mpeg1video", "flv": "flv", "wmv": "wmv2",
    "webm": "libvpx",
}  # fmt: skip
PICTURES = (
    "jpeg", "progressive", "exif", "cmyk", "png", "png16", "palette", "alpha", "tiff", "tiff16", "float",
    "lzw", "webp", "gif", "bmp", "jp2", "ppm",
)  # fmt: skip


def _pixels(channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(channels)
    return rng.integers(0, 256, (_SIZE[1], _SIZE[0], channels), np.uint8)


def picture(kind: str, path: Path) -> Path:
    """Writes a picture of one of PICTURES."""
    colour, grey = Image.fromarray(_pixels()), _pixels()[..., 0]
    exif = Image.Exif()
    exif[0x0112] = 6
    makers: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "jpeg": (colour, "JPEG", {}),
        "progressive": (colour, "JPEG", {"progressive": True}),
        "exif": (colour, "JPEG", {"exif": exif}),
        "cmyk": (colour.convert("CMYK"), "JPEG", {}),
        "png": (colour, "PNG", {}),
        "png16": (Image.fromarray(grey.astype(np.uint16) * 257), "PNG", {}),
        "palette": (colour.quantize(16), "PNG", {"transparency": 0}),
        "alpha": (Image.fromarray(_pixels(4)), "PNG", {"exif": exif}),
        "tiff": (colour, "TIFF", {}),
        "tiff16": (Image.fromarray(grey.astype(np.uint16) * 16), "TIFF", {}),
        "float": (Image.fromarray(grey.astype(np.float32) / 255), "TIFF", {}),
        "lzw": (colour, "TIFF", {"compression": "tiff_lzw", "exif": exif}),
        "webp": (Image.fromarray(_pixels(4)), "WEBP", {"exif": exif}),
        "gif": (colour, "GIF", {"save_all": True, "append_images": [colour.rotate(180)]}),
        "bmp": (colour, "BMP", {}),
        "jp2": (colour, "JPEG2000", {}),
        "ppm": (colour, "PPM", {}),
    }
    image, form, options = makers[kind]
    image.save(path, form, **options)
    return path


def video(kind: str, path: Path) -> Path:
    """Writes a video in one of CONTAINERS."""
    from common.data import videos

    frames = np.stack([np.roll(_pixels(), 2 * i, axis=1) for i in range(6)])
    videos.write(path, frames, codec=CONTAINERS[kind])
    return path


def _coco(shape: Callable[[int], Any] = lambda _: [_POLYGON]) -> dict[str, Any]:
    width, height = _SIZE
    images = [{"id": i, "file_name": f"p{i}.jpg", "width": width, "height": height} for i in range(_COUNT)]
    items = [
        {
            "id": i,
            "image_id": i,
            "category_id": 1 + i % 2,
            "bbox": _BOX,
            "area": 320,
            "iscrowd": 0,
            "segmentation": shape(i),
        }
        for i in range(_COUNT)
    ]
    categories = [{"id": 1, "name": "red", "supercategory": "all"}, {"id": 2, "name": "blue"}]
    return {"info": {}, "images": images, "annotations": items, "categories": categories}


def _runs(number: int) -> dict[str, Any]:
    from pycocotools import mask

    inside = np.zeros(_SIZE[::-1], np.uint8, order="F")
    inside[6:22, 8:28] = 1
    if number % 2:
        return {"size": [*inside.shape], "counts": mask.encode(inside)["counts"].decode()}
    height = inside.shape[0]
    lengths = [8 * height + 6, *[16, height - 16] * 19, 16]
    return {"size": [*inside.shape], "counts": [*lengths, inside.size - sum(lengths)]}


def _via() -> dict[str, Any]:
    shape = {"name": "polygon", "all_points_x": _POLYGON[::2], "all_points_y": _POLYGON[1::2]}
    region = {"shape_attributes": shape, "region_attributes": {"class": "red"}}
    entries = {f"p{i}": {"filename": f"p{i}.jpg", "size": 1, "regions": [region]} for i in range(_COUNT)}
    return {"_via_settings": {"project": {"name": "x"}}, "_via_img_metadata": entries}


def _labelme(number: int) -> dict[str, Any]:
    shape = {"label": "red", "points": np.reshape(_POLYGON, (-1, 2)).tolist(), "shape_type": "polygon"}
    return {"imagePath": f"p{number}.jpg", "imageWidth": 48, "imageHeight": 32, "shapes": [shape]}


def _voc(number: int) -> str:
    corners = dict(zip(("xmin", "ymin", "xmax", "ymax"), (9, 7, 28, 22)))
    box = "".join(f"<{side}>{value}</{side}>" for side, value in corners.items())
    item = f"<object><name>red</name><bndbox>{box}</bndbox></object>"
    size = "<size><width>48</width><height>32</height><depth>3</depth></size>"
    return f"<annotation><filename>p{number}.jpg</filename>{size}{item}</annotation>"


ANNOTATIONS = ("coco", "coco masks", "via", "labelme", "voc", "voc list", "yolo")


def annotations(kind: str, folder: Path) -> list[Path]:
    """Writes pictures and annotations of one of ANNOTATIONS; returns the annotation files."""
    for i in range(_COUNT):
        Image.fromarray(np.roll(_pixels(), i, axis=0)).save(folder / f"p{i}.jpg")
    texts: dict[str, str] = {}
    if kind in ("coco", "coco masks", "via"):
        values = _via() if kind == "via" else _coco(*[_runs][: kind == "coco masks"])
        texts = {"labels.json": json.dumps(values)}
    elif kind == "labelme":
        texts = {f"p{i}.json": json.dumps(_labelme(i)) for i in range(_COUNT)}
    elif kind == "yolo":
        texts = {f"p{i}.txt": "0 0.375 0.4375 0.41 0.5\n1 0.1 0.1 0.6 0.1 0.6 0.7\n" for i in range(_COUNT)}
        texts["data.yaml"] = "names: [red, blue]\n"
    else:
        texts = {f"p{i}.xml": _voc(i) for i in range(_COUNT)}
    if kind == "voc list":
        texts |= {"ImageSets/Main/train.txt": "p0\np1.jpg\n", "ImageSets/Main/val.txt": "p2 1\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    found = [folder / name for name in texts]
    return [path for path in found if path.suffix == ".txt" and "Main" in path.parts] or found


def model(folder: Path) -> tuple[Path, Path]:
    """Returns (a checkpoint, its SavedModel) of a perceptron with 8 units for 8 x 8 pictures."""
    from common.distributed.replicas.single import Single
    from common.export import formats, trained
    from common.layers.precision import precision
    from common.train import checkpoint
    from common.train.state import State
    from mnist.presets import PRESETS
    from mnist.task import Task

    changes = {"model": "mlp", "hidden_layers": 1, "hidden_units": 8, "image_size": 8, "precision": "fp32"}
    config = dataclasses.replace(PRESETS["cpu-tiny"], **changes)
    task = Task(config, None)
    task.labels = lambda: [f"digit {i}" for i in range(config.num_classes)]  # type: ignore[method-assign]
    task.assets = lambda: {"words.txt": b"a\nb\n"}  # type: ignore[method-assign]
    state = State(task, Single(), precision("fp32"))
    run = types.SimpleNamespace(state=state, config=config, task=task)
    saved = checkpoint.save(run, folder / "checkpoints")  # type: ignore[arg-type]
    formats.write(trained.load(saved), folder / "export", "savedmodel")
    return saved, folder / "export"


def digit(path: Path) -> Path:
    """Writes a picture of a digit's size."""
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(path)
    return path
