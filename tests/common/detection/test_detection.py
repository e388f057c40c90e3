"""Tests boxes, anchors, matching, top-k and NMS against tf-models-official, numpy transcriptions and plain loops."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common.detection import anchors, boxes, matching, nms, topk

PUBLISHED = {
    "feature_sizes": (38, 19, 10, 5, 3, 1),
    "scales": tuple(s / 300 for s in (21, 45, 99, 153, 207, 261, 315)),
    "cells": tuple(300 / s for s in (8, 16, 32, 64, 100, 300)),
    "per_cell": (4, 6, 6, 6, 4, 4),
}


def random_boxes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    low, size = rng.uniform(0, 0.8, [*shape, 2]), rng.uniform(0.02, 0.5, [*shape, 2])
    return np.concatenate([low, low + size], -1)


def naive_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    actual = np.zeros([len(a), len(b)], a.dtype)
    for j, (ymin, xmin, ymax, xmax) in enumerate(b):
        height = np.maximum(np.minimum(a[:, 2], ymax) - np.maximum(a[:, 0], ymin), 0)
        width = np.maximum(np.minimum(a[:, 3], xmax) - np.maximum(a[:, 1], xmin), 0)
        union = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1]) + (ymax - ymin) * (xmax - xmin) - height * width
        actual[:, j] = height * width / np.where(union > 0, union, 1)
    return actual


def official(name: str):
    return pytest.importorskip(f"official.vision.ops.{name}", reason="tf-models-official absent")


def test_overlap_is_that_of_tf_models():
    rng = np.random.default_rng(0)
    a, b = random_boxes(rng, 2, 30), random_boxes(rng, 2, 7)
    theirs = official("box_ops").bbox_overlap(tf.constant(a), tf.constant(b))
    # tf-models adds 1e-8 to the union.
    np.testing.assert_allclose(boxes.iou(tf.constant(a), tf.constant(b)), theirs, rtol=1e-4)
    for i in range(2):
        np.testing.assert_allclose(
            boxes.iou(tf.constant(a), tf.constant(b))[i], naive_iou(a[i], b[i]), rtol=1e-8
        )


def test_empty_and_inverted_boxes_overlap_nothing():
    odd = tf.constant([[0.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.9], [0.6, 0.6, 0.4, 0.4]])
    assert not boxes.iou(odd, tf.concat([odd, [[0.0, 0, 1, 1]]], 0)).numpy().any()


@pytest.mark.parametrize("weights", [(10.0, 10.0, 5.0, 5.0), (1.0, 1.0, 1.0, 1.0)])
def test_codes_are_those_of_tf_models_and_decode_back(weights):
    rng = np.random.default_rng(1)
    corners, reference = tf.constant(random_boxes(rng, 50)), tf.constant(random_boxes(rng, 50))
    codes = boxes.encode(corners, boxes.to_centers(reference), weights)
    ops = official("box_ops")
    np.testing.assert_allclose(codes, ops.encode_boxes(corners, reference, weights), rtol=1e-6, atol=1e-7)
    back = boxes.decode(codes, boxes.to_centers(reference), weights)
    np.testing.assert_allclose(back, corners, rtol=1e-8)
    np.testing.assert_allclose(back, ops.decode_boxes(codes, reference, weights), rtol=1e-6)


def test_code_of_one_box_by_hand():
    code = boxes.encode(tf.constant([[0.2, 0.2, 0.6, 0.4]]), tf.constant([[0.5, 0.5, 0.2, 0.4]]))
    # dy = -0.1 / 0.2 / 0.1, dx = -0.2 / 0.4 / 0.1, ln(0.4 / 0.2) / 0.2, ln(0.2 / 0.4) / 0.2
    np.testing.assert_allclose(code, [[-5, -5, 5 * math.log(2), -5 * math.log(2)]], rtol=1e-5)


def test_a_limit_holds_the_sides_of_decoded_boxes_and_not_their_centers():
    """Half of the anchor's side up or down at most; the center may go as far as the code says."""
    anchor = tf.constant([[0.5, 0.5, 0.2, 0.4]])
    code = tf.constant([[30.0, -30.0, 500.0, -1.0]])
    centers = boxes.to_centers(
        boxes.decode(code, anchor, (10.0, 10.0, 5.0, 5.0), max_log_ratio=math.log(1.5))
    )
    np.testing.assert_allclose(centers, [[1.1, -0.7, 0.3, 0.4 * math.exp(-0.2)]], rtol=1e-5)


