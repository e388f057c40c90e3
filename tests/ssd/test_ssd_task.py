"""Tests SSD's task against numpy transcriptions, and every preset: valid, as published, judged by the stock checker."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.detection import nms
from common.distributed.replicas.single import Single
from common.distributed.spatial import Spatial
from ssd.model import anchors as anchors_of
from ssd.presets import PRESETS, SUPPRESSED_AT_ONCE
from ssd.task import Task
from tests.benchmarks import assert_the_header_follows

CLASSES = 5


def test_scores_are_probabilities_beside_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The softmax runs over all classes, the background (class 0) included; its class is never detected."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], num_classes=CLASSES)
    task = Task(config, None)
    anchors = anchors_of(config)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[1, len(anchors), CLASSES])
    logits[..., 1:] -= 6.0
    places = [3, 40, 90]
    for place, kind in zip(places, (1, 4, 2), strict=True):
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
    expected = sorted((probabilities[p, k] for p, k in zip(places, (1, 4, 2), strict=True)), reverse=True)
    np.testing.assert_allclose(actual["scores"][0, :3], expected, rtol=1e-6)
    assert list(actual["classes"][0, :3].numpy()) == [4, 2, 1]
    # Of place 3, whose code would overflow: a side is 1000 / 16 of its anchor's at most.
    sides = actual["boxes"][0, 2, 2:] - actual["boxes"][0, 2, :2]
    np.testing.assert_allclose(sides, anchors[3, 2:] * 1000 / 16, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("tpu-v3-32", [3750, 5000, 5625, 6250, 6875, 7500]),
        # Loops of 313 steps: the sixth, the eighth, then each (G6 train_and_eval_low_level_runner.py).
        ("tpu-v3-2048", [313 * loop for loop in (6, 8, 9, 10, 11, 12, 13, 14, 15)]),
        ("tpu-v4-16", [578 * loop for loop in (8, 10, 11, 12, 13)]),
        ("dgx-1", [4887, 6108, 6719, 7330, 7941, 8552, 9163, 9773]),
    ],
)
def test_steps_are_the_published(name: str, steps: list[int]) -> None:
    """G6: after 120,000, 160,000, 180,000, ... steps of 32 images; rules of v0.7: after epochs 40, 50, 55, ..., 80."""
    assert [block.end_step for block in RunLength.of(PRESETS[name]).intervals()] == steps


def test_header_follows_the_configuration() -> None:
    assert_the_header_follows(
        PRESETS["v100-8"],
        ("batch_norm_span", "60", "model_bn_span"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("optimizer.weight_decay", "0.25", "opt_weight_decay"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("data.crop_attempts", "9", "max_samples"),
    )


def test_memory_counts_the_classes_that_are_suppressed_at_once():
    assert SUPPRESSED_AT_ONCE == nms.CLASSES
