"""Tests pixels' normalisation beside the numbers that torchvision's documentation gives for ImageNet."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from common.data import images


@pytest.mark.parametrize("repeats", [1, 2])
def test_pixels_lose_the_mean_and_are_divided_by_the_deviation(repeats: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, [2, 3, 3 * repeats], np.uint8)
    mean, deviation = (np.tile(x, repeats) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = (pixels / 255.0 - mean) / deviation
    for dtype, tolerance in ((tf.float64, 1e-12), (tf.bfloat16, 1e-5)):
        found = images.normalise_rgb(tf.constant(pixels), dtype, repeats)
        assert found.dtype == (tf.float64 if dtype == tf.float64 else tf.float32)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
