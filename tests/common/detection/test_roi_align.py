"""Tests ROIAlign, forward and gradient, and mask crops against tf-models-official and a numpy transcription."""

import math

import numpy as np
import pytest
import tensorflow as tf

from common.detection import roi_align

HEIGHT, WIDTH, LEVELS = 64, 96, (2, 3, 4, 5)


def pyramid(rng: np.random.Generator, images: int, channels: int, dtype=np.float64) -> dict[int, np.ndarray]:
    return {
        level: rng.normal(size=[images, HEIGHT >> level, WIDTH >> level, channels]).astype(dtype)
        for level in LEVELS
    }


def some_boxes(rng: np.random.Generator, images: int, count: int) -> np.ndarray:
    """Boxes of all sizes inside the image, some at its border, one empty and one the whole image."""
    low = rng.uniform(0, 0.9, [images, count, 2])
    high = low + (1 - low) * rng.uniform(0, 1, [images, count, 2]) ** 2
    corners = np.concatenate([low, high], -1) * [HEIGHT, WIDTH, HEIGHT, WIDTH]
    corners[:, 0], corners[:, 1] = 0, [0, 0, HEIGHT, WIDTH]
    corners[:, 2, 2:] = [HEIGHT, WIDTH]
    return corners


def naive(features: dict[int, np.ndarray], boxes: np.ndarray, size: int, sampling: int) -> np.ndarray:
    """ROIAlign bin by bin, after section 3 of Mask R-CNN and section 4.2 of FPN."""
    images, count = boxes.shape[:2]
    actual = np.zeros([images, count, size, size, features[2].shape[-1]])
    for b in range(images):
        for n, box in enumerate(boxes[b]):
            area = max((box[2] - box[0]) * (box[3] - box[1]), 1e-12)
            level = min(max(math.floor(math.log2(math.sqrt(area) / 224)) + 4, min(features)), max(features))
            plane = features[level][b]
            y0, x0, y1, x1 = box / 2**level
            for i in range(size):
                for j in range(size):
                    for s in range(sampling):
                        for t in range(sampling):
                            y = y0 + (y1 - y0) * (i + (s + 0.5) / sampling) / size
                            x = x0 + (x1 - x0) * (j + (t + 0.5) / sampling) / size
                            actual[b, n, i, j] += bilinear(plane, y, x) / sampling**2
    return actual


def bilinear(image: np.ndarray, y: float, x: float) -> np.ndarray:
    y, x = min(max(y, 0), image.shape[0] - 1), min(max(x, 0), image.shape[1] - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, image.shape[0] - 1), min(left + 1, image.shape[1] - 1)
    v, u = y - top, x - left
    upper = (1 - u) * image[top, left] + u * image[top, right]
    return (1 - v) * upper + v * ((1 - u) * image[bottom, left] + u * image[bottom, right])


def with_gradients(function, features: dict[int, np.ndarray], seed: int = 9):
    """(result, gradients of the features for a random upstream gradient)."""

    inputs = {level: tf.constant(x) for level, x in features.items()}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(inputs)
        upstream = np.random.default_rng(seed).normal(size=result.shape)
        loss = tf.reduce_sum(tf.cast(result, tf.float64) * upstream)
    return result, tape.gradient(loss, inputs)


@pytest.mark.parametrize(("size", "sampling"), [(3, 1), (2, 2), (2, 3)])
def test_equals_the_transcription(size, sampling):
    rng = np.random.default_rng(0)
    features, boxes = pyramid(rng, 2, 3), some_boxes(rng, 2, 9)
    crops = roi_align.roi_align(
        {k: tf.constant(v) for k, v in features.items()}, tf.constant(boxes), size, sampling
    )
    np.testing.assert_allclose(crops, naive(features, boxes, size, sampling), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("size", "sampling"), [(7, 1), (7, 2), (14, 2)])
def test_equals_tf_models_forward_and_backward(size, sampling):
    """tf-models samples once per bin, so several samples equal the mean over its smaller bins."""
    ops = pytest.importorskip("official.vision.ops.spatial_transform_ops", reason="tf-models-official absent")
    rng = np.random.default_rng(1)
    features = pyramid(rng, 2, 5)
    boxes = some_boxes(rng, 2, 40)
    # tf-models takes the logarithm of 0 for the level of an empty box.
    boxes[:, 0] = [3, 4, 5, 6]

    def theirs(inputs):
        maps = {str(level): x for level, x in inputs.items()}
        crops = ops.multilevel_crop_and_resize(maps, tf.constant(boxes), size * sampling)
        crops = tf.reshape(crops, [2, 40, size, sampling, size, sampling, 5])
        return tf.reduce_mean(crops, [3, 5])

    ours, our_gradients = with_gradients(
        lambda x: roi_align.roi_align(x, tf.constant(boxes), size, sampling), features
    )
    other, their_gradients = with_gradients(theirs, features)
    np.testing.assert_allclose(ours, other, rtol=1e-8, atol=1e-9)
    for level in LEVELS:
        a, b = our_gradients[level], tf.convert_to_tensor(their_gradients[level])
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
    assert np.abs(our_gradients[2]).sum() > 0


