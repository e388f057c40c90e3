"""Makes a small COCO file, its pictures, and faults in it."""

import io

import numpy as np
from PIL import Image

IDS = (3, 7, 44)  # Original category ids, with gaps like COCO's.
SIZE = (40, 60)


def jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, [*SIZE, 3], np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG")
    return encoded.getvalue()


def scene(images: int = 12, seed: int = 0) -> dict:
    """A COCO file: 0 to 4 objects in an image, polygons and RLE, one crowd."""
    rng = np.random.default_rng(seed)
    content = {
        "images": [
            {"id": 100 + 7 * i, "file_name": f"{i}.jpg", "height": SIZE[0], "width": SIZE[1]}
            for i in range(images)
        ],
        "categories": [{"id": i, "name": f"kind {i}"} for i in IDS],
        "annotations": [],
    }
    for i, image in enumerate(content["images"]):
        for _ in range(i % 5):
            x, y = float(rng.integers(0, 30)), float(rng.integers(0, 20))
            w, h = float(rng.integers(4, 30)), float(rng.integers(4, 20))
            content["annotations"].append({
                "id": len(content["annotations"]) + 1, "image_id": image["id"],
                "category_id": int(rng.choice(IDS)), "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0,
                "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
            })  # fmt: skip
    crowd = content["annotations"][-1]
    crowd["iscrowd"] = 1
    crowd["segmentation"] = {"size": list(SIZE), "counts": [100, 200, SIZE[0] * SIZE[1] - 300]}
    return content


NOTHING = object()


def set_field(entry: dict, field: str, value: object) -> None:
    entry[field] = value
    if value is NOTHING:
        del entry[field]
