"""Makes and runs whole loops, and reads what they show, for tests that compare runs."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from common.distributed import replicas
from common.train import checkpoint, events
from common.train.loop import Loop
from tests.common.distributed.replicas import processes
from tests.common.train import toy

Trained = tuple[list[float], list[np.ndarray], Any]


def make(task: Callable[[toy.Config], toy.Task] = toy.Task, **changes: Any) -> Loop:
    """A loop of the toy, without a target; skips the test where its backend is not installed."""
    config = toy.config(**{"quality_target": 2.0, **changes})
    processes.require(config.replicas)
    return Loop(task(config), replicas.make(config))


def of(kind: type, seen: Iterable[Any]) -> list[Any]:
    return [event for event in seen if isinstance(event, kind)]


def losses(seen: Iterable[Any]) -> list[float]:
    return [loss for event in of(events.Trained, seen) for loss in event.losses]


def bits(loop: Loop) -> list[list[bytes]]:
    """Every variable of every replica: weights, moments, slots, loss scale, counters."""
    local = loop.replicas.local_results
    return [[np.array(x.numpy()).tobytes() for x in local(v)] for v in loop.state.variables()]


def weights_and_slots(loop: Loop) -> list[np.ndarray]:
    """The trainable weights, then the slots of whole weights."""
    local = loop.replicas.local_results
    slots = [x for slots in loop.state.update.read_slots() for _, x in sorted(slots.items())]
    return [local(v)[0].numpy() for v in loop.state.model.trainable_variables] + slots


def train(loop: Loop) -> Trained:
    """Trains; returns losses, final weights and `loop.task.found`, which the task's `quality` must fill."""
    trained = losses(loop.run())
    weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
    return trained, weights, loop.task.found


def train_compiled(loop: Loop) -> Trained:
    """Like `train`, and asserts that nothing is traced once the loop is compiled."""
    loop.compile()
    traced = loop._block._block.experimental_get_tracing_count()
    found = train(loop)
    assert loop._block._block.experimental_get_tracing_count() == traced
    return found


def train_resumed(make: Callable[..., Loop], folder: os.PathLike) -> Trained:
    """Like `train` with two loops of `make`: one until a checkpoint after three steps, another from there."""
    first, begun = make(steps_per_block=3), []
    for event in first.run():
        if isinstance(event, events.Trained):
            begun += event.losses
            break
    checkpoint.save(first, folder)
    second = make(steps_per_block=3)
    assert checkpoint.restore_latest(second, folder) == 3
    rest, weights, found = train(second)
    return [*begun, *rest], weights, found


def assert_alike(found: Trained, expected: Trained, losses: float, weights: float, least: float) -> None:
    """Compares losses to the relative tolerance `losses`, weights to `weights`, or to `least` where that is larger."""
    np.testing.assert_allclose(found[0], expected[0], rtol=losses)
    for mine, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=weights, atol=least)
