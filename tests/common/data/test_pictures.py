"""Tests the reader of pictures, whose promises docs/your-own-data.md lists: one test for each cell of its table."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps, features

from common.data import folder_conversion, pictures
from common.data.pictures import BadPictureError

SIZE = 40, 28


def smooth(channels=3):
    """uint8 [28, 40, channels] without edges, which JPEG keeps within a few values."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    planes = [60 + 3 * x + y, 180 - 2 * x + y, 90 + 2 * y, 255 - 4 * x]
    return np.clip(np.stack(planes[:channels], -1), 0, 255).astype(np.uint8)


def file_of(image, form, **options):
    data = io.BytesIO()
    image.save(data, form, **options)
    return data.getvalue()


def array_of(data, png=False):
    """The pixels that training and predicting have, as integers."""
    return pictures.decoded(pictures.read(data, png).encoded).astype(int)


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(form, orientation):
    """Every orientation of EXIF, mirrored ones too, against Pillow's own turn of the same file."""
    data = file_of(Image.fromarray(smooth()), form, exif=exif(orientation))
    picture = pictures.read(data)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
    assert (picture.height, picture.width) == expected.shape[:2]
    np.testing.assert_allclose(array_of(data), expected, atol=12)
    assert (pictures.TURNED in picture.changes) == (orientation > 1)


def test_a_published_converter_does_not_turn():
    data = file_of(Image.fromarray(smooth()), "JPEG", exif=exif(6))
    assert pictures.read(data, turn=False).encoded is data


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32, "colors"])
def test_depth(form, kind):
    """A file does not say which of 12, 16 or 32 bits are white, so a picture of more than 8 is refused."""
    if kind == "colors":
        data = tf.io.encode_png(smooth().astype(np.uint16) * 257).numpy()
    elif form == "PNG" and kind == np.float32:
        return
    else:
        data = file_of(Image.fromarray(smooth()[..., 0].astype(kind)), form)
    with pytest.raises(BadPictureError, match="more than 8 bits.*; save it with 8 bits"):
        pictures.read(data)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
@pytest.mark.parametrize("png", [False, True])
def test_alpha(mode, png):
    """What is transparent is white, whatever color lies below it."""
    layer = np.concatenate([smooth(), np.full((*SIZE[::-1], 1), 255, np.uint8)], -1)
    layer[:, :20, 3] = 0
    image = Image.fromarray(layer)
    image = image.convert("LA") if mode == "LA" else image
    form = {"RGBA": "PNG", "LA": "PNG", "PA": "WEBP"}[mode]
    data = file_of(image, form, **({"lossless": True} if form == "WEBP" else {}))
    pixels, picture = array_of(data, png), pictures.read(data, png)
    assert pixels[:, :16].min() > 245 and pictures.ON_WHITE in picture.changes
    np.testing.assert_allclose(pixels[:, 24:], np.asarray(image.convert("RGB")).astype(int)[:, 24:], atol=12)


def test_alpha_of_a_palette():
    image = Image.fromarray(np.repeat(np.arange(2, dtype=np.uint8), 20)[None].repeat(28, 0), "P")
    image.putpalette([0, 0, 0, 200, 30, 30])
    pixels = array_of(file_of(image, "PNG", transparency=0))
    assert pixels[:, :16].min() > 240 and abs(pixels[:, 24:] - [200, 30, 30]).max() < 16


def test_alpha_that_hides_nothing_is_dropped():
    layer = np.concatenate([smooth(), np.full((*SIZE[::-1], 1), 255, np.uint8)], -1)
    picture = pictures.read(file_of(Image.fromarray(layer), "PNG"))
    assert not picture.changes
    np.testing.assert_allclose(pictures.decoded(picture.encoded).astype(int), smooth(), atol=12)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animation(form):
    """The first frame, or page."""
    frames = [Image.new("RGB", SIZE, color) for color in ("red", "blue", "lime")]
    data = file_of(frames[0], form, save_all=True, append_images=frames[1:])
    picture = pictures.read(data)
    assert pictures.FIRST_FRAME in picture.changes
    assert abs(pictures.decoded(picture.encoded).astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "L", "1", "LAB"])