def test_padding_has_finite_codes():
    assert np.isfinite(boxes.encode(tf.zeros([1, 4]), tf.constant([[0.5, 0.5, 0.1, 0.1]]))).all()


def test_clip_and_flip():
    box = tf.constant([[-0.1, 0.2, 0.5, 1.3]])
    np.testing.assert_allclose(boxes.clip(box), [[0, 0.2, 0.5, 1]])
    np.testing.assert_allclose(boxes.clip(box * 100, 40, 80), [[0, 20, 40, 80]], rtol=1e-6)
    np.testing.assert_allclose(boxes.flip_columns(boxes.clip(box)), [[0, 0, 0.5, 0.8]], rtol=1e-6)


def naive_anchors() -> np.ndarray:
    """Makes the anchors one by one, (cy, cx, h, w), after the SSD paper and docs/sources.md, mlperf 2."""
    actual = []
    for level in range(6):
        size, step = (38, 19, 10, 5, 3, 1)[level], (8, 16, 32, 64, 100, 300)[level]
        small, large = (21, 45, 99, 153, 207, 261, 315)[level : level + 2]
        shapes = [(small, small), (math.sqrt(small * large),) * 2]
        for aspect in ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))[level]:
            wide = (small / math.sqrt(aspect), small * math.sqrt(aspect))
            shapes += [wide, wide[::-1]]
        for h, w in shapes:
            for y, x in itertools.product(range(size), repeat=2):
                actual.append([(y + 0.5) * step / 300, (x + 0.5) * step / 300, h / 300, w / 300])
    return np.clip(actual, 0, 1)


def test_there_are_8732_anchors_in_the_published_order():
    corners = anchors.ssd(**PUBLISHED)
    assert corners.shape == (8732, 4)
    np.testing.assert_allclose(corners, naive_anchors(), rtol=1e-12)


def test_anchors_of_unequal_lists_are_refused():
    with pytest.raises(ValueError, match="one of each per level"):
        anchors.ssd((3,), (0.1,), (3,), (4,))
    with pytest.raises(ValueError, match="5 anchors per cell"):
        anchors.ssd((3,), (0.1, 0.2), (3,), (5,))


def naive_match(iou: np.ndarray, valid: np.ndarray, positive: float, negative: float, force: bool):
    index, state = [], []
    for row in iou:
        best = max(valid.nonzero()[0], key=lambda g: (row[g], -g), default=0)
        overlap = row[best] if valid.any() else -1
        index.append(best if overlap > 0 else 0)
        state.append(1 if overlap >= positive else 0 if overlap < negative else -1)
    for truth in reversed(valid.nonzero()[0]) if force else ():
        if iou[:, truth].max() > 0:
            anchor = iou[:, truth].argmax()
            index[anchor], state[anchor] = truth, 1
    return index, state


@pytest.mark.parametrize(
    ("positive", "negative", "force"), [(0.5, 0.5, True), (0.7, 0.3, True), (0.5, 0.5, False)]
)
def test_matching_equals_the_loop(positive, negative, force):
    rng = np.random.default_rng(2)
    for case in range(30):
        grid, truths = random_boxes(rng, 40), random_boxes(rng, 6)
        valid = rng.random(6) < (0.7 if case else 0)
        both = np.stack([truths, truths[::-1]]), np.stack([valid, valid[::-1]])
        overlaps = matching.overlaps(*map(tf.constant, both), tf.constant(grid)[None])
        actual = matching.match(overlaps, positive, negative, force)
        iou = boxes.iou(tf.constant(grid), tf.constant(truths)).numpy()
        index, state = naive_match(iou, valid, positive, negative, force)
        np.testing.assert_array_equal(actual.state[0], state)
        np.testing.assert_array_equal(actual.index[0], index)
        index, state = naive_match(iou[:, ::-1], valid[::-1], positive, negative, force)
        np.testing.assert_array_equal(actual.state[1], state)
        np.testing.assert_array_equal(actual.index[1], index)


def test_an_overlap_of_just_the_threshold_is_positive_and_one_below_is_not():
    """In powers of two, so that no rounding decides; the second truth is there to lose."""
    overlaps = tf.constant([[0.5, 0.5 - 2.0**-20, 0.25, 0.25 - 2.0**-20], [0.0, 0.125, 0.0, 0.0]])
    matches = matching.match(overlaps, 0.5, 0.25, force=False)
    assert matches.state.numpy().tolist() == [
        matching.POSITIVE,
        matching.IGNORED,
        matching.IGNORED,
        matching.NEGATIVE,
    ]


