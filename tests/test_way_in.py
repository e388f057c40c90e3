"""One example's way in, and an evaluation's way out, beside the sources' code with the same random numbers.

The sources' operations are TensorFlow 1's (tf.compat.v1) and Pillow's; the rest is transcribed in numpy. G6, G7 are
mlcommons/training_results_v0.6 and v0.7, Google/benchmarks/; NV is G7's NVIDIA/benchmarks/; TSM is
mit-han-lab/temporal-shift-module. Ours stores pixels as bytes: it may differ by half a step, and clips.
"""

import colorsys
import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance

import maskrcnn.augment
import resnet.input
import ssd.augment
import ssd.input
import tsm_kinetics.input
from maskrcnn import presets as maskrcnn_presets
from resnet import presets as resnet_presets
from ssd import presets as ssd_presets
from tests import differences
from tsm_kinetics import presets as tsm_presets
from tsm_kinetics import sampling

RESIZE = tf.compat.v1.image.resize_images
BILINEAR = Image.Resampling.BILINEAR


def photograph(height: int, width: int) -> np.ndarray:
    """Smooth colors with some noise, uint8 [height, width, 3]."""
    rng = np.random.default_rng(height)
    coarse = Image.fromarray(rng.integers(0, 256, [7, 9, 3], np.uint8)).resize((width, height), BILINEAR)
    noise = rng.integers(-20, 21, [height, width, 3])
    return np.clip(np.asarray(coarse).astype(int) + noise, 0, 255).astype(np.uint8)


def pillow(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).resize(size[::-1], BILINEAR)).astype(float)


def legacy(picture: np.ndarray, size: tuple[int, int], method: int = 0) -> np.ndarray:
    return RESIZE(picture[None].astype(np.float32), size, method)[0].numpy()


def same_pixels(row: str, ours: tf.Tensor, source: np.ndarray, tolerance: float = 0.51) -> None:
    difference = np.abs(np.asarray(ours).astype(float) - np.clip(source, 0, 255))
    assert difference.max() <= tolerance, difference.max()
    differences.hold(row, "input", difference.max())


def legacy_bicubic(row: np.ndarray, size: int) -> np.ndarray:
    """TensorFlow 1's resize_bicubic of [n, ...] in numpy: Keys's kernel with A = -0.75, corners on corners."""

    def weight(x: float) -> float:
        a, x = -0.75, abs(x)
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return near if x <= 1 else far if x < 2 else 0.0

    rows = []
    for i in range(size):
        place = i * len(row) / size
        taps = [int(place) + k for k in (-1, 0, 1, 2)]
        rows.append(sum(weight(place - t) * row[min(max(t, 0), len(row) - 1)] for t in taps))
    return np.stack(rows)


# The row's code resizes so: G6 resnet_preprocessing.py 110, G7 resnet-research-TF imagenet_input.py 80 (TensorFlow 1),
# resnet-research-JAX mlperf_input_pipeline.py 87 (TensorFlow 2), resnet-cloud-TF2.0 imagenet_preprocessing.py 557; NV
# mxnet/common/dali.py 155.
RESNET = {
    "tpu-v3-2048": lambda x, n: legacy_bicubic(legacy_bicubic(x, n).swapaxes(0, 1), n).swapaxes(0, 1),
    "tpu-v4-128": lambda x, n: legacy(x, (n, n), 2),
    "tpu-v3-8192": lambda x, n: legacy(x, (n, n), 2),
    "tpu-v3-8192-jax": lambda x, n: tf.image.resize(x.astype(np.float32), [n, n], "bicubic").numpy(),
    "v100-8": lambda x, n: legacy(x, (n, n)),
    "tpu-v3-32-v0.7": lambda x, n: legacy(x, (n, n)),
    "dgx-1": lambda x, n: tf.image.resize(x.astype(np.float32), [n, n]).numpy(),
}


