"""Compares the Transformer's loss with a numpy transcription: which tokens and examples count."""

import dataclasses
import types

import numpy as np
import tensorflow as tf

from common.text.beam import Hypotheses
from common.train.task import Over
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
    assert config.mean_of_means is False and PRESETS["tpu-v4-16"].mean_of_means
    term = Task(config, None).loss(lambda *_, **__: tf.constant(logits), batch)["cross_entropy"]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    real = (targets != 0) * weight[:, None]
    np.testing.assert_allclose(term.total, (losses * real).sum(), rtol=1e-9)
    np.testing.assert_allclose(term.weight, 7.0)
    assert term.over is Over.GLOBAL
    google = Task(dataclasses.replace(config, mean_of_means=True), None)
    assert google.loss(lambda *_, **__: tf.constant(logits), batch)["cross_entropy"].over is Over.REPLICA


def test_an_evaluation_searches_from_the_sources_and_their_positions() -> None:
    config, asked = PRESETS["cpu-tiny"], []

    def translate(*source: tf.Tensor) -> Hypotheses:
        asked.extend(source)
        return Hypotheses(tf.constant([[[7, 1], [8, 1]]]), tf.zeros([1, 2]))

    tokens = np.arange(2 * config.packed_length, dtype=np.int32).reshape(2, 1, -1)
    batch = {"inputs": tokens[0], "inputs_position": tokens[1], "index": [3], "weight": [1.0]}
    found = Task(config, None).evaluate(types.SimpleNamespace(translate=translate), batch).arrays
    assert config.decode.source_length < config.packed_length and found["tokens"].numpy().tolist() == [[7, 1]]
    for ours, whole in zip(asked, tokens, strict=True):
        np.testing.assert_array_equal(ours, whole[:, : config.decode.source_length])