def test_the_first_object_keeps_an_anchor_that_two_objects_prefer():
    iou = tf.constant([[[0.3, 0.1], [0.4, 0.2]]])
    matches = matching.match(iou, 0.5, 0.5, True)
    assert matches.state.numpy().tolist() == [[1, 0]] and matches.index.numpy()[0, 0] == 0


def naive_topk(row: np.ndarray, k: int) -> np.ndarray:
    return row >= np.sort(row)[::-1][min(k, len(row)) - 1] if k > 0 else np.zeros(len(row), bool)


numbers = st.one_of(
    st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False),
    st.sampled_from([0.0, -0.0, 1.0, 1.5, -1.0, float("inf"), -float("inf")]),
)


@settings(max_examples=60)
@given(st.lists(numbers, min_size=12, max_size=12), st.integers(0, 14), st.booleans())
def test_topk_mask_equals_sorting_ties_included(values, k, double):
    row = np.array(values, np.float64 if double else np.float32)
    if double:
        row *= 1 + 1e-12
    marks = topk.topk_mask(tf.constant(row)[None], tf.constant([k]))[0].numpy()
    np.testing.assert_array_equal(marks, naive_topk(row, k))


def test_topk_mask_of_rows_with_their_own_k_compiled():
    rng = np.random.default_rng(4)
    values = np.round(rng.gamma(1.0, 2.0, [16, 8732]), 3).astype(np.float32)
    k = np.array([0, 1, 2, 3, 10, 99, 100, 1000, 5000, 8731, 8732, 9000, 7, 8, 9, 30], np.int32)
    marks = tf.function(topk.topk_mask, jit_compile=True)(tf.constant(values), tf.constant(k)).numpy()
    np.testing.assert_array_equal(marks, [naive_topk(row, n) for row, n in zip(values, k)])


def test_compiled_topk_masks_are_those_of_sorting_for_either_sign_and_type():
    rng = np.random.default_rng(6)
    values = np.concatenate(
        [rng.normal(size=[8, 200]), np.zeros([8, 9]), -np.zeros([8, 9]), np.ones([8, 30])], 1
    )
    k = np.array([0, 1, 90, 115, 130, 220, 247, 248], np.int32)
    mask = tf.function(topk.topk_mask, jit_compile=True)
    for dtype in (np.float32, np.float64):
        marks = mask(tf.constant(values.astype(dtype)), tf.constant(k)).numpy()
        expected = [naive_topk(row, n) for row, n in zip(values.astype(dtype), k)]
        np.testing.assert_array_equal(marks, expected)


def greedy(corners: np.ndarray, valid: np.ndarray, threshold: float) -> np.ndarray:
    """Greedy suppression by definition: from the best box on, keep each that overlaps no kept box too much."""
    iou = naive_iou(corners, corners)
    picks: list[int] = []
    for j in range(len(corners)):
        if valid[j] and all(iou[i, j] < threshold for i in picks):
            picks.append(j)
    return np.isin(np.arange(len(corners)), picks)


def chain(count: int) -> np.ndarray:
    """Boxes that each suppress only the next: every other one stays, and a tile needs as many rounds as boxes."""
    shift = np.arange(count)[:, None] * 0.25 * np.array([[1.0, 0, 1, 0]])
    return np.array([[0.0, 0, 1, 1]]) + shift


ADVERSARIAL = {
    "chain": chain(40),
    "equal": np.tile([[0.1, 0.1, 0.5, 0.6]], [40, 1]),
    "empty": np.zeros([40, 4]),
    "nested": np.stack([[0.0, 0, 1 - i / 50, 1 - i / 50] for i in range(40)]),
    "reversed chain": chain(40)[::-1].copy(),
}