@pytest.mark.parametrize("name", RESNET)
def test_resnet(name: str) -> None:
    picture, size = photograph(150, 201), 64
    config = dataclasses.replace(resnet_presets.PRESETS[name], image_size=size)
    data, details = config.data, config.details
    low = 0.05 if "v4" in name or name in ("v100-8", "tpu-v3-32-v0.7", "dgx-1") else 0.08
    mxnet_or_v06 = name in ("dgx-1", "tpu-v3-2048")
    assert data.area_range == (low, 1.0) and data.flip
    assert details.aspect_range == ((3 / 4, 4 / 3) if mxnet_or_v06 else (0.75, 1.33))
    assert details.max_attempts == (100 if name in ("v100-8", "tpu-v3-32-v0.7") else 10)
    flips = set()
    for number in range(4):
        key = tf.constant([5, number], tf.int64)
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            picture.shape,
            [[[0.0, 0.0, 1.0, 1.0]]],
            key,
            details.min_object_covered,
            details.aspect_range,
            data.area_range,
            details.max_attempts,
            True,
        )
        (top, left, _), (height, width, _) = begin.numpy(), extent.numpy()
        source = RESNET[name](picture[top : top + height, left : left + width], size)
        ours = resnet.input._random_crop(tf.constant(picture), key, config).numpy()
        flips.add(flip := bool(np.abs(ours - source).mean() > np.abs(ours[:, ::-1] - source).mean()))
        # A stream of its own: the crop's would tie the mirroring to the crop.
        coin = tf.random.stateless_uniform([], key + resnet.input._FLIP_STREAM, alg="philox")
        assert flip == bool(coin < 0.5)
        same_pixels(f"resnet/{name}", ours[:, ::-1] if flip else ours, source)
    assert flips == {False, True}
    # Google's evaluation: 224 / 256 of the short side, truncated, the odd pixel before (resnet_preprocessing.py 128).
    side = int(np.float32(224 / 256) * np.float32(150))
    top, left = (150 - side + 1) // 2, (201 - side + 1) // 2
    encoded = io.BytesIO()
    Image.fromarray(picture).save(encoded, "PNG")
    ours = resnet.input.central_crop(tf.constant(encoded.getvalue()), config)
    same_pixels(f"resnet/{name}", ours, RESNET[name](picture[top : top + side, left : left + side], size))


BOXES = np.array([[0.1, 0.2, 0.5, 0.6], [0.3, 0.1, 0.9, 0.45], [0.62, 0.55, 0.95, 0.98]], np.float32)


def ssd_objects(window: np.ndarray, flip: bool) -> tuple[np.ndarray, np.ndarray]:
    """G6 ssd/dataloader.py 120-205 and NV ssd/pytorch/utils.py 190-225: centers strictly inside, clipped, rescaled."""
    centers = (BOXES[:, :2] + BOXES[:, 2:]) / 2
    keep = ((centers > window[:2]) & (centers < window[2:])).all(1)
    low, high = np.tile(window[:2], 2), np.tile(window[2:], 2)
    boxes = (np.clip(BOXES[keep], low, high) - low) / (high - low)
    if flip:
        boxes[:, [1, 3]] = 1 - boxes[:, [3, 1]]
    return boxes, np.arange(1, 4)[keep]


def google_colors(x: np.ndarray, change: np.ndarray) -> np.ndarray:
    """G6 ssd/dataloader.py 216-241: TensorFlow's brightness, contrast, saturation, hue on 0..1, nothing clipped."""
    x = x / 255 + change[0]
    x = (x - x.mean((0, 1))) * (1 + change[1]) + x.mean((0, 1))
    return tf.image.adjust_hue(tf.image.adjust_saturation(x, 1 + change[2]), change[3]).numpy() * 255


def torch_colors(x: np.ndarray, change: np.ndarray) -> np.ndarray:
    """torchvision's ColorJitter on Pillow pictures, in this order; the hue's channel holds 256 steps."""
    picture = Image.fromarray(x.round().astype(np.uint8))
    for enhance, factor in zip(
        (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), 1 + change
    ):
        picture = enhance(picture).enhance(factor)
    turn = np.vectorize(lambda h, s, v: colorsys.hsv_to_rgb((h + change[3]) % 1, s, v))
    hsv = np.vectorize(colorsys.rgb_to_hsv)(*np.moveaxis(np.asarray(picture) / 255, -1, 0))
    return np.stack(turn(*hsv), -1) * 255


