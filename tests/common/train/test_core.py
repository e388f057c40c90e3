"""Tests the core on a toy task against numpy: loop, checkpoint, sums, sharded updates, segments, loss scale.

The whole file takes under a minute of one core, so `make quick` runs it after any edit of the loop or the update. The
files of each part test more backends and cases.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import Communication, Optimizer
from common.distributed import gradient_sum
from common.distributed import replicas as backends
from common.layers.precision import precision
from common.train import checkpoint, events, gradients
from common.train.loop import Loop
from common.train.step import State
from tests.common.train import naive_toy, toy

# Learning rates are float32 numbers; these are exact in it.
SGD = Optimizer("sgd", base_learning_rate=0.25, weight_decay=1e-2)
LARS = Optimizer("lars", base_learning_rate=1.0, eta=0.05, weight_decay=1e-2, epsilon=1e-5)
# The norm of most of the toy's gradients is larger.
LIMIT = 0.1
CLIPPED = dataclasses.replace(SGD, clip_norm=LIMIT)
# Several buckets, one of them with several weights.
BUCKETS = Communication(bucket_bytes=1500)


def config(**changes: Any) -> toy.Config:
    """Two epochs of four steps in float64, with batch norm over four examples and no target."""
    fields = {"precision": "fp64", "quality_target": 2.0, "train_epochs": 2, "batch_norm_span": 4}
    return toy.config(**{**fields, "optimizer": SGD, **changes})


def mirrored(number: int, communication: Communication = BUCKETS, **changes: Any) -> dict[str, Any]:
    return {"replicas": "mirrored", "num_replicas": number, "communication": communication, **changes}


def sharded(**changes: Any) -> Communication:
    return dataclasses.replace(BUCKETS, shard_weight_update=True, **changes)


def make(task: type[toy.Task] = toy.Task, **changes: Any) -> tuple[Loop, list[np.ndarray]]:
    """A loop, and the weights from which it starts."""
    chosen = config(**changes)
    loop = Loop(task(chosen), backends.make(chosen))
    return loop, weights(loop)


def weights(loop: Loop) -> list[np.ndarray]:
    """The trainable weights of the first replica; asserts that all replicas have the same."""
    copies = [loop.replicas.local_results(v) for v in loop.state.model.trainable_variables]
    for first, *others in copies:
        assert all(np.array_equal(first, other) for other in others), "replicas differ"
    return [first.numpy() for first, *_ in copies]


def of(kind: type, seen: list) -> list:
    return [event for event in seen if isinstance(event, kind)]


def losses(seen: list) -> list[float]:
    return [loss for event in of(events.Trained, seen) for loss in event.losses]


def assert_equals(loop: Loop, seen: list, naive: naive_toy.Training) -> None:
    np.testing.assert_allclose(losses(seen), naive.losses, rtol=1e-10)
    for mine, other in zip(weights(loop), naive.weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


# -- the loop ------------------------------------------------------------------------------------------------------


def test_the_loop_trains_and_evaluates_as_numpy_does() -> None:
    loop, start = make(train_epochs=3)
    loop.compile()
    seen = list(loop.run())
    naive = naive_toy.train(loop.config, start)
    assert_equals(loop, seen, naive)
    assert [e.value for e in of(events.Evaluated, seen)] == naive.values
    assert naive.losses[-1] < 0.9 * naive.losses[0], "it must train"
    block = ["BlockStarted", "Trained", "EvalRan", "Evaluated", "BlockStopped"]
    kinds = [type(e).__name__ for e in seen if not isinstance(e, events.Progress)]
    assert kinds == ["RunStarted", *3 * block, "RunStopped"]
    assert [e.block.first_step for e in of(events.BlockStarted, seen)] == [0, 4, 8]
    assert (seen[-1].status, seen[-1].step) == ("aborted", 12)


def test_the_loop_stops_at_the_evaluation_that_meets_the_target() -> None:
    loop, start = make()
    values = naive_toy.train(dataclasses.replace(loop.config, train_epochs=8), start).values
    best = int(np.argmax(values))
    assert 0 < best < 7
    loop, _ = make(train_epochs=8, quality_target=values[best])
    seen, saved = [], []
    for event in loop.run(saved.append):
        seen.append(event)
    assert [e.value for e in of(events.Evaluated, seen)] == values[: best + 1]
    assert (seen[-1].status, seen[-1].step, saved[-1]) == ("success", 4 * best + 4, 4 * best + 4)
