"""Compares what SSD's task makes of the network's outputs with numpy transcriptions."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.distributed.spatial import Spatial
from ssd.model import anchors as anchors_of
from ssd.presets import PRESETS
from ssd.task import Task

CLASSES = 5


def test_scores_are_probabilities_beside_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The softmax runs over all classes, the background (class 0) included; its class is never detected."""
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], num_classes=CLASSES, score_threshold=0.0, candidates=4, detections=4
    )
    task = Task(config, None)
    anchors = anchors_of(config)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[1, len(anchors), CLASSES])
    logits[..., 1:] -= 6.0
    chosen = [3, 40, 90]
    for place, kind in zip(chosen, (1, 4, 2), strict=True):
        logits[0, place, 0], logits[0, place, kind] = 5.0, 5.0 + kind
    codes = np.zeros([1, len(anchors), 4])
    codes[0, 3, 2:] = 100.0
    outputs = tf.constant(codes), tf.constant(logits)
    monkeypatch.setattr(task, "_outputs", lambda *_, **__: outputs)
    monkeypatch.setattr(task, "_spatial", Spatial(Single(), 1), raising=False)  # As `build` makes it.
    batch = {"image": tf.zeros([1, 8, 8, 3]), "image_id": tf.constant([7]), "weight": tf.constant([1.0])}
    actual = task.evaluate(None, batch).arrays
    powers = np.exp(logits[0] - logits[0].max(-1, keepdims=True))
    probabilities = powers / powers.sum(-1, keepdims=True)
    wanted = sorted((probabilities[p, k] for p, k in zip(chosen, (1, 4, 2), strict=True)), reverse=True)
    np.testing.assert_allclose(actual["scores"][0, :3], wanted, rtol=1e-6)
    assert list(actual["classes"][0, :3].numpy()) == [4, 2, 1]
    # Of place 3, whose code would overflow: a side is 1000 / 16 of its anchor's at most.
    sides = actual["boxes"][0, 2, 2:] - actual["boxes"][0, 2, :2]
    np.testing.assert_allclose(sides, anchors[3, 2:] * 1000 / 16, rtol=1e-5)