@pytest.mark.parametrize("tile", [7, 64])
def test_tiled_suppression_is_greedy_on_a_thousand_cases(tile):
    rng = np.random.default_rng(tile)
    random = np.concatenate([random_boxes(rng, 170, 40), np.round(random_boxes(rng, 165, 40), 1)])
    cases = np.concatenate([random, np.stack(list(ADVERSARIAL.values()))])
    valid = rng.random(cases.shape[:2]) < 0.9
    valid[-len(ADVERSARIAL) :] = True
    for threshold in (0.4, 0.7):
        suppress = tf.function(lambda b, v, t=threshold: nms.suppress(b, v, t, tile), autograph=False)
        marks = suppress(tf.constant(cases), tf.constant(valid)).numpy()
        expected = [greedy(b, v, threshold) for b, v in zip(cases, valid)]
        np.testing.assert_array_equal(marks, expected)


def test_compiled_suppression_is_greedy_across_its_own_tiles_and_rounds():
    """Of more boxes than a tile has, and of chains that need more rounds than a turn has."""
    rng = np.random.default_rng(7)
    count = nms.XLA_TILE + 60
    shifted = np.concatenate([chain(30) + 5 * i for i in range(-(-count // 30))])[:count]
    cases = np.stack([*random_boxes(rng, 2, count), shifted, rng.permutation(shifted)])
    valid = rng.random(cases.shape[:2]) < 0.9
    compiled = tf.function(lambda b, v: nms.suppress(b, v, 0.5), jit_compile=True)
    marks = compiled(tf.constant(cases), tf.constant(valid)).numpy()
    np.testing.assert_array_equal(marks, [greedy(b, v, 0.5) for b, v in zip(cases, valid)])


def naive_detections(corners, scores, score_threshold, iou_threshold, candidates, detections):
    actual = []
    for c in range(scores.shape[1]):
        order = np.argsort(-scores[:, c], kind="stable")[:candidates]
        order = order[scores[order, c] > score_threshold]
        survivors = greedy(corners[order], np.ones(len(order), bool), iou_threshold)
        actual += [(scores[i, c], c + 1, *corners[i]) for i in order[survivors]]
    return sorted(actual, key=lambda d: -d[0])[:detections]


@pytest.mark.parametrize("classes", [nms.CLASSES, 2])
def test_detections_per_class_equal_the_loop(classes, monkeypatch):
    """Five classes at once, or in groups of two, of which the last has one."""
    monkeypatch.setattr(nms, "CLASSES", classes)
    rng = np.random.default_rng(6)
    corners, scores = random_boxes(rng, 4, 60), rng.random([4, 60, 5])
    scores[3] = 0.01
    actual = nms.per_class(tf.constant(corners), tf.constant(scores), 0.3, 0.5, 20, 50)
    per_box = np.repeat(corners[:, :, None], 5, 2)
    again = nms.per_class(tf.constant(per_box), tf.constant(scores), 0.3, 0.5, 20, 50)
    for i in range(4):
        expected = naive_detections(corners[i], scores[i], 0.3, 0.5, 20, 50)
        for result in (actual, again):
            count = int(result.valid[i].numpy().sum())
            assert count == len(expected) and (count == 0) == (i == 3)
            rows = zip(result.scores[i].numpy(), result.classes[i].numpy(), *result.boxes[i].numpy().T)
            np.testing.assert_allclose(list(rows)[:count], expected, rtol=1e-12)
            assert not result.scores[i].numpy()[count:].any() and not result.classes[i].numpy()[count:].any()


def test_no_more_than_a_group_of_classes_is_compared_at_once(monkeypatch):
    """A tile's comparisons take memory for each class: 5,000 at once took gigabytes."""
    suppress, compared = nms.suppress, []
    monkeypatch.setattr(nms, "suppress", lambda b, *more: compared.append(b.shape[1]) or suppress(b, *more))
    corners, scores = random_boxes(np.random.default_rng(8), 1, 20), np.full([1, 20, 1000], 0.5)
    nms.per_class(tf.constant(corners), tf.constant(scores), 0.05, 0.5, 20, 10)
    assert compared and max(compared) == nms.CLASSES < 1000


def test_a_score_of_just_the_threshold_is_no_detection():
    """As tf-models-official, which takes what scores more; in powers of two."""
    corners = tf.constant([[[0.0, 0, 0.1, 0.1], [0.3, 0.3, 0.4, 0.4], [0.6, 0.6, 0.7, 0.7]]])
    scores = tf.constant([[[0.25], [0.25 + 2.0**-20], [0.125]]])
    detections = nms.per_class(corners, scores, 0.25, 0.5, 3, 3)
    assert detections.valid.numpy().tolist() == [[True, False, False]]
    np.testing.assert_allclose(detections.boxes[0, 0], corners[0, 1])
