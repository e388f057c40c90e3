"""Compares the Transformer's loss with a numpy transcription: which tokens and examples count."""

import dataclasses

import numpy as np
import tensorflow as tf

from transformer.presets import PRESETS
from transformer.task import Task


def test_padding_and_padded_examples_have_no_loss() -> None:
    rng = np.random.default_rng(0)
    config = dataclasses.replace(PRESETS["cpu-tiny"], label_smoothing=0.0)
    logits = rng.normal(size=[3, 5, 11])
    targets = np.array([[4, 1, 0, 0, 0], [2, 3, 1, 7, 1], [5, 6, 1, 0, 0]], np.int32)
    weight = np.array([1, 1, 0], np.float32)
    names = ("inputs", "inputs_segment", "inputs_position", "targets_segment", "targets_position")
    batch = dict.fromkeys(names, targets) | {"targets": targets, "weight": weight}
    term = Task(config, None).loss(lambda *_, **__: tf.constant(logits), batch)["cross_entropy"]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    real = (targets != 0) * weight[:, None]
    np.testing.assert_allclose(term.total, (losses * real).sum(), rtol=1e-9)
    np.testing.assert_allclose(term.weight, 7.0)