def test_colors(mode):
    image = Image.fromarray(smooth())
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.applyTransform(image, ImageCms.buildTransform(*profiles, "RGB", "LAB"))
    else:
        image = image.convert(mode)
    form = "TIFF" if mode in ("LAB", "1") else "JPEG"
    with Image.open(io.BytesIO(file_of(image, form))) as picture:
        expected = np.asarray(picture.convert("RGB")).astype(int)
    np.testing.assert_allclose(array_of(file_of(image, form)), expected, atol=16)


def test_an_upright_jpeg_stays_as_it_is_and_a_png_where_it_may():
    jpeg, png = (file_of(Image.fromarray(smooth()), form) for form in ("JPEG", "PNG"))
    assert pictures.read(jpeg).encoded is jpeg and pictures.read(png, png=True).encoded is png
    assert pictures.read(png).encoded[:2] == b"\xff\xd8"
    np.testing.assert_array_equal(array_of(png, png=True), smooth())


def test_a_jpeg_with_further_pictures_behind_it_is_the_first():
    first, second = Image.fromarray(smooth()), Image.new("RGB", SIZE, "blue")
    data = file_of(first, "MPO", save_all=True, append_images=[second])
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "MPO"
    np.testing.assert_allclose(array_of(data), smooth(), atol=12)


@pytest.mark.parametrize("form", ["JPEG2000", "AVIF", "BMP", "PPM", "WEBP", "GIF"])
def test_formats_and_suffixes(tmp_path, form):
    """A file is a picture if its content is, whatever its suffix."""
    if form == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow without AVIF")
    (tmp_path / "odd.suffix").write_bytes(file_of(Image.fromarray(smooth()), form))
    assert pictures.is_picture(tmp_path / "odd.suffix")
    looked = folder_conversion.look(tmp_path / "odd.suffix", png=True)
    assert (looked.width, looked.height) == SIZE


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.9])
def test_damage(tmp_path, form, part):
    rng = np.random.default_rng(0)
    data = file_of(Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)), form)
    (tmp_path / "cut").write_bytes(data[: int(part * len(data))])
    with pytest.raises(BadPictureError):
        pictures.checked(pictures.contents(tmp_path / "cut"))


def test_a_picture_that_pillow_opens_and_training_does_not_is_left_out(monkeypatch):
    """TensorFlow refuses some damaged JPEGs that Pillow repairs; such a record ended a run."""
    data = file_of(Image.fromarray(smooth()), "JPEG")
    sound = pictures.read(data)
    monkeypatch.setattr(pictures, "read", lambda *_: sound.__class__(b"no JPEG", *SIZE))
    with pytest.raises(BadPictureError):
        pictures.checked(data)


def test_the_same_pixels_have_one_digest_in_any_file():
    image = Image.fromarray(smooth())
    files = [file_of(image, form) for form in ("PNG", "BMP", "TIFF")]
    assert len({pictures.checked(data).digest for data in files}) == 1
    assert pictures.checked(file_of(image.rotate(180), "PNG")).digest != pictures.checked(files[0]).digest


def test_a_picture_of_hard_edges_survives_its_encoding():
    """TensorFlow's decoder errs by up to 242 of 255 on such a JPEG of quality 100."""
    pixels = np.random.default_rng(0).integers(0, 2, (*SIZE[::-1], 1), np.uint8).repeat(3, -1) * 255
    assert abs(array_of(file_of(Image.fromarray(pixels), "PNG")) - pixels).max() < 16


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("a.heic", b"\0\0\0\x18ftypheic", "a file .heic, which is not read"),
        ("a.jpg", b"\0\0\0\x18ftypmif1", "HEIC, which is not read; save it as JPEG"),
        ("a.NEF", b"II*\0", "a file .nef, which is not read"),
        ("a.png", b"<!DOCTYPE html><html>", "a web page"),
        ("a.png", b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
        ("a.png", b"", "an empty file"),
        ("a.png", b"text", "cannot identify image file"),
    ],
)
def test_a_file_that_is_no_picture_says_what_it_is(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(pictures.BadPictureError, match=reason):
        pictures.checked(pictures.contents(path))
    assert pictures.is_picture(path) == ("not read" in reason)


@pytest.mark.parametrize("size", [(1, 1), (300, 2), (8, 8)])
def test_a_picture_of_a_few_pixels_is_suspicious(size):
    encoded = io.BytesIO()
    Image.new("RGB", size).save(encoded, "PNG")
    assert (pictures.SMALL in pictures.checked(encoded.getvalue()).doubts) == (min(size) < 8)
