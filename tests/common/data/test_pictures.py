"""Tests the reader of pictures, whose promises docs/your-own-data.md lists: one test for each cell of its table."""

import io
import struct

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


def seen(data, png=False):
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
    np.testing.assert_allclose(seen(data), expected, atol=12)
    assert (pictures.TURNED in picture.changes) == (orientation > 1)


def test_a_published_converter_does_not_turn():
    data = file_of(Image.fromarray(smooth()), "JPEG", exif=exif(6))
    assert pictures.read(data, turn=False).encoded is data


@pytest.mark.parametrize(
    "values, form, expected, doubts",
    [
        (lambda v: v.astype(np.uint16) * 257, "PNG", 1, 0),
        (lambda v: v.astype(np.uint16) * 257, "TIFF", 1, 0),
        (lambda v: v.astype(np.uint16) * 16, "TIFF", 255 / 4095 * 16, 1),  # A camera's 12 bits.
        (lambda v: v.astype(np.uint16), "PNG", 1, 1),  # 8 bits in a file of 16.
        (lambda v: v.astype(np.int32) * 257, "TIFF", 1, 0),
        (lambda v: v.astype(np.float32) / 255, "TIFF", 1, 0),
        (lambda v: v.astype(np.float32), "TIFF", 1, 0),
    ],
)
def test_depth(values, form, expected, doubts):
    """16-bit grey became white and float black: values are scaled by their range."""
    grey = smooth()[..., 0]
    data = file_of(Image.fromarray(values(grey)), form)
    picture = pictures.read(data)
    assert pictures.SCALED in picture.changes and len(picture.doubts) == doubts
    np.testing.assert_allclose(seen(data)[..., 1], grey * expected, atol=4)


@pytest.mark.parametrize("factor, expected, doubts", [(257, 1, 0), (16, 255 / 4095 * 16, 1), (1, 1, 1)])
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("png", [False, True])
def test_depth_of_colours(factor, expected, doubts, channels, png):
    """Pillow keeps the high bytes of 16-bit colours: a camera's 12 bits were nearly black."""
    pixels = smooth(channels).astype(np.uint16) * factor
    pixels[..., 3:] = 255 * factor
    picture = pictures.read(tf.io.encode_png(pixels).numpy(), png)
    assert pictures.SCALED in picture.changes and len(picture.doubts) == doubts
    with Image.open(io.BytesIO(picture.encoded)) as image:
        assert image.mode == "RGB" and image.size == SIZE
    np.testing.assert_allclose(pictures.decoded(picture.encoded), smooth() * expected, atol=12)


def test_a_deep_picture_is_turned():
    pixels = smooth().astype(np.uint16) * 16
    data = tf.io.encode_png(pixels).numpy()
    small = file_of(Image.new("RGB", (1, 1)), "PNG", exif=exif(6))
    start = small.index(b"eXIf") - 4
    chunk = small[start : start + 12 + int.from_bytes(small[start : start + 4])]
    picture = pictures.read(data[:33] + chunk + data[33:])
    assert (picture.orientation, picture.width, picture.height) == (6, *SIZE[::-1])
    expected = np.rot90(smooth() * (255 / 4095 * 16), -1)
    np.testing.assert_allclose(pictures.decoded(picture.encoded), expected, atol=12)


