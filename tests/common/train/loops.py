"""Makes and runs whole loops, and reads what they show, for tests that compare runs."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from common.distributed import replicas
from common.train import checkpoint, events
from common.train.checkpoint_times import Checkpoints
from common.train.guard import Guard
from common.train.listener import Listener
from common.train.loop import Loop
from common.train.programs import Programs
from tests.common.distributed.replicas import processes
from tests.common.train import toy

Trained = tuple[list[float], list[np.ndarray], Any]


def make(task: Callable[[toy.Config], toy.Task] = toy.Task, **changes: Any) -> Programs:
    """The toy's programs, without a target; skips the test where its backend is not installed."""
    config = toy.config(**{"quality_target": 2.0, **changes})
    processes.require(config.replicas)
    return Programs(task(config), replicas.make(config))


class Recorder(Listener):
    """Keeps a run's events, and calls `each(event, loop)` for each."""

    def __init__(self, each: Callable[[events.Event, Loop], Any] = lambda event, loop: None):
        self.events: list[Any] = []
        self.each = each
        self.loop: Any = None

    def on_event(self, event: events.Event) -> None:
        self.events.append(event)
        self.each(event, self.loop)


def loop_of(
    programs: Programs,
    recorder: Recorder,
    *listeners: Listener,
    save: Callable[[Loop], Any] | None = None,
    seconds: float = 0.0,
    guard_steps: int = 0,
) -> Loop:
    """A loop whose events `recorder` keeps; with `save`, it saves every `seconds` and after `checkpoint_blocks`."""
    guard, every = Guard(programs, guard_steps), programs.config.checkpoint_blocks
    saves = [Checkpoints(save, guard, every, seconds)] if save else []
    recorder.loop = Loop(programs, [recorder, guard, *listeners, *saves])
    return recorder.loop


def run(
    programs: Programs,
    each: Callable[[events.Event, Loop], Any] = lambda event, loop: None,
    *listeners: Listener,
    pending: Any = (),
    **options: Any,
) -> list[Any]:
    """Runs to the end; returns the events. `options` as in `loop_of`."""
    recorder = Recorder(each)
    loop_of(programs, recorder, *listeners, **options).run(pending)
    return recorder.events


def saves(folder: os.PathLike, keep: int = checkpoint.KEEP) -> Callable[[Loop], Any]:
    """A `save` that writes checkpoints."""
    return lambda loop: checkpoint.save(loop.programs, folder, keep, pending=loop.pending)


def notes(steps: list[int]) -> Callable[[Loop], Any]:
    """A `save` that only notes the step."""
    return lambda loop: steps.append(loop.step)


def stops(condition: Callable[[Any], bool], reason: str = "SIGTERM") -> Callable[[events.Event, Loop], Any]:
    """An `each` that stops the run at the first event that meets a condition."""
    return lambda event, loop: loop.stop(reason) if condition(event) else None


def at_step(step: int) -> Callable[[events.Event, Loop], Any]:
    """An `each` that stops the run at `step`."""
    return stops(lambda event: isinstance(event, events.Progress) and event.step >= step)


def of(kind: type, history: Iterable[Any]) -> list[Any]:
    return [event for event in history if isinstance(event, kind)]


def losses(history: Iterable[Any]) -> list[float]:
    return [loss for event in of(events.Trained, history) for loss in event.losses]


def bits(loop: Programs) -> list[list[bytes]]:
    """Every variable of every replica: weights, moments, slots, loss scale, counters."""
    local = loop.replicas.local_results
    return [[np.array(x.numpy()).tobytes() for x in local(v)] for v in loop.state.variables()]


def weights_and_slots(loop: Programs) -> list[np.ndarray]:
    """The trainable weights, then the slots of whole weights."""
    local = loop.replicas.local_results
    return [local(v)[0].numpy() for v in loop.state.model.trainable_variables] + slots_of(loop)


def slots_of(loop: Programs) -> list[np.ndarray]:
    """The slots of whole weights, by weight and name."""
    return [x for *_, x in sorted(loop.state.update.each_slot(), key=lambda slot: slot[:2])]


def train(loop: Programs) -> Trained:
    """Trains; returns losses, final weights and `loop.task.answers`, which the task's `quality` must fill."""
    trained = losses(run(loop))
    weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
    return trained, weights, loop.task.answers


def train_compiled(loop: Programs) -> Trained:
    """Like `train`, and asserts that nothing is traced once the loop is compiled."""
    loop.compile()
    traced = loop.block._block.experimental_get_tracing_count()
    result = train(loop)
    assert loop.block._block.experimental_get_tracing_count() == traced
    return result


def train_resumed(make: Callable[..., Programs], folder: os.PathLike) -> Trained:
    """Like `train` with two loops of `make`: one until a checkpoint after three steps, another from there."""
    first = make(steps_per_block=3)
    start = losses(run(first, stops(lambda event: isinstance(event, events.Trained))))
    checkpoint.save(first, folder)
    second = make(steps_per_block=3)
    assert checkpoint.restore_latest(second, folder).step == 3
    rest, weights, quality = train(second)
    return [*start, *rest], weights, quality


def assert_alike(actual: Trained, expected: Trained, losses: float, weights: float, least: float) -> None:
    """Compares losses to the relative tolerance `losses`, weights to `weights`, or to `least` where that is larger."""
    np.testing.assert_allclose(actual[0], expected[0], rtol=losses)
    for mine, other in zip(actual[1], expected[1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=weights, atol=least)
