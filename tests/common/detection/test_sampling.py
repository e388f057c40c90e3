"""Tests balanced samples (exact sizes, ties, noise from seed, step and image only) and a pyramid's anchors."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common.detection import anchors, sampling, topk


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=15, max_size=15), st.integers(0, 17), st.booleans())
def test_exact_mask_has_k_elements_the_first_of_equal_ones(values, k, double):
    row = np.array(values, np.float64 if double else np.float32) - 2
    marks = topk.topk_mask(tf.constant(row)[None], tf.constant([k]), exact=True)[0].numpy()
    expected = np.zeros(15, bool)
    expected[np.argsort(-row, kind="stable")[:k]] = True
    np.testing.assert_array_equal(marks, expected)


@pytest.mark.parametrize("count", [60, topk._LARGE + 9])
def test_compiled_exact_masks_are_those_of_sorting(count):
    """Short rows are ranked by pairs, long ones by bits; with many equal values."""
    rng = np.random.default_rng(count)
    values = np.round(rng.normal(size=[4, 2, count]), 1).astype(np.float32)
    k = np.array([[0, 1], [7, 20], [count - 1, count], [count + 5, count // 2]], np.int32)
    marks = tf.function(lambda v, n: topk.topk_mask(v, n, exact=True), jit_compile=True)(values, k).numpy()
    for row, n, mask in zip(values.reshape(-1, count), k.ravel(), marks.reshape(-1, count)):
        expected = np.isin(np.arange(count), np.argsort(-row, kind="stable")[:n])
        np.testing.assert_array_equal(mask, expected)


def naive_sample(positive, negative, noise, size, positives):
    """Samples by sorting: the candidates with the largest noise, the first of equal ones."""

    def draw(candidates, count):
        order = sorted(candidates.nonzero()[0], key=lambda i: (-noise[i], i))
        return np.isin(np.arange(len(noise)), order[:count])

    picks = draw(positive, positives)
    return picks, draw(negative, size - picks.sum())


@pytest.mark.parametrize("ties", [False, True])
def test_sample_equals_sorting_and_has_exact_sizes(ties):
    rng = np.random.default_rng(0)
    for size, positives in ((16, 8), (16, 4), (60, 30), (1, 0)):
        kind = rng.choice(3, [20, 50], p=[0.3, 0.4, 0.3])
        kind[:5] = 0
        kind[5:9, 3:] = 2
        positive, negative, noise = kind == 1, kind == 0, rng.random([20, 50]).astype(np.float32)
        if ties:
            noise = np.round(noise, 1)
        sample = sampling.balanced(*map(tf.constant, (positive, negative, noise)), size, positives)
        for i in range(20):
            a, b = naive_sample(positive[i], negative[i], noise[i], size, positives)
            np.testing.assert_array_equal(sample.positive[i], a)
            np.testing.assert_array_equal(sample.negative[i], b)
            count = sample.positive[i].numpy().sum()
            assert count == min(positives, positive[i].sum())
            assert sample.negative[i].numpy().sum() == min(size - count, negative[i].sum())


def test_compact_lists_positives_first_in_order():
    positive = tf.constant([[False, True, False, True, False, False], [False] * 6])
    negative = tf.constant([[True, False, False, False, True, False], [False] * 5 + [True]])
    slots = sampling.compact(sampling.Sample(positive, negative), 5)
    assert slots.index.numpy()[0, :4].tolist() == [1, 3, 0, 4] and slots.index.numpy()[1, 0] == 5
    assert slots.valid.numpy().tolist() == [[True] * 4 + [False], [True] + [False] * 4]
    assert slots.positive.numpy().tolist() == [[True] * 2 + [False] * 3, [False] * 5]


def numbers(seed, step, ids, count=1000, use=0):
    return sampling.noise(seed, tf.constant(step, tf.int64), tf.constant(ids, tf.int64), count, use).numpy()


def test_noise_depends_on_seed_step_and_image_only():
    first = numbers(3, 5, [7, 9])
    np.testing.assert_array_equal(first[1], numbers(3, 5, [9])[0])
    np.testing.assert_array_equal(first[::-1], numbers(3, 5, [9, 7]))
    others = [first[0], first[1], numbers(3, 6, [7])[0], numbers(4, 5, [7])[0], numbers(5, 3, [7])[0]]
    for a, b in itertools.combinations(others, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.15
    assert first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.05


def test_noise_of_neighboring_seeds_and_uses_differs_and_any_seed_draws():
    pairs = [(seed, use) for seed in (0, 1, 2, 3) for use in (0, 1, 2)]
    draws = [numbers(seed, 5, [7], use=use)[0] for seed, use in pairs]
    for a, b in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.15
    for seed in (2**31 - 2, 2**31 - 1, 2**63, -1):
        np.testing.assert_array_equal(
            numbers(seed, 2**32 - 1, [2**32 - 1], use=2), numbers(seed % 2**31, 2**32 - 1, [2**32 - 1], use=2)
        )


def test_a_compiled_sample_is_the_same():
    def draw(step):
        noise = sampling.noise(2**31 - 1, step, tf.constant([4, 8], tf.int64), 5000, 2)
        positive = tf.tile((tf.range(5000) % 7 == 0)[None], [2, 1])
        sample = sampling.balanced(positive, ~positive, noise, 256, 128)
        return noise, sampling.compact(sample, 256)

    plain = draw(tf.constant(11, tf.int64))
    compiled = tf.function(draw, jit_compile=True)(tf.constant(11, tf.int64))
    tf.nest.map_structure(np.testing.assert_array_equal, compiled, plain)
    assert compiled[1].positive.numpy().sum(1).tolist() == [128, 128] and compiled[1].valid.numpy().all()


def naive_anchors(height: int, width: int) -> np.ndarray:
    """Sides 8 * 2^l, l = 2 ... 6, (width, height) times (1, 1), (1.4, .7), (.7, 1.4) (docs/sources.md, mlperf 2)."""
    actual = []
    for level in range(2, 7):
        stride = 2**level
        for w, h in ((1, 1), (1.4, 0.7), (0.7, 1.4)):
            for y in np.arange(stride / 2, height, stride):
                actual += [
                    [y, x, 8 * stride * h, 8 * stride * w] for x in np.arange(stride / 2, width, stride)
                ]
    return np.array(actual)


def test_a_pyramid_s_anchors():
    for shape in ((832, 1344), (1344, 832)):
        centers = anchors.pyramid(*shape, range(2, 7))
        assert centers.shape == (279279, 4)
    small = anchors.pyramid(128, 192, range(2, 7))
    np.testing.assert_allclose(small, naive_anchors(128, 192), rtol=1e-12)
    assert len(anchors.pyramid(65, 63, [6])) == 6


def test_a_pyramid_s_anchors_are_those_of_tf_models():
    """tf-models' aspects keep the area exactly: sqrt(2) where the published have 1.4. Its order is y, x, aspect."""
    anchor = pytest.importorskip("official.vision.ops.anchor", reason="tf-models-official absent")
    levels = anchor.Anchor(2, 6, 1, [1.0, 2.0, 0.5], 8.0, (128, 192)).multilevel_boxes
    boxes = [levels[str(level)].numpy() for level in range(2, 7)]
    boxes = [b.reshape(*b.shape[:2], 3, 4).transpose(2, 0, 1, 3) for b in boxes]
    theirs = np.concatenate([b.reshape(-1, 4) for b in boxes])
    root = np.sqrt(2)
    ours = anchors.pyramid(128, 192, range(2, 7), 8.0, ((1, 1), (1 / root, root), (root, 1 / root)))
    corners = np.concatenate([ours[:, :2] - ours[:, 2:] / 2, ours[:, :2] + ours[:, 2:] / 2], -1)
    np.testing.assert_allclose(corners, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [1, 7, 64])
def test_noise_in_32_bit_operations_is_the_same(count):
    for seed, step, use in ((3, 9, 0), (2**31 + 1, 2**31 - 1, 2)):
        ids = tf.constant([0, 5, 2**31 - 1], tf.int64)
        wide, narrow = (
            sampling.noise(seed, tf.constant(step, d), ids, count, use) for d in (tf.int64, tf.int32)
        )
        np.testing.assert_array_equal(wide, narrow)