@pytest.mark.parametrize("factor", [257, 16])
def test_depth_of_colours_in_a_tiff(factor):
    """Pillow writes no TIFF of 16-bit colours; its high bytes are right where all 16 bits are used."""
    pixels = smooth().astype("<u2") * factor
    tags = [(256, 4, SIZE[0]), (257, 4, SIZE[1]), (258, 3, 8), (259, 3, 1), (262, 3, 2), (273, 4, 128)]
    tags += [(277, 3, 3), (278, 4, SIZE[1]), (279, 4, pixels.nbytes)]
    entries = b"".join(
        struct.pack("<HHII", tag, kind, 3 if tag == 258 else 1, 122 if tag == 258 else value)
        for tag, kind, value in tags
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    data = head + struct.pack("<HHH", 16, 16, 16) + pixels.tobytes()
    if factor == 257:
        np.testing.assert_allclose(seen(data), smooth(), atol=12)
        assert pictures.read(data).changes == (pictures.SCALED,)
    else:
        with pytest.raises(BadPictureError, match="16-bit colours that use fewer bits; save it as PNG"):
            pictures.read(data)


@pytest.mark.parametrize(
    "values",
    [
        np.full((4, 4), -1, np.int32),
        np.full((4, 4), 1 << 20, np.int32),
        np.full((4, 4), 300, np.float32),
        np.full((4, 4), -0.5, np.float32),
        np.full((4, 4), np.nan, np.float32),
        np.full((4, 4), np.inf, np.float32),
    ],
)
def test_depth_without_a_known_range_is_refused(values):
    with pytest.raises(BadPictureError, match="whose range is unknown"):
        pictures.read(file_of(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
@pytest.mark.parametrize("png", [False, True])
def test_alpha(mode, png):
    """What is transparent is white, whatever colour lies below it."""
    layer = np.concatenate([smooth(), np.full((*SIZE[::-1], 1), 255, np.uint8)], -1)
    layer[:, :20, 3] = 0
    image = Image.fromarray(layer)
    image = image.convert("LA") if mode == "LA" else image
    form = {"RGBA": "PNG", "LA": "PNG", "PA": "WEBP"}[mode]
    data = file_of(image, form, **({"lossless": True} if form == "WEBP" else {}))
    pixels, picture = seen(data, png), pictures.read(data, png)
    assert pixels[:, :16].min() > 245 and pictures.ON_WHITE in picture.changes
    np.testing.assert_allclose(pixels[:, 24:], np.asarray(image.convert("RGB")).astype(int)[:, 24:], atol=12)


def test_alpha_of_a_palette():
    image = Image.fromarray(np.repeat(np.arange(2, dtype=np.uint8), 20)[None].repeat(28, 0), "P")
    image.putpalette([0, 0, 0, 200, 30, 30])
    pixels = seen(file_of(image, "PNG", transparency=0))
    assert pixels[:, :16].min() > 240 and abs(pixels[:, 24:] - [200, 30, 30]).max() < 16


def test_alpha_that_hides_nothing_is_dropped():
    layer = np.concatenate([smooth(), np.full((*SIZE[::-1], 1), 255, np.uint8)], -1)
    picture = pictures.read(file_of(Image.fromarray(layer), "PNG"))
    assert not picture.changes
    np.testing.assert_allclose(pictures.decoded(picture.encoded).astype(int), smooth(), atol=12)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animation(form):
    """The first frame, or page."""
    frames = [Image.new("RGB", SIZE, colour) for colour in ("red", "blue", "lime")]
    data = file_of(frames[0], form, save_all=True, append_images=frames[1:])
    picture = pictures.read(data)
    assert pictures.FIRST_FRAME in picture.changes
    assert abs(pictures.decoded(picture.encoded).astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "L", "1", "LAB"])
def test_colours(mode):
    image = Image.fromarray(smooth())
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.applyTransform(image, ImageCms.buildTransform(*profiles, "RGB", "LAB"))
    else:
        image = image.convert(mode)
    form = "TIFF" if mode in ("LAB", "1") else "JPEG"
    with Image.open(io.BytesIO(file_of(image, form))) as found:
        expected = np.asarray(found.convert("RGB")).astype(int)
    np.testing.assert_allclose(seen(file_of(image, form)), expected, atol=16)


def test_an_upright_jpeg_stays_as_it_is_and_a_png_where_it_may():
    jpeg, png = (file_of(Image.fromarray(smooth()), form) for form in ("JPEG", "PNG"))
    assert pictures.read(jpeg).encoded is jpeg and pictures.read(png, png=True).encoded is png
    assert pictures.read(png).encoded[:2] == b"\xff\xd8"
    np.testing.assert_array_equal(seen(png, png=True), smooth())


def test_a_jpeg_with_further_pictures_behind_it_is_the_first():
    first, second = Image.fromarray(smooth()), Image.new("RGB", SIZE, "blue")
    data = file_of(first, "MPO", save_all=True, append_images=[second])
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "MPO"
    np.testing.assert_allclose(seen(data), smooth(), atol=12)


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
    assert len({pictures.checked(data)[1] for data in files}) == 1
    assert pictures.checked(file_of(image.rotate(180), "PNG"))[1] != pictures.checked(files[0])[1]


def test_a_picture_of_hard_edges_survives_its_encoding():
    """TensorFlow's decoder errs by up to 242 of 255 on such a JPEG of quality 100."""
    pixels = np.random.default_rng(0).integers(0, 2, (*SIZE[::-1], 1), np.uint8).repeat(3, -1) * 255
    assert abs(seen(file_of(Image.fromarray(pixels), "PNG")) - pixels).max() < 16


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
    assert (pictures.SMALL in pictures.checked(encoded.getvalue())[0].doubts) == (min(size) < 8)