@pytest.mark.parametrize("name", ["tpu-v3-512", "tpu-v4-16", "dgx-1"])
def test_ssd(name: str) -> None:
    picture, size = photograph(120, 170), 48
    config = dataclasses.replace(ssd_presets.PRESETS[name], image_size=size)
    data = config.data
    google = name.startswith("tpu")
    assert data.crop_attempts == (50 if google else 1)  # NV ssd/pytorch/utils.py 156.
    # Google's 0 needs some overlap; NVIDIA's first option, minus infinity, none.
    assert config.details.crop_overlaps == (0.0 if google else -1.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    assert (data.brightness, data.contrast, data.hue) == (0.125, 0.5, 0.05)
    limits, flips = np.array([0.125, 0.5, 0.5, 0.05], np.float32), set()
    for number in range(6):
        key = tf.constant([7, number], tf.int64)
        window = ssd.augment.crop_window(tf.constant(BOXES), key, config).numpy()
        flips.add(flip := bool(tf.random.stateless_uniform([], key + ssd.augment._FLIP, alg="philox") < 0.5))
        change = limits * tf.random.stateless_uniform([4], key + ssd.augment._COLOR, -1.0, 1.0, alg="philox")
        if google:
            one = tf.image.crop_and_resize(picture[None].astype(np.float32), window[None], [0], [size, size])
            cut = one[0].numpy()
        else:  # The window in whole pixels; the far edge is rounded where NV truncates (docs/presets.md).
            sides = np.tile(np.float32(picture.shape[:2]), 2)
            top, left, bottom, right = [
                *(window * sides)[:2].astype(int),
                *np.round(window * sides)[2:].astype(int),
            ]
            window = np.array([top, left, bottom, right], np.float32) / sides
            cut = tf.image.resize(picture[top:bottom, left:right], [size, size], antialias=True).numpy()
            same_pixels(f"ssd/{name}", cut, pillow(picture[top:bottom, left:right], (size, size)), 1.01)
        boxes, classes = ssd_objects(window, flip)
        cut = cut[:, ::-1] if flip else cut
        source = (google_colors if google else torch_colors)(cut, np.asarray(change))
        actual = ssd.augment.train(tf.constant(picture), BOXES, tf.constant([1, 2, 3]), key, config)
        # Pillow rounds after each change, which the next doubles.
        same_pixels(f"ssd/{name}", actual[0], source, 0.51 if google else 8)
        np.testing.assert_allclose(actual[1], boxes, atol=1e-6)
        assert actual[2].numpy().tolist() == classes.tolist()
    assert flips == {False, True}
    same_pixels(
        f"ssd/{name}",
        ssd.input.whole(tf.constant(picture), config),
        legacy(picture, (size, size)) if google else pillow(picture, (size, size)),
        0.51 if google else 1.01,
    )


@pytest.mark.parametrize("shape", [(427, 640), (640, 480), (600, 1600)])
@pytest.mark.parametrize("name", ["tpu-v4-128", "dgx-1"])
def test_maskrcnn(name: str, shape: tuple[int, int]) -> None:
    """G7 dataloader.py 76-140; NV maskrcnn_benchmark/data/transforms/transforms.py 38-67."""
    picture, config = photograph(*shape), maskrcnn_presets.PRESETS[name]
    frame, info = maskrcnn.augment.framed(tf.constant(picture), tf.constant(shape[1] > shape[0]), config)
    short, long = min(shape), max(shape)
    if name.startswith("tpu"):
        scale = min(np.float32(800) / np.float32(short), np.float32(1333) / np.float32(long))
        height, width = (int(np.float32(side) * scale) for side in shape)
        source = legacy(picture, tuple(int(x) for x in info[:2]))
    else:
        side = 800 if long / short * 800 <= 1333 else round(1333 * short / long)
        height, width = (side if s == short else int(side * s / short) for s in shape)
        source = pillow(picture, tuple(int(x) for x in info[:2]))
    # A pixel: ours divides integers, theirs multiply float32 and truncate, or round (docs/presets.md).
    assert abs(int(info[0]) - height) <= 1 and abs(int(info[1]) - width) <= 1
    content = frame[: int(info[0]), : int(info[1])]
    same_pixels(f"maskrcnn/{name}", content, source, 0.51 if name.startswith("tpu") else 1.01)
    assert tf.reduce_sum(tf.cast(frame, tf.int32)) == tf.reduce_sum(tf.cast(content, tf.int32))


class Drawn:
    """A generator that draws what it is told."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def integers(self, limit: int, size: int | None = None) -> np.ndarray | int:
        if size:
            return np.array([self.integers(limit) for _ in range(size)])
        return self.numbers.pop(0) % limit


@pytest.mark.parametrize("count", [8, 20, 64, 65, 70, 300])
def test_tsm_frames(count: int) -> None:
    """TSM ops/dataset.py 107-160, whose numbers start at 1."""
    data = tsm_presets.PRESETS["summit-8"].data
    positions = max(1, 1 + count - 64)
    starts = [0] if positions == 1 else range(positions - 1)
    for start in starts:
        source = [(i * 8 + start) % count for i in range(8)]
        assert sampling.train_frames(count, 8, data, Drawn(start)).tolist() == source
    assert max(sampling.train_frames(count, 8, data, Drawn(start))[0] for start in range(count)) == starts[-1]
    tested = [[(i * 8 + s) % count for i in range(8)] for s in np.linspace(0, positions - 1, 10, dtype=int)]
    assert sampling.eval_frames(count, 8, data).tolist() == tested
    uniform = dataclasses.replace(data, sampling="uniform", eval_clips=1)
    draws = list(range(3, 11))
    source = np.arange(8) * (count // 8) + np.array(draws) % (count // 8)
    assert sampling.train_frames(count, 8, uniform, Drawn(*draws)).tolist() == source.tolist()
    assert sampling.eval_frames(count, 8, uniform)[0].tolist() == [
        int(count / 16 + count / 8 * i) for i in range(8)
    ]


@pytest.mark.parametrize("shape", [(256, 340), (258, 340), (340, 256), (120, 160)])
def test_tsm_crops(shape: tuple[int, int]) -> None:
    """TSM ops/transforms.py 172-245 (training) and 138-158 (evaluation, whose order is left, right, center)."""
    data, (height, width), picture = tsm_presets.PRESETS["summit-8"].data, shape, photograph(*shape)
    sides = [int(min(shape) * scale) for scale in (1, 0.875, 0.75, 0.66)]
    sides = [224 if abs(side - 224) < 3 else side for side in sides]
    pairs = [(h, w) for i, h in enumerate(sides) for j, w in enumerate(sides) if abs(i - j) <= 1]
    source, ours = set(), set()
    for h, w in pairs:
        down, right = (height - h) // 4, (width - w) // 4
        corners_and_edges = ((0, 0), (4, 0), (0, 4), (4, 4), (2, 2), (0, 2), (4, 2), (2, 4), (2, 0))
        for x, y in (*corners_and_edges, (1, 1), (3, 1), (1, 3), (3, 3)):
            source.add((y * down, x * right, h, w))
    for pair in range(len(pairs)):
        for place in range(13):
            ours.add(tuple(sampling.train_window(*shape, 224, data, Drawn(pair, place)).tolist()))
    assert ours == source
    top, left, h, w = window = sorted(ours)[len(ours) // 2]
    encoded = tf.io.encode_jpeg(picture, quality=100)
    frame = tf.io.decode_jpeg(encoded).numpy()
    cut = tsm_kinetics.input.decoded(encoded[None], [window], 224, data.resize)[0]
    same_pixels(
        "tsm_kinetics/summit-8",
        cut[2:-2, 2:-2],
        pillow(frame[top : top + h, left : left + w], (224, 224))[2:-2, 2:-2],
        1.01,
    )
    # The evaluation scales the short side to 256 and crops; ours crops and scales, within a pixel of it.
    scale = 256 / min(shape)
    wide, tall = int(width * scale), int(height * scale)
    steps = (wide - 256) // 4, (tall - 256) // 4
    places = [(2 * steps[1], 0), (2 * steps[1], 2 * steps[0]), (2 * steps[1], 4 * steps[0])]
    if tall > wide:
        places = [(0, 0), (2 * steps[1], 0), (4 * steps[1], 0)]
    windows = sampling.eval_windows(*shape, dataclasses.replace(data, eval_crops=3))
    if wide >= tall:
        # Their steps are quarters, rounded down.
        assert np.abs(windows[:, :2] * scale - places).max() <= 3.01
