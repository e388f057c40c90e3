"""Makes tiny folders of one's own data: photographs, boxes, masks, sentence pairs and clips."""

import json
import struct
from pathlib import Path

import av
import numpy as np
from PIL import Image

COLORS = {"blue": (30, 60, 220), "red": (220, 40, 30)}


def photographs(folder: Path, count: int = 10, size: int = 64) -> Path:
    """A folder per color, `count` noisy pictures each."""
    rng = np.random.default_rng(1)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.clip(np.array(color) + rng.normal(0, 25, (size, size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}{i}.jpg")
    return folder


def text(folder: Path) -> Path:
    """Two files of numbered lines, 14,000 characters in all."""
    folder.mkdir(parents=True)
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text("".join(f"{name[:3]}: line {i} of many\n" for i in range(300)))
    return folder


def odd_pictures(folder: Path, count: int, size: tuple[int, int] = (40, 28)) -> list[Path]:
    """Pictures of many formats, modes and orientations, each of its own pixels."""
    # The last two: a suffix that is not there, and a wrong one.
    kinds = [
        ("JPEG", "RGB", ".jpg"), ("JPEG", "L", ".jfif"), ("JPEG", "CMYK", ".jpe"), ("PNG", "RGB", ".png"),
        ("PNG", "RGBA", ".png"), ("PNG", "LA", ".png"), ("PNG", "P", ".png"), ("PNG", "L", ".png"),
        ("PNG", "1", ".PNG"), ("TIFF", "RGB", ".tif"), ("TIFF", "L", ".tiff"), ("TIFF", "P", ".tif"),
        ("TIFF", "CMYK", ".tif"), ("WEBP", "RGBA", ".webp"), ("GIF", "P", ".gif"), ("BMP", "RGB", ".bmp"),
        ("JPEG2000", "RGB", ".jp2"), ("PPM", "RGB", ".ppm"), ("JPEG", "RGB", ""), ("PNG", "RGB", ".jpg"),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        form, mode, suffix = kinds[number % len(kinds)]
        rng = np.random.default_rng([6, number])
        values = np.kron(rng.integers(0, 256, (7, 10, 4)), np.ones((4, 4, 1))).astype(np.uint8)
        image = Image.fromarray(values).resize(size)
        if mode not in ("RGBA",):
            image = image.convert("RGB").convert(mode) if mode != "LA" else image.convert("LA")
        exif = Image.Exif()
        exif[0x0112] = number // len(kinds) % 8 + 1
        turned = {} if form in ("GIF", "BMP", "JPEG2000", "PPM") else {"exif": exif}
        path = folder / f"odd{number:03d}{suffix}"
        image.save(path, form, **turned)
        paths.append(path)
    return paths


def objects(folder: Path, count: int = 10, size: int = 96, text: str = "labels.json") -> Path:
    """Pictures with one or two rectangles, and COCO's JSON with polygons, whose category ids begin at 0."""
    rng = np.random.default_rng(2)
    (folder / "images").mkdir(parents=True)
    images, items = [], []
    for i in range(count):
        pixels = rng.integers(90, 110, (size, size, 3)).astype(np.uint8)
        for category in range(1 + i % 2):
            side = int(rng.integers(size // 4, size // 3))
            left, top = (int(v) for v in rng.integers(0, size - side, 2))
            pixels[top : top + side, left : left + side] = list(COLORS.values())[category]
            right, bottom = left + side, top + side
            corners = [left, top, right, top, right, bottom, left, bottom]
            box = [left, top, side, side]
            items.append(
                {
                    "id": len(items),
                    "image_id": i,
                    "category_id": category,
                    "bbox": box,
                    "segmentation": [corners],
                }
            )
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": size, "height": size})
    categories = [{"id": number, "name": name} for number, name in enumerate(COLORS)]
    content = {"images": images, "annotations": items, "categories": categories}
    (folder / text).write_text(json.dumps(content))
    return folder


def voc(folder: Path, count: int = 10, size: int = 96) -> Path:
    """The same pictures in Pascal VOC's layout."""
    source = objects(folder / "coco", count, size)
    content = json.loads((source / "labels.json").read_text())
    names = list(COLORS)
    for part in ("JPEGImages", "Annotations"):
        (folder / part).mkdir()
    for image in content["images"]:
        stem = Path(image["file_name"]).stem
        Image.open(source / "images" / image["file_name"]).save(folder / "JPEGImages" / f"{stem}.jpg")
        actual = ""
        for item in content["annotations"]:
            if item["image_id"] == image["id"]:
                x, y, w, h = item["bbox"]
                corners = {"xmin": x + 1, "ymin": y + 1, "xmax": x + w, "ymax": y + h}
                box = "".join(f"<{side}>{value}</{side}>" for side, value in corners.items())
                actual += f"<object><name>{names[item['category_id']]}</name><bndbox>{box}</bndbox></object>"
        text = f"<annotation><filename>{stem}.jpg</filename>{actual}</annotation>"
        (folder / "Annotations" / f"{stem}.xml").write_text(text)
    (source / "labels.json").unlink()
    for path in (source / "images").iterdir():
        path.unlink()
    return folder


def sentences(folder: Path, count: int = 300) -> tuple[Path, Path]:
    """Two text files: a translation has each word spelled backwards."""
    rng = np.random.default_rng(3)
    words = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nrst"]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [[words[i] for i in rng.integers(0, len(words), rng.integers(3, 9))] for _ in range(count)]
    paths = folder / "train.en", folder / "train.de"
    paths[0].write_text("".join(" ".join(line) + "\n" for line in lines))
    paths[1].write_text("".join(" ".join(word[::-1] for word in line) + "\n" for line in lines))
    return paths


def with_matrix(path: Path, target: Path, a: int, b: int, c: int, d: int) -> Path:
    """A copy of an mp4 file whose display matrix shows a stored pixel (x, y) at (a x + c y, b x + d y)."""
    data = path.read_bytes()
    # ISO/IEC 14496-12: version, times, track, duration, layer, volume before it.
    at = data.index(b"tkhd") + 4 + 40
    matrix = struct.pack(">9i", *(v << 16 for v in (a, b, 0, c, d, 0, 0, 0)), 1 << 30)
    target.write_bytes(data[:at] + matrix + data[at + len(matrix) :])
    return target


def clips(folder: Path, count: int = 6, frames: int = 16, size: int = 48) -> Path:
    """A folder per direction: a bright square moves left or right."""
    rng = np.random.default_rng(4)
    for name, step in {"left": -2, "right": 2}.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            with av.open(str(folder / name / f"{name}{i}.mp4"), "w") as container:
                stream = container.add_stream("mpeg4", rate=8)
                stream.width = stream.height = size
                stream.pix_fmt = "yuv420p"
                top = int(rng.integers(0, size - 12))
                for frame in range(frames):
                    pixels = np.full((size, size, 3), 40, np.uint8)
                    left = (size // 2 + step * frame) % (size - 12)
                    pixels[top : top + 12, left : left + 12] = 230
                    for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                        container.mux(packet)
                for packet in stream.encode():
                    container.mux(packet)
    return folder
