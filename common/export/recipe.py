"""Prepares pictures for an exported network as `timetotrain predict` does; needs numpy and Pillow alone.

`timetotrain export` puts this file beside a network of pictures in ONNX or StableHLO. Beside model.onnx,

    python recipe.py PICTURE ...

prints what onnxruntime answers. For other programs, `prepared` returns the network's inputs. Decoders of JPEG differ by
a few of 255 levels, so answers about a JPEG differ a little from those of `predict`, which decodes with TensorFlow.
Pillow clips pictures of 16 bits a channel; scale these first.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def prepared(pixels: np.ndarray, about: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns {name: array} of the network's inputs, for one picture.

    Args:
      pixels: uint8 [H, W, 3], upright; of mnist [H, W], light on dark.
      about: timetotrain.json beside an ONNX file, or model.json beside a StableHLO file.

    Raises ValueError if maskrcnn's frame is wide and the picture is tall.
    """
    benchmark, config = about["benchmark"], about["config"]
    high, wide = pixels.shape[:2]
    if benchmark == "mnist":
        size = [config["image_size"]] * 2
        values = pixels if [high, wide] == size else np.round(resized(pixels, size, "antialiased"))
        return {"image": values.astype(np.uint8)[None]}
    size, method = [config.get("image_size", 0)] * 2, config["data"]["resize"]
    if benchmark == "resnet":
        part = np.float32((227 if config["model"] == "alexnet_bn" else 224) / 256)
        side = max(1, int(np.float32(min(high, wide)) * part))
        top, left = (high - side + 1) // 2, (wide - side + 1) // 2
        pixels = pixels[top : top + side, left : left + side]
    if benchmark != "maskrcnn":
        return {"image": levels(resized(pixels, size, method))[None]}
    short, long = sorted((high, wide))
    exceeds = long * config["short_side"] > config["long_side"] * short
    after, side = (config["long_side"], long) if exceeds else (config["short_side"], short)
    size = [max(length * after // side, 1) for length in (high, wide)]
    frame = np.zeros(about["inputs"]["image"][0], np.uint8)
    if size[0] > frame.shape[1] or size[1] > frame.shape[2]:
        raise ValueError("the exported frame is wide and this picture is tall: turn it, or take a SavedModel")
    frame[0, : size[0], : size[1]] = levels(resized(pixels, size, method))
    return {"image": frame, "image_info": np.array([[*size, after / side]], np.float32)}


def levels(values: np.ndarray) -> np.ndarray:
    """Rounds float32 pixels and clips them to 0..255."""
    return np.clip(values + np.float32(0.5), 0, 255).astype(np.uint8)


def resized(pixels: np.ndarray, size: list[int], method: str) -> np.ndarray:
    """Returns pixels, [H, W, ...], as float32 of `size` (height, width), by one of TensorFlow's methods."""
    rows, columns = (_weights(n, after, method) for n, after in zip(pixels.shape, size))
    return np.einsum("ah,hw...,bw->ab...", rows, pixels, columns, optimize=True).astype(np.float32)


def _weights(before: int, after: int, method: str) -> np.ndarray:
    """Returns what each pixel of a line, [after, before], takes of each pixel of the line that is resized."""
    scale, legacy = before / after, method.startswith("legacy")
    places = np.arange(after) * scale if legacy else (np.arange(after) + 0.5) * scale - 0.5
    if method == "antialiased":
        weights = np.maximum(1 - np.abs(places[:, None] - np.arange(before)) / max(scale, 1), 0)
        return weights / weights.sum(1, keepdims=True)
    first, weights = np.floor(places).astype(int), np.zeros([after, before])
    part, keys = places - first, method == "bicubic"
    if cubic := method.endswith("bicubic"):
        part = np.rint(part * 1024) / 1024  # TensorFlow's table of the kernel has so many entries.
    for tap in range(-1, 3) if cubic else (0, 1):
        distance = np.abs(part - tap)
        share = _cubic(distance, -0.5 if keys else -0.75) if cubic else 1 - distance
        at = first + tap
        share = np.where((at < 0) | (at >= before), 0, share) if keys else share
        np.add.at(weights, (np.arange(after), np.clip(at, 0, before - 1)), share)
    return weights / weights.sum(1, keepdims=True)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel (Keys, "Cubic Convolution Interpolation for Digital Image Processing", 1981)."""
    return np.where(x <= 1, ((a + 2) * x - a - 3) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


def main() -> None:
    """Prints a line for each picture: its best class, or its objects, by the model.onnx beside this file."""
    import onnxruntime
    from PIL import Image, ImageOps

    folder = pathlib.Path(__file__).parent
    about = json.loads((folder / "timetotrain.json").read_text(encoding="utf-8"))
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    for path in sys.argv[1:]:
        picture = ImageOps.exif_transpose(Image.open(path))
        if picture.has_transparency_data:  # On white, as `predict` has it.
            white = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(white, picture.convert("RGBA"))
        pixels = np.asarray(picture.convert("L" if about["benchmark"] == "mnist" else "RGB"))
        outputs = dict(zip(names, session.run(None, prepared(pixels, about))))
        print(path, {name: value[0, :5].tolist() for name, value in outputs.items() if value.ndim < 4})


if __name__ == "__main__":
    main()
