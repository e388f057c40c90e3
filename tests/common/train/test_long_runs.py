"""Tests long runs: fifty resumes equal an uninterrupted run; a process holds no more after many blocks."""

import pathlib

import numpy as np
import pytest

from common.train import checkpoint, events
from lab.bench.long_run import Holdings, holdings
from tests.common.train.loops import at_step, bits, run
from tests.common.train.test_checkpoint import toy_loop


@pytest.mark.parametrize("resumes", [3, pytest.param(50, marks=pytest.mark.e2e)])
def test_a_run_resumed_at_random_steps_equals_an_uninterrupted_one(
    resumes: int, tmp_path: pathlib.Path
) -> None:
    """Bitwise, moments, slots and counters included; some resumes begin inside a block, some before an evaluation."""
    changes = {"train_epochs": 2 * resumes}
    whole = toy_loop("single", 1, **changes)
    run(whole)
    total = whole.run_length.train_steps
    steps = np.sort(np.random.default_rng(resumes).choice(np.arange(1, total), resumes, replace=False))
    for number, step in enumerate(steps):
        loop = toy_loop("single", 1, **changes)
        if number:
            checkpoint.restore_latest(loop, tmp_path)
        run(loop, at_step(int(step)))
        checkpoint.save(loop, tmp_path)
    resumed = toy_loop("single", 1, **changes)
    checkpoint.restore_latest(resumed, tmp_path)
    run(resumed)
    assert bits(resumed) == bits(whole)


@pytest.mark.e2e
def test_a_thousand_blocks_leave_nothing_behind() -> None:
    """Memory grows by less than a kilobyte a block; handles and threads do not grow."""
    loop = toy_loop("single", 1, train_epochs=1100)
    resources: dict[int, Holdings] = {}

    def each(event: events.Event, _: object) -> None:
        if isinstance(event, events.Evaluated) and event.interval.index in (100, 1099):
            resources[event.interval.index] = holdings()

    run(loop, each)
    early, late = resources[100], resources[1099]
    assert late.handles <= early.handles and late.threads <= early.threads
    assert late.kilobytes - early.kilobytes < 1000
