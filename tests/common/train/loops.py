"""Runs whole loops, for tests that compare two runs: losses, weights and the task's found values."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from common.train import checkpoint, events
from common.train.loop import Loop

Trained = tuple[list[float], list[np.ndarray], Any]


def train(loop: Loop) -> Trained:
    """Trains; returns losses, final weights and `loop.task.found`, which the task's `quality` must fill."""
    losses = [x for e in loop.run() if isinstance(e, events.Trained) for x in e.losses]
    weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
    return losses, weights, loop.task.found


def train_compiled(loop: Loop) -> Trained:
    """Like `train`, and asserts that nothing is traced once the loop is compiled."""
    loop.compile()
    traced = loop._block._block.experimental_get_tracing_count()
    found = train(loop)
    assert loop._block._block.experimental_get_tracing_count() == traced
    return found


def train_resumed(make: Callable[..., Loop], folder: os.PathLike) -> Trained:
    """Like `train` with two loops of `make`: one until a checkpoint after three steps, another from there."""
    first, losses = make(steps_per_block=3), []
    for event in first.run():
        if isinstance(event, events.Trained):
            losses += event.losses
            break
    checkpoint.save(first, folder)
    second = make(steps_per_block=3)
    assert checkpoint.restore_latest(second, folder) == 3
    rest, weights, found = train(second)
    return [*losses, *rest], weights, found


def assert_alike(found: Trained, expected: Trained, losses: float, weights: float, least: float) -> None:
    """Compares losses to the relative tolerance `losses`, weights to `weights`, or to `least` where that is larger."""
    np.testing.assert_allclose(found[0], expected[0], rtol=losses)
    for mine, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=weights, atol=least)
