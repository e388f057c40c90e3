"""Tests detections against a numpy loop over classes and regions, from the network's own outputs."""

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from maskrcnn import model, rpn
from maskrcnn.detect import detect
from tests.maskrcnn import small
from tests.maskrcnn.test_maskrcnn_loss import centered, cornered, overlap


def detections(net, batch):
    """Detections by definition: [(score, class, box, mask)] of each image, best first."""
    config = net.config
    features = net.features(batch["image"], training=False)
    anchors = model.anchors(config, *batch["image"].shape[1:3])
    limits = config.sizes.rpn_eval_pre_nms, config.sizes.rpn_post_nms, config.rpn_nms_iou
    regions = rpn.propose(features.logits, features.codes, anchors, batch["image_info"], *limits)
    outputs = net.heads(features.maps, regions.boxes)
    actual = []
    for image, info in enumerate(batch["image_info"].numpy()):
        there = regions.valid[image].numpy()
        boxes, logits, codes = (
            x[image].numpy()[there] for x in (regions.boxes, outputs.logits, outputs.codes)
        )
        scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        of_image = []
        for c in range(1, config.num_classes):
            picks = []
            for n in np.argsort(-scores[:, c], kind="stable"):
                y, x, h, w = centered(boxes[n])
                dy, dx, dh, dw = codes[n, c] / [10, 10, 5, 5]
                box = cornered((y + dy * h, x + dx * w, np.exp(dh) * h, np.exp(dw) * w))
                box = np.clip(box, 0, [info[0], info[1]] * 2)
                new = all(overlap(box, other) < config.nms_iou for _, _, other in picks)
                if scores[n, c] > config.score_threshold and new:
                    picks.append((scores[n, c], c, box))
            of_image += picks
        of_image = sorted(of_image, key=lambda d: -d[0])[: config.sizes.detections]
        maps = [x[image : image + 1] for x in features.maps]
        crops = net.crops[1](maps, tf.constant(np.stack([box for _, _, box in of_image])[None]))
        masks = net.mask_head(crops)[0].numpy()
        actual.append([(*d, 1 / (1 + np.exp(-m[..., d[1]]))) for d, m in zip(of_image, masks)])
    return actual


@pytest.mark.parametrize("shape", [(64, 128), pytest.param((128, 64), marks=pytest.mark.e2e)])
def test_detections_equal_the_loop(shape):
    net = model.build(small.config(), Single(), precision("fp64"))
    small.randomize(net.trainable_variables, 5)
    # Random weights, so that not all boxes cover the whole image.
    for layer in (net.first.get_layer("rpn_box"), net.box_head.score, net.box_head.box):
        layer.kernel.assign(0.05 * layer.kernel)
    batch = small.tensors(small.batch(net.config, shape, seed=5))
    actual = detect(net, batch, net.config)
    count = net.config.sizes.detections
    assert {k: v.shape[1:] for k, v in actual.items()} == {
        "boxes": (count, 4), "scores": (count,), "classes": (count,), "masks": (count, 8, 8)
    }  # fmt: skip
    assert actual["boxes"].dtype == tf.float64  # An evaluation divides them before it rounds them.
    assert actual["scores"].dtype == actual["masks"].dtype == tf.float32
    for image, expected in enumerate(detections(net, batch)):
        n = len(expected)
        assert n > 3
        scores, classes, boxes, masks = zip(*expected)
        np.testing.assert_array_equal(actual["classes"][image], np.pad(classes, (0, count - n)))
        np.testing.assert_allclose(actual["scores"][image], np.pad(scores, (0, count - n)), rtol=1e-6)
        np.testing.assert_allclose(actual["boxes"][image][:n], boxes, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(actual["masks"][image][:n], masks, rtol=1e-5, atol=1e-6)