def test_levels_are_those_of_the_formula():
    sides = np.array([1, 50, 111.99, 112, 113, 223.99, 224, 300, 447.99, 448, 895, 896, 5000])
    boxes = np.stack([sides * 0, sides * 0, sides, sides], -1)
    levels = roi_align.level_of(tf.constant(boxes), 2, 5).numpy()
    np.testing.assert_array_equal(levels, np.clip(np.floor(np.log2(sides / 224)) + 4, 2, 5))
    assert roi_align.level_of(tf.constant([[0.0, 0, 224, 224]]), 2, 5).numpy() == [4]


def test_all_levels_are_used_and_get_gradients_compiled():
    """At full size, in fp32 and bf16, under XLA."""
    rng = np.random.default_rng(2)
    features = {
        level: rng.normal(size=[1, 832 >> level, 1344 >> level, 2]).astype(np.float32) for level in LEVELS
    }
    boxes = tf.constant([[[0.0, 0, s, s] for s in (60, 130, 300, 500)]])
    expected = naive(features, boxes.numpy(), 2, 2)
    for dtype, error in ((tf.float32, 1e-5), (tf.bfloat16, 2e-2)):

        @tf.function(jit_compile=True, autograph=False)
        def run(dtype=dtype):
            inputs = {k: tf.cast(v, dtype) for k, v in features.items()}
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                actual = roi_align.roi_align(inputs, boxes, 2)
                loss = tf.reduce_sum(tf.cast(actual, tf.float32))
            return actual, tape.gradient(loss, inputs)

        actual, gradients = run()
        assert actual.dtype == dtype
        np.testing.assert_allclose(tf.cast(actual, tf.float32), expected, rtol=error, atol=error)
        # A bin's weights add up to 1: four bins of each box, of two channels.
        for level in LEVELS:
            assert gradients[level].dtype == dtype
            assert tf.reduce_sum(tf.cast(gradients[level], tf.float32)).numpy() == pytest.approx(8, rel=0.02)


def naive_crop(mask: np.ndarray, inside: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """Bilinear samples at the centers of the grid's cells; outside of the mask there are zeros."""
    actual, number = np.zeros([size, size]), len(mask)
    padded = np.pad(mask, 1)
    for i in range(size):
        for j in range(size):
            y = box[0] + (box[2] - box[0]) * (i + 0.5) / size
            x = box[1] + (box[3] - box[1]) * (j + 0.5) / size
            y = (y - inside[0]) / (inside[2] - inside[0]) * number + 0.5
            x = (x - inside[1]) / (inside[3] - inside[1]) * number + 0.5
            if 0 <= y <= number + 1 and 0 <= x <= number + 1:
                actual[i, j] = bilinear(padded, y, x)
    return actual


def test_crops_of_masks_equal_the_transcription():
    rng = np.random.default_rng(3)
    masks = rng.integers(0, 2, [2, 6, 12, 12]).astype(np.uint8)
    inside, boxes = some_boxes(rng, 2, 6), some_boxes(rng, 2, 6)
    inside[:, 0] = [1, 2, 30, 40]
    boxes[:, 4] = inside[:, 4]
    crops = roi_align.crop_masks(tf.constant(masks), tf.constant(inside), tf.constant(boxes), 5)
    expected = [[naive_crop(*args, 5) for args in zip(*image)] for image in zip(masks, inside, boxes)]
    np.testing.assert_allclose(crops, expected, rtol=1e-10, atol=1e-10)


def test_the_crop_of_an_object_s_own_box_shows_its_mask():
    masks = np.random.default_rng(4).integers(0, 2, [3, 28, 28]).astype(np.uint8)
    boxes = tf.constant([[1.0, 2, 30, 50], [0, 0, 7, 7], [0, 0, 0, 0]], tf.float64)
    crops = roi_align.crop_masks(tf.constant(masks), boxes, boxes, 28)
    np.testing.assert_allclose(crops[:2], masks[:2], atol=1e-9)
    assert not crops[2].numpy().any()
