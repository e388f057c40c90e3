"""Evaluations by a pool of workers: the loop never waits for one that fits into a block."""

from __future__ import annotations

import os
import pathlib
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from common import events
from common import replicas as backends
from common.errors import UserError
from common.evaluator import Evaluator
from common.loop import Loop
from tests.common import toy

STEPS = 4  # Of a block.
PATIENCE = 120.0  # Seconds after which a worker gives up: only a loop that waits for it needs them.


def wait_for(path: str) -> int:
    """The number of the process that waited until there was such a file."""
    end = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise ValueError(f"{path} did not come: the loop waits for this evaluation")
        time.sleep(0.02)
    return os.getpid()


class Pooled(toy.Task):
    """Its steps sleep and do nothing else of note; an evaluation ends only after the next block's second step."""

    evaluation_workers = 2

    def __init__(self, config: toy.Config, folder: pathlib.Path):
        super().__init__(config, True)
        self.folder, self.steps, self.blocks = folder, 0, 0

    def train_input(self, shard, batch_size, start_step):
        def slept(x: np.ndarray) -> np.ndarray:
            time.sleep(0.01)
            self.steps += 1
            (self.folder / str(self.steps)).touch()
            return x

        def map_one(batch: dict) -> dict:
            x = tf.numpy_function(slept, [batch["x"]], batch["x"].dtype)
            return {**batch, "x": tf.ensure_shape(x, batch["x"].shape)}

        return super().train_input(shard, batch_size, start_step).map(map_one)

    def quality(self, sums, arrays, spread=map):
        result = super().quality(sums, arrays)
        self.blocks += 1
        # The last evaluation is followed by no step.
        step = min(self.blocks * STEPS + 2, self.config.train_steps)
        workers = set(spread(wait_for, [str(self.folder / str(step))] * 8))
        return toy.Quality(result.value, False, {"main": os.getpid() in workers, "workers": len(workers)})


class Failing(Pooled):
    def quality(self, sums, arrays, spread=map):
        return list(spread(int, ["no number"]))


def loop(task: type, folder: pathlib.Path) -> Loop:
    config = toy.config(quality_target=2.0, steps_per_block=STEPS, train_steps=3 * STEPS)
    return Loop(task(config, folder), backends.make(config))


def test_the_loop_never_waits_for_an_evaluation_that_fits_into_a_block(tmp_path):
    seen = [e for e in loop(Pooled, tmp_path).run() if not isinstance(e, events.Progress)]
    evaluated = [e for e in seen if isinstance(e, events.Evaluated)]
    assert [e.block.index for e in evaluated] == [0, 1, 2]
    assert not any(e.details["main"] for e in evaluated) and all(
        1 <= e.details["workers"] <= 2 for e in evaluated
    )
    # The first two could not end before the second step of the block that follows: it was not waited for.
    started = [e for e in seen if isinstance(e, events.BlockStarted)]
    for event, following in zip(evaluated, started[1:]):
        assert seen.index(following) < seen.index(event)


def test_what_a_worker_says_is_wrong_ends_the_run(tmp_path):
    with pytest.raises(UserError, match="evaluation: invalid literal for int"):
        list(loop(Failing, tmp_path).run())


@pytest.mark.parametrize("wrong", [KeyError("area"), IndexError("out of range")])
def test_a_lookup_that_fails_is_one_line(wrong):
    def quality(sums, arrays):
        raise wrong

    evaluator = Evaluator(types.SimpleNamespace(quality=quality, evaluate_in_worker=False))
    evaluator.submit(None, {}, {})
    with pytest.raises(UserError, match=f"evaluation: .* lack something .{type(wrong).__name__}: "):
        list(evaluator.finished())
