"""Reads pictures, the same way for conversions and for predictions, and encodes them; Pillow and TensorFlow decode.

docs/your-own-data.md has the table of what this reader promises.
"""

import contextlib
import dataclasses
import hashlib
import io
import os
import stat
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from common.data import baselines, near_copies

# Pillow's formats that are tried. Others run programs (EPS), name other files or have no signature (TGA).
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "JPEG2000", "AVIF", "PPM")
# A file with such a suffix should be a picture; any other file is one if its content is.
SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".webp"),
    *(".jp2", ".j2k", ".jpx", ".avif", ".ppm", ".pgm", ".pbm", ".pnm", ".mpo"),
}
# Other files of pictures: Pillow cannot read them, or only the small preview in a camera's raw file.
UNREAD = {
    *(".heic", ".heif", ".hif", ".jxl", ".psd", ".svg", ".tga", ".eps", ".ico", ".exr", ".hdr", ".dcm"),
    *(".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".pef", ".srw"),
}
# (Offset, bytes, meaning) of contents that files named as pictures have: ISO/IEC 23008-12 for HEIC, ISO/IEC 18181-2
# for JPEG XL, Adobe's Photoshop format, git-lfs/docs/spec.md, and web pages that a download stored.
_HEIC, _JXL, _PAGE = "HEIC, which is not read; save it as JPEG", "JPEG XL, which is not read", "a web page"
_CONTENTS = (
    *((4, b"ftyp" + brand, _HEIC) for brand in (b"heic", b"heix", b"heim", b"hevc", b"mif1", b"msf1")),
    *((0, start, _JXL) for start in (b"\xff\x0a", b"\0\0\0\x0cJXL ")),
    (0, b"8BPS", "Photoshop, which is not read; save it as JPEG"),
    (0, b"version https://git-lfs", "a pointer of Git LFS; get the file itself with `git lfs pull`"),
    *((0, start, _PAGE) for start in (b"<!doctype", b"<!DOCTYPE", b"<html", b"<HTML")),
)
_NO_PICTURE = "cannot identify image file"
# Pillow's limit, about 10,000 x 9,000: a larger picture would fill the memory.
MOST_PIXELS = 89_478_485
MOST_BYTES = 1 << 29
_ORIENTATION = 0x0112  # The EXIF tag; 1 is upright, 5 to 8 swap width and height.
DEEP = "values of more than 8 bits, whose range a file does not say; save it with 8 bits"

# Pixels; a picture with a shorter side shows nothing, as the pixels that web pages count readers by.
_SMALL = 8

TURNED = "turned upright as its EXIF tag says"
FIRST_FRAME = "only the first frame of an animation or of several pages read"
ON_WHITE = "transparent parts put on white"
SMALL = f"a picture less than {_SMALL} pixels wide or high"

Image.init()  # Loads all plugins, before threads would.
# Pillow warns about damage that it repairs, and about large pictures, which `_opened` refuses.
warnings.filterwarnings("ignore", module=r"PIL\.")


class BadPictureError(Exception):
    """Raised for a file that is not a whole picture; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture as records store it.

    Attributes:
      encoded: a JPEG or PNG file with 8-bit RGB or gray pixels, upright.
      width, height: in pixels, upright.
      orientation: the EXIF orientation of the original file, 1 to 8.
      changes: what reading changed, such as TURNED.
      doubts: what looks wrong, such as SMALL.
      digest, thumbnail, colors, edges: of a checked picture: stands for its content; see near_copies; see baselines.
    """

    encoded: bytes
    width: int
    height: int
    orientation: int = 1
    changes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    digest: str = ""
    thumbnail: bytes = b""
    colors: bytes = b""
    edges: bytes = b""


def contents(path: str | os.PathLike) -> bytes:
    """Returns a file's content.

    Raises BadPictureError if it cannot be read, is not a regular file or is too large, or its suffix is one of UNREAD.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in UNREAD:
        raise BadPictureError(f"a file {suffix}, which is not read; save it as JPEG or PNG")
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # Opening a pipe would block forever.
            raise BadPictureError("not a regular file")
        if about.st_size > MOST_BYTES:
            raise BadPictureError(f"a file of {about.st_size} bytes")
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise BadPictureError(f"cannot read: {getattr(error, 'strerror', None) or error}") from error


def is_picture(path: str | os.PathLike) -> bool:
    """Whether a file is a picture or begins like one, even in a format that is not read; reads only its header."""
    if os.path.splitext(path)[1].lower() in UNREAD:
        return True
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except Exception:  # Pillow's plugins raise anything on damaged headers.
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return _meaning(file.read(32)) in (_HEIC, _JXL)
        return False


def _meaning(data: bytes) -> str:
    """Returns what content is that Pillow cannot read."""
    if not data:
        return "an empty file"
    return next((what for at, start, what in _CONTENTS if data.startswith(start, at)), _NO_PICTURE)


def read(data: bytes, png: bool = False, turn: bool = True) -> Picture:
    """Returns a picture in the form that records store; does not decode one that is in that form already.

    An upright JPEG of 8-bit RGB or gray, and with `png` such a PNG, stays as it is. Any other becomes an RGB JPEG:
    upright, transparent parts on white, the first frame of several. Raises BadPictureError if it is not whole,
    is too large, or its values have more than 8 bits.

    Args:
      data: content of a file of one of FORMATS.
      png: whether a PNG may stay a PNG.
      turn: whether to rotate the picture by its EXIF orientation, as for a user's pictures. The published converters do
        not, and encode with quality 100.
    """
    try:
        with _opened(data) as image:
            if _is_deep(image):
                raise BadPictureError(DEEP)
            orientation = _orientation(image)
            if _stays(image, png) and (orientation == 1 or not turn):
                return Picture(data, *image.size, orientation)
            changes = [FIRST_FRAME] * (image.format != "MPO" and getattr(image, "n_frames", 1) > 1)
            image.load()
            upright = ImageOps.exif_transpose(image) if turn else image
            changes += [TURNED] * (turn and orientation != 1)
            rgb, more = _rgb(upright)
            return Picture(jpeg(rgb, published=not turn), *rgb.size, orientation, (*changes, *more))
    except BadPictureError:
        raise
    except MemoryError as error:
        raise BadPictureError("needs more memory than there is") from error
    except Exception as error:  # Pillow's plugins raise anything on damaged files.
        raise BadPictureError(_reason(error)) from error


def checked(data: bytes, png: bool = False, turn: bool = True) -> Picture:
    """Returns a picture after decoding it as in a run, with its digest, thumbnail, colors and edges.

    Lossless files of the same pixels have the same digest if all become JPEG. Raises BadPictureError as `read` does,
    or if TensorFlow cannot decode the result.
    """
    picture = read(data, png, turn)
    pixels = decoded(picture.encoded)
    height, width, _ = pixels.shape
    if (width, height) != (picture.width, picture.height):
        raise BadPictureError(
            f"its header says {picture.width}x{picture.height} pixels, it has {width}x{height}"
        )
    return dataclasses.replace(
        picture,
        doubts=(*picture.doubts, *[SMALL] * (min(width, height) < _SMALL)),
        digest=digest(picture.encoded),
        thumbnail=near_copies.thumbnail(pixels),
        colors=baselines.histogram(pixels),
        edges=baselines.directions(pixels),
    )


def digest(encoded: bytes) -> str:
    """Returns a digest of a file's content."""
    return hashlib.sha256(encoded).hexdigest()


def decoded(encoded: bytes) -> np.ndarray:
    """Decodes a JPEG or PNG file to uint8 [H, W, 3], with the operation of the input pipelines.

    Raises BadPictureError if TensorFlow cannot decode it.
    """
    import tensorflow as tf  # Imported late: who only lists files does not need it.

    try:
        return tf.io.decode_jpeg(encoded, channels=3).numpy()  # Reads PNG too.
    except (tf.errors.OpError, MemoryError) as error:
        raise BadPictureError(_reason(error)) from error


def _opened(data: bytes) -> Image.Image:
    large = f"a picture of more than {MOST_PIXELS} pixels"
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise BadPictureError(large) from error
    except UnidentifiedImageError as error:
        raise BadPictureError(_meaning(data)) from error
    if image.width * image.height > MOST_PIXELS:
        raise BadPictureError(large)
    return image


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Damaged EXIF data: the pixels are sound.
        return 1
    return value if value in range(2, 9) else 1


def _stays(image: Image.Image, png: bool) -> bool:
    if image.format in ("JPEG", "MPO"):  # An MPO is a JPEG with further pictures behind it.
        return image.mode in ("RGB", "L")
    return png and image.format == "PNG" and image.mode in ("RGB", "L") and "transparency" not in image.info


def _is_deep(image: Image.Image) -> bool:
    """Whether a picture's values have more than 8 bits, of which Pillow keeps only the high bytes in colors."""
    gray = image.mode == "F" or image.mode.startswith("I")
    return gray or image.format in ("PNG", "TIFF") and any(";16" in str(part[3]) for part in image.tile)


def _rgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Returns (8-bit RGB, changes)."""
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        if layer.getextrema()[3][0] < 255:
            white = Image.new("RGBA", layer.size, "white")
            return Image.alpha_composite(white, layer).convert("RGB"), (ON_WHITE,)
        return layer.convert("RGB"), ()
    return image.convert("RGB"), ()


def _reason(error: BaseException) -> str:
    text = next(iter(str(error).splitlines()), "").split("}} ")[-1].split(" [Op:")[0]
    text = text.partition(" <_io.BytesIO object")[0]  # Pillow names the object in memory.
    return text[:200] or type(error).__name__


def jpeg(image: Image.Image, published: bool = False) -> bytes:
    """Encodes as RGB JPEG.

    TensorFlow decodes JPEG with libjpeg's fast transform, which errs by up to the whole range of values at quality 100
    and by a few at 95. `published` takes quality 100 all the same, as the TPU reference's converter does.
    """
    encoded = io.BytesIO()
    how = {"quality": 100} if published else {"quality": 95, "subsampling": 0}
    image.convert("RGB").save(encoded, "JPEG", **how)
    return encoded.getvalue()


def png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W, 3] or [H, W] as PNG."""
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "PNG")
    return encoded.getvalue()
