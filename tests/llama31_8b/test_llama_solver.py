"""Tests the optimizer and both published schedules: 200 steps of training against numpy, from the loss on."""

import dataclasses
import math
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.config.schedule import Cosine
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.optim import schedules
from common.train.state import State
from common.train.step import make_train_step
from llama31_8b import model
from llama31_8b.presets import PRESETS
from llama31_8b.task import Task
from tests.llama31_8b.small import ROPE, changed, loss_and_gradients, network, windows

STEPS, LAST, WARMUP, PEAK = 200, 1_200_000, 16, 4e-4
KINDS = {
    "nemo": Cosine(warmup_steps=WARMUP + 1.0, first_step=1, end_learning_rate=0.1 * PEAK),
    "megatron": Cosine(warmup_steps=float(WARMUP), end_learning_rate=0.1 * PEAK),
}


def published(kind: str, k: int) -> float:
    """The rate of update k. NEMO nemo/core/optim/lr_scheduler.py; MCORE optimizer_param_scheduler.py."""
    if k <= WARMUP:
        return PEAK * ((k + 1) / (WARMUP + 1) if kind == "nemo" else k / WARMUP)
    part = (k - WARMUP) / (LAST - WARMUP)
    return 0.1 * PEAK + 0.9 * PEAK * (1 + math.cos(math.pi * part)) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_rates_at_the_knots_are_the_published_ones(kind: str) -> None:
    knots = [0, 1, WARMUP - 1, WARMUP, WARMUP + 1, 10_500, 600_000, LAST - 1]
    rate = schedules.learning_rate(KINDS[kind], PEAK, 1.0, LAST)(tf.constant(knots, tf.int64)).numpy()
    # Megatron's curve here ends one update later, of 1.2 million.
    np.testing.assert_allclose(
        rate, [published(kind, k) for k in knots], rtol=3e-6 if kind == "megatron" else 2e-7
    )


def test_a_preset_has_nemo_s_schedule_and_the_published_rule() -> None:
    config = PRESETS["h200-8"]
    assert dataclasses.replace(config.schedule, warmup_epochs=5.0) == KINDS["nemo"]
    rule = config.optimizer
    assert (rule.name, rule.beta_1, rule.beta_2, rule.epsilon, rule.weight_decay) == (
        "adamw",
        0.9,
        0.95,
        1e-5,
        0.1,
    )
    assert (rule.clip_norm, rule.clip_epsilon, rule.skip_kinds) == (1.0, 1e-6, ("norm", "bias"))


def norm_of(gradients: list[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.sum(g * g)) for g in gradients))


class Transcription:
    """AdamW with a clip over numpy arrays: MCORE optimizer/clip_grads.py and torch.optim.AdamW's formulas."""

    def __init__(self, weights: list[np.ndarray], clip_norm: float):
        self.weights, self.count, self.clips, self.clip_norm = weights, 0, 0, clip_norm
        self.m, self.v = ([np.zeros_like(w) for w in weights] for _ in range(2))

    def step(self, gradients: list[np.ndarray], rate: float) -> None:
        self.count += 1
        factor = self.clip_norm / (norm_of(gradients) + 1e-6)
        self.clips += factor < 1
        for i, gradient in enumerate(gradients):
            g = gradient * factor if factor < 1 else gradient
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.95 * self.v[i] + 0.05 * g * g
            if self.weights[i].ndim > 1:
                self.weights[i] = self.weights[i] * (1 - rate * 0.1)
            mean, square = self.m[i] / (1 - 0.9**self.count), self.v[i] / (1 - 0.95**self.count)
            self.weights[i] = self.weights[i] - rate * mean / (np.sqrt(square) + 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_200_steps_equal_a_transcription_from_the_loss_on(kind: str) -> None:
    """The rate is float32 in both; the first update of Megatron's schedule has rate 0."""
    config = changed(
        optimizer=PRESETS["h200-8"].optimizer,
        schedule=KINDS[kind],
        train_steps=LAST,
        layers=1,
        sequence_length=6,
    )
    task, theirs = network(config)
    # Between the norms of the first seven batches, so that some steps are clipped and others are not.
    norms = [norm_of(loss_and_gradients(task, theirs, windows(config, seed=k))[1:]) for k in range(7)]
    clip_norm = float(np.median(norms))
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, clip_norm=clip_norm))
    ours_task = Task(config, None)
    with mock.patch.dict(model.ROPE, ROPE):
        state = State(ours_task, Single(), precision("fp64"))
    for mine, other in zip(state.model.trainable_variables, theirs.trainable_variables, strict=True):
        mine.assign(other)
    one_step = tf.function(make_train_step(ours_task, state, RunLength.of(config)), autograph=False)
    oracle = Transcription([v.numpy() for v in theirs.trainable_variables], clip_norm)
    for k in range(STEPS):
        tokens = windows(config, seed=k % 7)
        loss, *gradients = loss_and_gradients(task, theirs, tokens)
        step_loss = one_step({"tokens": tf.constant(tokens)}, tf.constant(k, tf.int64))
        assert float(step_loss) == pytest.approx(float(loss), rel=1e-9)
        oracle.step(gradients, float(np.float32(published(kind, k))))
        for variable, weight in zip(theirs.trainable_variables, oracle.weights, strict=True):
            variable.assign(weight)
    assert 0 < oracle.clips < STEPS
    for variable, weight in zip(state.model.trainable_variables, oracle.weights, strict=True):
        np.testing.assert_allclose(variable, weight, rtol=1e-7, atol=1e-9, err_msg=variable.name)
