"""Tests which step a training step's rate and its optimizer's count belong to: the first update is number 0."""

from __future__ import annotations

import numpy as np

from common.config.schema import Optimizer, Schedule
from common.distributed import replicas as backends
from common.layers.precision import precision
from common.train.loop import Loop
from common.train.step import State, make_train_step
from tests.common.train import toy

RATE = 0.125


def updates(count: int, optimizer: Optimizer, schedule: Schedule) -> list[list[np.ndarray]]:
    """How far each of the first `count` updates moves each weight."""
    config = toy.config(precision="fp64", replicas="single", optimizer=optimizer, schedule=schedule)
    task, replicas = toy.Task(config), backends.make(config)
    state = State(task, replicas, precision(config.precision))
    train = make_train_step(task, state, Loop(task, replicas).clock)
    batches = iter(task.train_input(backends.base.Shard(), config.global_batch_size, 0))
    moves = []
    for _ in range(count):
        before = [v.numpy() for v in state.model.trainable_variables]
        train(next(batches), state.step.read_value())
        state.step.assign_add(1)
        moves.append([v.numpy() - b for v, b in zip(state.model.trainable_variables, before, strict=True)])
    return moves


def test_the_first_update_takes_the_rate_at_0() -> None:
    """A linear warmup begins at 0: its first update moves nothing, its second moves every weight."""
    sgd = Optimizer(name="sgd", base_learning_rate=RATE, momentum=0.0)
    first, second = updates(2, sgd, Schedule(kind="constant", warmup_steps=4, warmup_epochs=0))
    assert not any(move.any() for move in first)
    assert all(move.any() for move in second)


def test_adam_s_first_update_moves_every_weight_by_the_rate() -> None:
    """Its averages are of one gradient, corrected for one: g / sqrt(g^2), but for epsilon."""
    adam = Optimizer(name="adam", base_learning_rate=RATE, weight_decay=0.0, epsilon=1e-12)
    (first,) = updates(1, adam, Schedule(kind="constant", warmup_epochs=0))
    moved = np.concatenate([m.ravel() for m in first])
    np.testing.assert_allclose(np.abs(moved[moved != 0]), RATE, rtol=1e-6)
    assert np.count_nonzero(moved) > 0.9 * moved.size
