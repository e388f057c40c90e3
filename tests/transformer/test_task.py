"""Tests the Transformer's loss against a numpy transcription, and every preset: valid, as published, its header."""

import dataclasses
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

from common.config import overrides as configs
from common.config.run_length import RunLength
from common.text.beam import Hypotheses
from common.train.task import Reduction
from tests.benchmarks import assert_the_header_follows, broken_rules
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
    assert term.reduction is Reduction.GLOBAL
    google = Task(dataclasses.replace(config, mean_of_means=True), None)
    assert (
        google.loss(lambda *_, **__: tf.constant(logits), batch)["cross_entropy"].reduction
        is Reduction.REPLICA
    )


def test_an_evaluation_searches_from_the_sources_and_their_positions() -> None:
    config, calls = PRESETS["cpu-tiny"], []

    def translate(*source: tf.Tensor) -> Hypotheses:
        calls.extend(source)
        return Hypotheses(tf.constant([[[7, 1], [8, 1]]]), tf.zeros([1, 2]))

    tokens = np.arange(2 * config.packed_length, dtype=np.int32).reshape(2, 1, -1)
    batch = {"inputs": tokens[0], "inputs_position": tokens[1], "index": [3], "weight": [1.0]}
    arrays = Task(config, None).evaluate(types.SimpleNamespace(translate=translate), batch).arrays
    assert config.decode.source_length < config.packed_length and arrays["tokens"].numpy().tolist() == [
        [7, 1]
    ]
    for ours, whole in zip(calls, tokens, strict=True):
        np.testing.assert_array_equal(ours, whole[:, : config.decode.source_length])


# Sequences per replica, steps per epoch, most epochs, decode batch (docs/sources.md, mlperf 1.4).
ARITHMETIC = {
    "tpu-v3-2048": (1, 271, 7, 2048), "tpu-v4-16": (32, 1107, 4, 3072), "tpu-v4-128": (4, 1107, 4, 3072),
    "tpu-v4-512": (4, 277, 7, 4096), "tpu-v3-8192": (1, 277, 7, 4096), "tpu-v3-8192-jax": (1, 277, 7, 4096),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_the_published(name: str) -> None:
    config, (per_replica, steps, epochs, decode) = PRESETS[name], ARITHMETIC[name]
    run_length = RunLength.of(config)
    assert config.micro_batch_size == per_replica and config.eval_batch_size == decode
    assert run_length.steps_per_block == steps and run_length.train_steps == pytest.approx(
        epochs * steps, abs=epochs
    )
    assert [block.last_epoch for block in run_length.intervals()] == list(range(1, epochs + 1))
    assert (config.num_eval_examples, config.num_train_examples) == (3003, 566340)


@pytest.mark.parametrize("name", [name for name, c in PRESETS.items() if c.schedule.kind == "noam"])
def test_the_schedule_is_of_the_network_s_width(name: str) -> None:
    assert PRESETS[name].schedule.width == PRESETS[name].width


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("optimizer.epsilon", "1e-8", "opt_adam_epsilon"),
        ("quality_target", "0.2", "eval_accuracy"),
        ("max_sequence_length", "0", "max_sequence_length"),
    ],
)
def test_the_checker_rejects_changed_values(path: str, value: str, key: str, tmp_path: pathlib.Path) -> None:
    config = configs.override(PRESETS["tpu-v4-512"], path, value)
    assert broken_rules(config, tmp_path / "result_0.txt") == {key}


def test_header_follows_the_configuration() -> None:
    assert_the_header_follows(
        PRESETS["tpu-v4-512"],
        ("global_batch_size", "1024", "global_batch_size"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("optimizer.beta_1", "0.5", "opt_adam_beta_1"),
        ("optimizer.beta_2", "0.25", "opt_adam_beta_2"),
        ("optimizer.epsilon", "0.125", "opt_adam_epsilon"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("max_sequence_length", "64", "max_sequence_length"),
    )
