"""Checks picture files and reads their sizes with Pillow, and encodes pictures."""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
from PIL import Image, ImageOps


def fault(path: str | os.PathLike) -> str | None:
    """Returns a line about a file that is not a complete picture, or None; decodes the whole picture."""
    if os.path.exists(path) and not os.path.isfile(path):  # Opening a pipe would block forever.
        return f"{os.fspath(path)}: no whole picture (no regular file)"
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{os.fspath(path)}: no whole picture ({error})"
    return None


def refused(data: bytes) -> str | None:
    """Returns why a file's content must not be decoded as a picture, or None; reads only the header.

    A picture above Pillow's limit, about 10,000 x 9,000 pixels, would fill the memory.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)):
                return None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return f"a picture of more than {Image.MAX_IMAGE_PIXELS} pixels"
    except (OSError, SyntaxError, ValueError):
        return "no JPEG or PNG picture"


def size(path: str | os.PathLike) -> tuple[int, int]:
    """Returns (width, height) in pixels from the file's header."""
    with Image.open(path) as image:
        return image.size


def upright(image: Image.Image) -> Image.Image | None:
    """Returns the picture rotated by its EXIF orientation; None if it needs no rotation."""
    turned = image.getexif().get(0x0112, 1)  # The tag Orientation; 1 is upright.
    return ImageOps.exif_transpose(image) if turned in range(2, 9) else None


def jpeg(image: Image.Image) -> bytes:
    """Encodes as RGB JPEG of quality 100, as the TPU reference's converter does."""
    encoded = io.BytesIO()
    image.convert("RGB").save(encoded, "JPEG", quality=100)
    return encoded.getvalue()


def png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W, 3] as PNG."""
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "PNG")
    return encoded.getvalue()
