"""Anchors, targets, proposals and detections of each vendor's rows beside a numpy transcription of that vendor's code.

G7 is mlcommons/training_results_v0.7 Google/benchmarks/maskrcnn (G6's mask is the same but where a test says so), NV
NVIDIA/benchmarks/maskrcnn/implementations/pytorch/maskrcnn_benchmark; the numbers are lines. NVIDIA's corners name the
first and the last pixel, so that a width is last - first + 1; ours are edges.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from common.detection import nms, roi_align
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from maskrcnn import detect, model, roi, rpn
from maskrcnn.presets import PRESETS
from tests import differences
from tests.maskrcnn import small

NVIDIA = small.config(implementation="nvidia", rpn_batch=10**6)
GOOGLE = small.config(implementation="google")


def test_each_row_has_the_details_of_its_vendor() -> None:
    for name, config in PRESETS.items():
        vendor = {"tpu": "google", "cpu": "plain"}.get(name[:3], "nvidia")
        assert config.implementation == config.details.geometry == vendor, name
        assert config.roi_samples == (1 if config.ruleset == "0.6.0" else 2), name  # G6 architecture 1145.


# -- NVIDIA ----------------------------------------------------------------------------------------------------------


def nvidia_anchors(height: int, width: int, stride: int) -> np.ndarray:
    """Corners in pixels of a level's anchors, [3, rows, columns, 4]: anchor_generator.py 82-100, 215-271."""
    shapes = []
    for ratio in (1.0, 0.5, 2.0):
        columns = round(math.sqrt(stride * stride / ratio))
        shapes.append((round(columns * ratio) * 8, columns * 8))  # Their sizes are 8 strides.
    middle = (stride - 1) / 2
    grid = np.zeros([3, height // stride, width // stride, 4])
    for i, (rows, columns) in enumerate(shapes):
        for y in range(height // stride):
            for x in range(width // stride):
                v, u = middle + y * stride, middle + x * stride
                grid[i, y, x] = [
                    v - (rows - 1) / 2,
                    u - (columns - 1) / 2,
                    v + (rows - 1) / 2,
                    u + (columns - 1) / 2,
                ]
    return grid


def in_pixels(anchors: np.ndarray) -> np.ndarray:
    """Ours, (cy, cx, h, w), as first and last pixel."""
    return np.concatenate(
        [anchors[:, :2] - (anchors[:, 2:] - 1) / 2, anchors[:, :2] + (anchors[:, 2:] - 1) / 2], -1
    )


def test_nvidia_s_anchors() -> None:
    config = PRESETS["dgx-1"]
    ours = model.anchors(config, 832, 1344)
    assert ours[0][0].tolist() == [1.5, 1.5, 32, 32] and sorted(ours[0][-1][2:]) == [24, 48]
    for level, anchors in enumerate(ours, 2):
        expected = nvidia_anchors(832, 1344, 2**level).reshape(-1, 4)
        np.testing.assert_allclose(in_pixels(anchors), expected, atol=1e-9)


def nvidia_overlap(a: np.ndarray, b: np.ndarray) -> float:
    """structures/boxlist_ops.py 60-95: sides count the last pixel."""
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0).prod()
    return shared / ((a[2:] - a[:2] + 1).prod() + (b[2:] - b[:2] + 1).prod() - shared)


def nvidia_code(box: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    """modeling/box_coder.py 24-50."""
    sides, reference = box[2:] - box[:2] + 1, anchor[2:] - anchor[:2] + 1
    offset = (box[:2] + sides / 2 - anchor[:2] - reference / 2) / reference
    return np.concatenate([offset, np.log(sides / reference)])


def test_nvidia_s_anchors_are_matched_and_encoded_as_there() -> None:
    """Visible are the anchors whose first pixel is at least 0 and whose last is below the size (lines 118-124)."""
    shape, content = (128, 192), (120, 184)
    anchors = np.concatenate(model.anchors(NVIDIA, *shape))
    objects = np.array([[8, 16, 72, 80], [40, 100, 64, 148], [4, 4, 20, 30], [40, 41, 52, 50]], np.float64)
    targets = rpn.targets(
        anchors,
        tf.constant(objects[None]),
        tf.ones([1, 4], tf.int32),
        tf.random.stateless_uniform([1, len(anchors)], [1, 2], dtype=tf.float64),
        tf.constant([[*content, 1.0]]),
        NVIDIA,
    )
    pixels, last = in_pixels(anchors), objects - [0, 0, 1, 1]
    visible = (pixels[:, :2] >= 0).all(1) & (pixels[:, 2:] < content).all(1)
    touching = visible & (pixels[:, 2:] == np.array(content) - 1).any(1)
    assert touching.any()
    iou = np.array([[nvidia_overlap(p, box) for box in last] for p in pixels])
    # matcher.py 60-112, match_proposals.cu 12-33, 90-108: all anchors that tie for an object's best overlap; each keeps
    # the object that it overlaps most.
    owner, positive = iou.argmax(1), iou.max(1) >= 0.7
    tied = np.isclose(iou, iou.max(0), rtol=1e-9, atol=0)
    positive |= tied.any(1)
    assert (tied & visible[:, None]).sum(0)[3] > 3  # The small object lies inside several anchors.
    actual = targets.positive[0].numpy()
    np.testing.assert_array_equal(actual, positive & visible)
    np.testing.assert_array_equal(targets.negative[0], (iou.max(1) < 0.3) & ~positive & visible)
    assert (touching & targets.negative[0].numpy()).any()
    for i in actual.nonzero()[0]:
        apart = np.abs(targets.codes[0, i] - nvidia_code(last[owner[i]], pixels[i])).max()
        differences.hold("maskrcnn/dgx-1", "targets", apart)
    # match_proposals.cu 95: a GPU's second image is compared with the first one's best overlaps, so that it keeps
    # overlaps of 0.7 alone.
    low, side = (
        np.random.default_rng(5).uniform(0, 60, [200, 2]),
        np.random.default_rng(6).uniform(12, 60, [200, 1]),
    )
    many = np.concatenate([low, low + side], 1)
    corners = np.concatenate([pixels[:, :2], pixels[:, 2:] + 1], 1)
    best = [max(plain_overlap(c, box) for c in corners[visible]) for box in many]
    differences.hold("maskrcnn/dgx-1", "second image", np.mean(np.array(best) < 0.7))


def test_nvidia_s_regions_and_detections() -> None:
    """roi_heads/box_head/loss.py 61-180, balanced_positive_negative_sampler.py 40-65, inference.py 95-160, nms.cu."""
    rng, config = np.random.default_rng(8), PRESETS["dgx-1"]
    objects = np.array([[8.0, 16, 72, 80], [40, 100, 64, 148], [20, 30, 45, 60]])
    low = np.concatenate(
        [objects[rng.integers(0, 3, 800), :2] + rng.normal(0, 6, [800, 2]), rng.uniform(0, 90, [200, 2])]
    )
    proposals = np.concatenate([low, low + rng.uniform(20, 60, [1000, 2])], 1)
    there = rpn.Proposals(tf.constant(proposals[None]), tf.ones([1, 1000], tf.bool))
    noise = tf.random.stateless_uniform([1, 1003], [3, 4], dtype=tf.float64)
    regions = roi.sample(there, tf.constant(objects[None]), tf.constant([[4, 5, 6]]), noise, config)
    last = [0, 0, 1, 1]
    pool = np.concatenate([proposals, objects]) - last
    iou = np.array([[nvidia_overlap(one, box) for box in objects - last] for one in pool])
    positives = (iou.max(1) >= 0.5).sum()
    assert (
        positives > 128
        and (regions.classes[0].numpy() > 0).sum() == 128
        and regions.valid.numpy().sum() == 512
    )
    for i, box in enumerate(regions.boxes[0].numpy() - last):
        overlaps = [nvidia_overlap(box, one) for one in objects - last]
        owner = int(np.argmax(overlaps))
        assert regions.classes[0, i] == (4 + owner if max(overlaps) >= 0.5 else 0)
        if max(overlaps) >= 0.5:
            expected = nvidia_code(objects[owner] - last, box) * [10, 10, 5, 5]
            differences.hold("maskrcnn/dgx-1", "targets", np.abs(regions.codes[0, i] - expected).max())
    scores, ranked = rng.random([120, 2]), []
    for c in range(2):
        survivors: list = []
        for i in np.argsort(-scores[:, c]):
            if scores[i, c] > 0.05 and all(nvidia_overlap(pool[i], pool[j]) <= 0.5 for j in survivors):
                survivors.append(i)
        ranked += [(scores[i, c], c + 1, proposals[i]) for i in survivors]
    ranked = sorted(ranked, key=lambda one: -one[0])[:100]
    detections = nms.per_class(
        tf.constant(proposals[None, :120]), tf.constant(scores[None]), 0.05, 0.5, 120, 100
    )
    np.testing.assert_array_equal(detections.classes[0][: len(ranked)], [c for _, c, _ in ranked])
    apart = np.abs(detections.boxes[0][: len(ranked)] - [box for *_, box in ranked]).max()
    differences.hold("maskrcnn/dgx-1", "evaluation", apart)


def nvidia_roi_align(features: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """csrc/cuda/ROIAlign_cuda.cu 63-131 at level 2: from the first pixel to the last, a cell at least."""
    start, length = box[:2] / 4, np.maximum((box[2:] - box[:2]) / 4, 1)
    places = [start[a] + (np.arange(2 * size) + 0.5) / (2 * size) * length[a] for a in (0, 1)]
    weights = [np.maximum(1 - np.abs(p[:, None] - np.arange(n)), 0) for p, n in zip(places, features.shape)]
    samples = np.einsum("ay,bx,yxc->abc", *weights, features)
    return samples.reshape(size, 2, size, 2, -1).mean((1, 3))


def test_nvidia_s_roialign_ends_a_pixel_earlier() -> None:
    """The effect is that on white noise; and that of scaled corners on a box of 32 pixels, at COCO's scale of 1.6."""
    rng = np.random.default_rng(9)
    features, apart = rng.normal(size=[40, 40, 16]), []
    for _ in range(20):
        low = rng.uniform(4, 60, 2)
        box = np.concatenate([low, low + rng.uniform(30, 60, 2)])
        theirs = nvidia_roi_align(features, box - [0, 0, 1, 1], 7)
        pyramid = {2: tf.constant(features[None])}
        of_theirs, ours = (
            roi_align.roi_align(pyramid, tf.constant(b[None, None]), 7)[0, 0].numpy()
            for b in (box - [0, 0, 1, 1], box)
        )
        np.testing.assert_allclose(of_theirs, theirs, atol=1e-9)
        apart.append(np.square(ours - theirs).mean() / np.square(theirs).mean())
    differences.hold("maskrcnn/dgx-1", "ROIAlign", np.sqrt(np.mean(apart)))
    edges, scale = np.array([0.0, 0, 20, 20]), 1.6
    scaled = (edges - [0, 0, 1, 1]) * scale + [0, 0, 1, 1]
    differences.hold("maskrcnn/dgx-1", "scaled ends", 1 - plain_overlap(edges * scale, scaled))


# -- Google ----------------------------------------------------------------------------------------------------------


def google_decoded(code: np.ndarray, box: np.ndarray, weights: tuple) -> np.ndarray:
    """box_utils.py 227-285: both ways count right - left + 1; the last corner is one less again."""
    sides = box[2:] - box[:2] + 1.0
    middle = box[:2] + 0.5 * sides + code[:2] / weights[:2] * sides
    sides = np.exp(np.minimum(code[2:] / weights[2:], np.log(1000 / 16))) * sides
    return np.concatenate([middle - 0.5 * sides, middle + 0.5 * sides - 1])


def google_clipped(box: np.ndarray, size: np.ndarray) -> np.ndarray:
    """box_utils.py 176-224."""
    return np.maximum(np.minimum(box, np.tile(size - 1, 2)), 0)


def plain_overlap(a: np.ndarray, b: np.ndarray) -> float:
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared + 1e-8)


def suppressed(ranked: list, threshold: float) -> list:
    """[(score, box, ...)], best first, without those that overlap a better one by `threshold` or more."""
    picks: list = []
    for one in ranked:
        if all(plain_overlap(one[1], other[1]) < threshold for other in picks):
            picks.append(one)
    return picks


def test_google_s_anchors_are_matched_as_there() -> None:
    """anchors.py 175-290, argmax_matcher.py 100-175: an object's first best anchor is its own; all anchors count."""
    anchors = np.concatenate(model.anchors(GOOGLE, 128, 192))
    objects = np.array([[8, 16, 72, 80], [40, 100, 64, 148], [40, 41, 52, 50]], np.float64)
    config = small.config(GOOGLE, rpn_batch=10**6)
    noise = tf.random.stateless_uniform([1, len(anchors)], [1, 2], dtype=tf.float64)
    info, classes = tf.constant([[120.0, 184, 1]]), tf.ones([1, 3], tf.int32)
    targets = rpn.targets(anchors, tf.constant(objects[None]), classes, noise, info, config)
    corners = np.concatenate([anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2], 1)
    iou = np.array([[plain_overlap(c, box) for box in objects] for c in corners])
    owner, positive = iou.argmax(1), iou.max(1) >= 0.7
    best = iou.argmax(0)
    owner[best[::-1]], positive[best] = np.arange(3)[::-1], True
    np.testing.assert_array_equal(targets.positive[0], positive)
    np.testing.assert_array_equal(targets.negative[0], (iou.max(1) < 0.3) & ~positive)
    for i in positive.nonzero()[0]:
        box, sides = objects[owner[i]], anchors[i, 2:]
        middle = ((box[:2] + box[2:]) / 2 - anchors[i, :2]) / sides
        expected = np.concatenate([middle, np.log((box[2:] - box[:2]) / sides)])
        differences.hold("maskrcnn/tpu-v4-128", "targets", np.abs(targets.codes[0, i] - expected).max())


def test_google_s_proposals() -> None:
    """mask_rcnn_architecture.py 272-400; boxes smaller than 1 / scale are dropped (box_utils.py 147-165)."""
    rng, config = np.random.default_rng(4), GOOGLE
    anchors = model.anchors(config, 64, 128)
    logits = [rng.normal(size=[1, len(a)]) for a in anchors]
    codes = [rng.normal(size=[1, len(a), 4]) * [1, 1, 1, 3] for a in anchors]
    info, proposals = np.array([60.0, 120, 0.4]), []
    small_ones = outside = 0
    for scores, level, centers in zip(logits, codes, anchors):
        order, boxes = np.argsort(-scores[0], kind="stable")[:40], []
        for i in order:
            corners = np.concatenate(
                [centers[i, :2] - centers[i, 2:] / 2, centers[i, :2] + centers[i, 2:] / 2]
            )
            box = google_clipped(google_decoded(level[0, i], corners, np.ones(4)), info[:2])
            sides = box[2:] - box[:2]
            middle = box[:2] + sides / 2 + 0.5
            outside += (middle >= info[:2]).any()
            small_ones += (sides > 0).all() and (sides < 1 / info[2]).any()
            if (sides >= 1 / info[2]).all() and (middle < info[:2]).all():
                boxes.append((scores[0, i], box))
        proposals += suppressed(boxes, 0.7)
    proposals = sorted(proposals, key=lambda one: -one[0])[:30]
    tensors = [tf.constant(x) for x in logits], [tf.constant(x) for x in codes]
    ours = rpn.propose(*tensors, anchors, tf.constant(info[None]), 40, 30, 0.7, "google")
    assert (
        small_ones and not outside
    )  # The clipping leaves no center outside, so that test of theirs never fails.
    assert ours.valid.numpy().sum() == len(proposals)
    np.testing.assert_allclose(ours.boxes[0][: len(proposals)], [box for _, box in proposals], atol=1e-9)


def test_google_s_codes_of_regions_and_boxes_of_detections() -> None:
    """box_utils.py 288-339 and post_processing.py 68-78: encoding and decoding are each other's inverse."""
    objects = np.array([[[8.0, 16, 40, 90], [4, 4, 30, 21]]])
    proposals = np.array([[[10.0, 14, 44, 80], [3, 6, 28, 20], [7, 17, 40, 99]]])
    there = rpn.Proposals(tf.constant(proposals), tf.ones([1, 3], tf.bool))
    noise = tf.random.stateless_uniform([1, 5], [3, 4], dtype=tf.float64)
    config = small.config(GOOGLE, roi_foreground=1.0)
    regions = roi.sample(there, tf.constant(objects), tf.constant([[1, 2]]), noise, config)
    weights, size = np.array([10.0, 10, 5, 5]), np.array([50.0, 100])
    codes = np.zeros([1, 5, 3, 4])
    for i in range(5):
        box, target = regions.boxes[0, i].numpy(), objects[0, int(regions.index[0, i])]
        sides, reference = target[2:] - target[:2] + 1, box[2:] - box[:2] + 1
        offset = (target[:2] + sides / 2 - box[:2] - reference / 2) / reference
        expected = np.concatenate([offset, np.log(sides / reference)]) * weights
        np.testing.assert_allclose(regions.codes[0, i], expected, atol=1e-9)
        codes[0, i, 1] = expected
        codes[0, i, 2] = [8, -6, 1, 2]
    decoded = detect.boxes_of(
        tf.constant(codes), regions.boxes, tf.constant([[*size, 1.0]]), "google"
    ).numpy()
    for i in range(5):
        box = regions.boxes[0, i].numpy()
        np.testing.assert_allclose(decoded[0, i, 0], objects[0, int(regions.index[0, i])], atol=1e-9)
        other = google_clipped(google_decoded(codes[0, i, 2], box, weights), size)
        np.testing.assert_allclose(decoded[0, i, 1], other, atol=1e-9)


def test_google_s_detections_are_of_the_best_pairs_of_all_classes() -> None:
    """post_processing.py 57-110: k pairs of box and class first, then the threshold, and suppression in each class."""
    rng = np.random.default_rng(7)
    low = rng.uniform(0, 60, [40, 1, 2])
    boxes = np.concatenate([np.repeat(low, 6, 1), low + rng.uniform(5, 40, [40, 6, 2])], -1)
    scores = rng.random([40, 6])
    pairs = sorted(np.ndindex(40, 6), key=lambda pair: -scores[pair])[:50]
    detections = []
    for c in range(6):
        ranked = [(scores[n, c], boxes[n, c], c + 1) for n, k in pairs if k == c and scores[n, c] > 0.05]
        detections += suppressed(ranked, 0.5)
    detections = sorted(detections, key=lambda one: -one[0])[:100]
    ours = nms.per_class(tf.constant(boxes[None]), tf.constant(scores[None]), 0.05, 0.5, 40, 100, 50)
    assert ours.valid.numpy().sum() == len(detections) < 50
    np.testing.assert_array_equal(ours.classes[0][: len(detections)], [c for _, _, c in detections])
    apart = np.abs(ours.boxes[0][: len(detections)] - [box for _, box, _ in detections]).max()
    differences.hold("maskrcnn/tpu-v4-128", "evaluation", apart)
    all_of_them = nms.per_class(tf.constant(boxes[None]), tf.constant(scores[None]), 0.05, 0.5, 40, 100)
    assert all_of_them.valid.numpy().sum() > len(detections)


@pytest.mark.parametrize(("geometry", "levels"), [("plain", 4), ("google", 5)])
def test_google_s_regions_use_level_6(geometry: str, levels: int) -> None:
    """mask_rcnn_architecture.py 1115-1125: levels up to the largest of the features, 6."""
    config = small.config(implementation=geometry, roi_samples=1 if geometry == "google" else 2)
    net = model.build(config, Single(), precision("fp64"))
    images = tf.random.stateless_uniform([2, 64, 128, 3], [1, 2])
    maps = net.features(images, training=False).maps
    assert len(maps) == levels
    assert int(roi_align.level_of(tf.constant([0.0, 0, 900, 900]), 2, 1 + levels)) == 1 + levels
    boxes = tf.constant([[[4.0, 6, 40, 70]]], tf.float64)
    features = dict(enumerate([x[:1] for x in maps], 2))
    expected = roi_align.roi_align(features, boxes, 7, config.roi_samples)
    np.testing.assert_allclose(net.crops[0]([x[:1] for x in maps], boxes), expected)
    batch = small.tensors(small.batch(config, (64, 128)))
    anchors, info = model.anchors(config, 64, 128), batch["image_info"]
    features = net.features(batch["image"], training=False)
    regions = rpn.propose(features.logits, features.codes, anchors, info, 30, 20, 0.7, geometry)
    outputs = net.heads(features.maps, regions.boxes)
    codes = detect.boxes_of(outputs.codes, regions.boxes, info, geometry)
    scores = detect.scores_of(outputs.logits, regions.valid)
    pairs = 20 if geometry == "google" else 0
    expected = nms.per_class(codes, scores, config.score_threshold, 0.5, 20, 12, pairs)
    detections = detect.detect(net, batch, config)
    np.testing.assert_allclose(detections["boxes"], expected.boxes, atol=1e-6)
    np.testing.assert_array_equal(detections["classes"], expected.classes)
