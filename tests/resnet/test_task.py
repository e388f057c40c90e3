"""Compares ResNet's loss and quality with numpy transcriptions of their formulas."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from common.train import classification
from resnet.presets import PRESETS
from resnet.task import Task

CLASSES = 7


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(size=[5, CLASSES])


def task(monkeypatch: pytest.MonkeyPatch, logits: np.ndarray, smoothing: float) -> Task:
    """A task whose network gives `logits`, whatever the images."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], num_classes=CLASSES, label_smoothing=smoothing)
    result = Task(config, None)
    monkeypatch.setattr(result, "logits", lambda *_, **__: tf.constant(logits))
    return result


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_loss_smooths_labels_over_all_classes(
    monkeypatch: pytest.MonkeyPatch, logits: np.ndarray, smoothing: float
) -> None:
    """Targets are 1 - s + s / V for the label and s / V for each other class (docs/sources.md, mlperf 0.7)."""
    labels, weight = np.array([0, 3, 6, 2, 1], np.int32), np.array([1, 1, 0, 1, 1], np.float32)
    term = task(monkeypatch, logits, smoothing).loss(None, {"label": labels, "weight": weight})[
        "cross_entropy"
    ]
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    targets = np.full([5, CLASSES], smoothing / CLASSES)
    targets[np.arange(5), labels] += 1 - smoothing
    expected = -(targets * log_probabilities).sum(1)
    np.testing.assert_allclose(term.total, (expected * weight).sum(), rtol=1e-12)
    np.testing.assert_allclose(term.weight, 4.0)


def test_an_evaluation_counts_no_padding(monkeypatch: pytest.MonkeyPatch, logits: np.ndarray) -> None:
    labels = np.argmax(logits, 1).astype(np.int32)
    labels[1] = (labels[1] + 1) % CLASSES
    labels[4] = -1
    weight = np.array([1, 1, 1, 1, 0], np.float32)
    sums = task(monkeypatch, logits, 0.1).evaluate(None, {"label": labels, "weight": weight}).sums
    assert (int(sums["correct"]), int(sums["seen"])) == (3, 4)
    counts = sums["confused"].numpy()
    assert counts[labels[1], np.argmax(logits[1])] == 1 and np.trace(counts) == 3 and counts.sum() == 4
    assert classification.confused({"confused": counts}, lambda: ("a", "b")) == [
        (*(dict(enumerate("ab")).get(i, str(i)) for i in (labels[1], np.argmax(logits[1]))), 1)
    ]
    assert classification.confused({}, tuple) == [] == classification.confused({"confused": np.eye(3)}, tuple)
