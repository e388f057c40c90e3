"""Tests targets, hard-negative mining and the loss against numpy transcriptions."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd import loss, model
from ssd.config import Config
from ssd.presets import PRESETS


def by_sorting(losses: np.ndarray, positive: np.ndarray, ratio: int) -> np.ndarray:
    """Mines the negatives of an image by sorting their losses; ties with the last one are included."""
    mined = np.zeros(losses.shape, bool)
    for i, (row, mask) in enumerate(zip(losses, positive)):
        negatives = np.flatnonzero(~mask)
        count = min(ratio * int(mask.sum()), len(negatives))
        if count:
            last = np.sort(row[negatives])[::-1][count - 1]
            mined[i, negatives] = row[negatives] >= last
    return mined


cells = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 30.0]), st.booleans()), min_size=9, max_size=9
)


@settings(max_examples=50)
@given(st.lists(cells, min_size=1, max_size=3), st.integers(0, 4))
def test_mining_is_sorting_with_a_k_per_image_and_ties(images, ratio):
    losses = np.array([[value for value, _ in row] for row in images], np.float32)
    positive = np.array([[flag for _, flag in row] for row in images])
    marks = loss.hard_negatives(tf.constant(losses), tf.constant(positive), ratio).numpy()
    np.testing.assert_array_equal(marks, by_sorting(losses, positive, ratio))


def test_mining_of_full_size_rows_compiled():
    rng = np.random.default_rng(0)
    losses = rng.gamma(0.5, 3, [8, 8732]).astype(np.float32)
    positive = rng.random([8, 8732]) < np.array([0, 1e-3, 1e-3, 5e-3, 1e-2, 0.1, 0.3, 1])[:, None]
    mine = tf.function(lambda a, b: loss.hard_negatives(a, b, 3), jit_compile=True, autograph=False)
    marks = mine(tf.constant(losses), tf.constant(positive)).numpy()
    np.testing.assert_array_equal(marks, by_sorting(losses, positive, 3))
    counts = positive.sum(1)
    np.testing.assert_array_equal(marks.sum(1), np.minimum(3 * counts, 8732 - counts))


def scene(rng, count=6, images=3):
    low = rng.uniform(0, 0.6, [images, count, 2])
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.4, [images, count, 2])], -1)
    classes = rng.integers(1, 81, [images, count])
    classes[:, 4:] = 0
    boxes[:, 4:] = 0
    return boxes, classes


def test_an_image_without_objects_has_no_loss_and_no_gradient():
    anchors = tf.constant(model.anchors(PRESETS["cpu-tiny"]))
    expected = loss.targets(tf.zeros([1, 5, 4], tf.float64), tf.zeros([1, 5], tf.int32), anchors, 0.5)
    codes = tf.random.stateless_normal([1, anchors.shape[0], 4], [0, 1], dtype=tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(codes)
        losses = loss.per_image(codes, tf.pad(codes, [[0, 0], [0, 0], [0, 1]]), expected, 3)
    assert losses.numpy().tolist() == [0] and not tape.gradient(losses, codes).numpy().any()


def naive_loss(codes, logits, wanted_codes, classes, ratio):
    positive = classes > 0
    shifted = logits - logits.max(-1, keepdims=True)
    entropy = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, classes[..., None], -1)[..., 0]
    error = np.abs(codes - wanted_codes)
    smooth = np.where(error < 1, error**2 / 2, error - 0.5).sum(-1)
    counted = positive | by_sorting(entropy, positive, ratio)
    sums = (smooth * positive).sum(1) + (entropy * counted).sum(1)
    return sums / np.maximum(positive.sum(1), 1)


def test_loss_equals_the_transcription():
    rng = np.random.default_rng(2)
    boxes, classes = scene(rng)
    anchors = model.anchors(Config())
    targets = loss.targets(tf.constant(boxes), tf.constant(classes, tf.int32), tf.constant(anchors), 0.5)
    codes, logits = rng.normal(0, 2, [3, 8732, 4]), rng.normal(0, 3, [3, 8732, 81])
    losses = loss.per_image(tf.constant(codes), tf.constant(logits), targets, 3)
    expected = naive_loss(codes, logits, targets.codes.numpy(), targets.classes.numpy(), 3)
    np.testing.assert_allclose(losses, expected, rtol=1e-8)
