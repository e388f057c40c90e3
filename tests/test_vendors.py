"""Targets, moments and detections beside each vendor's code in numpy; every row stands beside its own vendor's.

G7 is mlcommons/training_results_v0.7 Google/benchmarks, NV its NVIDIA/benchmarks; the numbers are lines. Mask R-CNN's
boxes are in tests/maskrcnn/test_maskrcnn_vendors.py, searches in tests/common/text/test_text_beam.py, pixels in
tests/test_way_in.py.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import nms
from common.distributed.replicas.single import Single
from common.layers.batch_norm import SyncBatchNorm, merge_moments
from common.layers.convolution import PaddedConv2D
from common.layers.precision import precision
from ssd import loss, model
from ssd.presets import PRESETS as SSD
from tests import differences, sources

# -- each row and its vendor -----------------------------------------------------------------------------------------


def test_each_row_s_transcription_names_its_source_s_framework() -> None:
    for name, source in sources.rows().items():
        benchmark, _, system = name.partition("/")
        google = system.startswith(("tpu", "legw")) or name == "resnet/v100-8"
        assert (source.code in ("TensorFlow", "Keras", "JAX")) == google, name
        assert (source.code == "JAX") == system.endswith("jax"), name
        assert (source.code == "MXNet") == (
            system.startswith("dgx") and (benchmark == "resnet" or name == "ssd/dgx-2h-64")
        ), name


def test_no_row_borrows_another_vendor_s_part_without_saying_so() -> None:
    """A part is measured beside the row's own framework with the row's settings, or the page says why it is not."""
    silent = set()
    for name, source in sources.rows().items():
        benchmark = name.partition("/")[0]
        parts = ["input", "evaluation", *(["targets"] if benchmark in ("ssd", "maskrcnn") else [])]
        silent |= {(benchmark, p, source.code) for p in parts if differences.stand_in(name, p) is None}
    assert silent == set(differences.UNMEASURED)


def test_the_page_has_the_table() -> None:
    """`python -m tests.differences` writes it."""
    page = differences.PAGE.read_text()
    assert page.partition(differences.BEGIN)[2].partition(differences.END)[0] == differences.table()


# -- ResNet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "size"), [(1, 8), (3, 8), (3, 14)])
def test_padding_of_both_sides_is_same_padding_a_pixel_later(kernel: int, size: int) -> None:
    """G7 TF resnet_model.py and NV mxnet resnet-v1b-dbar-fl.py 222 pad both; JAX models.py 114, Keras 212 "same"."""
    layer = PaddedConv2D(2, kernel, pad=kernel // 2, strides=2, use_bias=False, dtype="float64")
    image = tf.random.stateless_normal([1, size, size, 3], [1, kernel], dtype=tf.float64)
    ours = layer(image).numpy()
    moved = tf.roll(image, [kernel // 2] * 2, [1, 2])
    theirs = tf.nn.conv2d(moved, layer.kernel, 2, "SAME").numpy()
    np.testing.assert_allclose(ours[:, 1:-1, 1:-1], theirs[:, 1:-1, 1:-1], atol=1e-12)


MERGED: dict[str, Callable] = {
    "tpu-v4-128": lambda m, v: (v + m * m).mean(0) - m.mean(0) ** 2,  # G7 util/image_util.py 389-392.
    "tpu-v3-8192-jax": lambda m, v: v.mean(0),  # G7 JAX train.py 348-350: pmean of the state.
    "v100-8": lambda m, v: v.mean(0),  # Keras: a replica's averages have the aggregation MEAN.
    "tpu-v3-2048": lambda m, v: v[0],  # G6 evaluates each replica with its own.
    "dgx-1": lambda m, v: v[0],  # NV mxnet: as are a GPU's auxiliary parameters.
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_moments(name: str) -> None:
    """Of 32 groups of 64 images whose differences are all between images: the most that the variance can differ."""
    rng, groups, channels = np.random.default_rng(3), 32, 400
    means, variances = np.zeros([groups, channels]), np.ones([groups, channels])
    for _ in range(60):
        images = rng.normal(size=[groups, 64, channels])
        means = 0.9 * means + 0.1 * images.mean(1)
        variances = 0.9 * variances + 0.1 * images.var(1)
    layer = SyncBatchNorm(Single(1), 0, precision("fp64"))
    layer.build([groups, 1, 1, channels])
    layer.moving_mean, layer.moving_variance = tf.Variable(means), tf.Variable(variances)
    merge_moments([layer], Single(1))
    theirs = MERGED[name](means, variances)
    differences.hold(f"resnet/{name}", "evaluation", np.abs(theirs / layer.merged_variance.numpy() - 1).max())


# -- SSD -------------------------------------------------------------------------------------------------------------


def ssd_labels(boxes: np.ndarray, classes: np.ndarray, anchors: np.ndarray, name: str) -> tuple:
    """(classes, codes) of an image's anchors.

    G7 ssd/dataloader.py 230-250 and argmax_matcher.py 120-175: overlaps of 0.5 or more; the first object keeps a best
    anchor. NV ssd/pytorch/box_coder.py 97-143: more than 0.5; the last object does. MXNet's DALI encodes likewise.
    """
    google = name.startswith("tpu")
    corners = np.concatenate([anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2], 1)
    shared = np.minimum(corners[:, None, 2:], boxes[:, 2:]) - np.maximum(corners[:, None, :2], boxes[:, :2])
    shared = np.maximum(shared, 0).prod(-1)
    areas = [(x[:, 2:] - x[:, :2]).prod(-1) for x in (corners, boxes)]
    iou = shared / (areas[0][:, None] + areas[1] - shared)
    owner, positive = iou.argmax(1), iou.max(1) >= 0.5 if google else iou.max(1) > 0.5
    best = iou.argmax(0)
    for number in range(len(boxes))[:: -1 if google else 1]:
        owner[best[number]], positive[best[number]] = number, True
    matches, sides = boxes[owner], anchors[:, 2:]
    middle = ((matches[:, :2] + matches[:, 2:]) / 2 - anchors[:, :2]) / sides / 0.1
    codes = np.concatenate([middle, np.log((matches[:, 2:] - matches[:, :2]) / sides) / 0.2], 1)
    return np.where(positive, classes[owner], 0), np.where(positive[:, None], codes, 0)


@pytest.mark.parametrize("name", ["tpu-v4-16", "dgx-1", "dgx-2h-64"])
def test_ssd_s_targets(name: str) -> None:
    """Of crowded pictures; the vendors differ where two objects have one best anchor."""
    rng, anchors = np.random.default_rng(1), model.anchors(SSD[name])
    different = positive = 0
    for _ in range(40):
        low, side = rng.uniform(0, 0.6, [30, 2]), np.exp(rng.uniform(-4.6, -0.92, [30, 2]))
        boxes, classes = np.concatenate([low, low + side], 1), rng.permutation(np.arange(1, 81))[:30]
        tensors = (tf.constant(x[None]) for x in (boxes, classes.astype(np.int32)))
        ours = loss.targets(*tensors, tf.constant(anchors), SSD[name].match_overlap)
        labels, codes = ssd_labels(boxes, classes, anchors, name)
        same = ours.classes[0].numpy() == labels
        np.testing.assert_allclose(ours.codes[0].numpy()[same], codes[same], rtol=1e-8, atol=1e-9)
        different, positive = different + (~same).sum(), positive + (labels > 0).sum()
    differences.hold(f"ssd/{name}", "targets", different / positive)


@pytest.mark.parametrize("name", ["tpu-v4-16", "dgx-1", "dgx-2h-64"])
def test_ssd_s_detections(name: str) -> None:
    """G7 ssd_model.py 42-160: 200 of a class, then the threshold; NV box_coder.py 150-225, nms.cu 56-185: before it."""
    rng, config, first = np.random.default_rng(2), SSD[name], name.startswith("tpu")
    anchors = model.anchors(config)[::9]
    codes, logits = rng.normal(0, 2, [len(anchors), 4]), rng.normal(0, 2.5, [len(anchors), 4])
    limit = math.log(1000 / 16)
    ours = nms.per_class(
        box_ops.decode(tf.constant(codes[None]), tf.constant(anchors[None]), max_log_ratio=limit),
        tf.nn.softmax(tf.constant(logits[None]))[..., 1:],
        *(
            config.score_threshold,
            config.suppression_overlap,
            config.sizes.candidates,
            config.sizes.detections,
        ),
    )
    middle = codes[:, :2] * 0.1 * anchors[:, 2:] + anchors[:, :2]
    sides = np.exp(codes[:, 2:] * 0.2) * anchors[:, 2:]
    boxes = np.concatenate([middle - sides / 2, middle + sides / 2], 1)
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    theirs = []
    for c in range(1, 4):
        order = np.argsort(-scores[:, c], kind="stable")
        top = order[:200] if first else order[scores[order, c] > 0.05][:200]
        rows: list[int] = []
        for i in top[scores[top, c] > 0.05]:
            iou = box_ops.iou(tf.constant(boxes[i : i + 1]), tf.constant(boxes[rows].reshape(-1, 4))).numpy()
            if (iou < 0.5).all():
                rows.append(i)
        theirs += [(scores[i, c], c, boxes[i]) for i in rows]
    theirs = sorted(theirs, key=lambda one: -one[0])[:200]
    assert ours.valid.numpy().sum() == len(theirs) > 50
    np.testing.assert_array_equal(ours.classes[0][: len(theirs)], [c for _, c, _ in theirs])
    differences.hold(
        f"ssd/{name}",
        "evaluation",
        np.abs(ours.boxes[0][: len(theirs)] - [box for *_, box in theirs]).max(),
    )
