"""Tests the sharded update in several processes of Horovod and multiworker against the whole one on one replica."""

import functools
import pathlib

import numpy as np
import pytest

from common.config.schema import Communication
from common.train import checkpoint
from tests.common.distributed import test_gradient_sum, updates
from tests.common.distributed.replicas import processes
from tests.common.distributed.test_sharded_update import ROUTES, check
from tests.common.distributed.updates import furthest, sharded

# With 2 replicas every route is the flat one.
IN_PROCESSES = {
    "sgd": [sharded()], "lars": ROUTES["2d"], "adam": ROUTES["blocks"], "lazy_adam": ROUTES["a bucket each"],
    "adam clipped": [Communication("2d")], "lamb": [sharded()],
}  # fmt: skip


def resumed(backend, number, folder):
    """Trains 5 steps, saves, trains 15 more, then repeats the 15 from the checkpoint: weights, slots, moments."""
    first = updates.Runner(backend, number, "lazy_adam", sharded())
    first.steps(5)
    first.state.step.assign(5)
    checkpoint.save(first, folder)
    results = []
    for runner in (first, updates.Runner(backend, number, "lazy_adam", sharded())):
        if runner is not first:
            assert checkpoint.restore_latest(runner, folder).step == 5
        runner.steps(15, first=5)
        local = runner.replicas.local_results
        results.append([*(local(v)[0].numpy() for v in runner.state.model.variables), *runner.slots()])
    return results


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((b, n), id=f"{b}-{n}", marks=[pytest.mark.e2e] if n == 4 else [])
        for b in ("horovod", "multiworker")
        for n in (2, 4)
    ],
)
def world(request, tmp_path_factory):
    """(number of processes, the results of all calls, the folder with a checkpoint)."""
    backend, number = request.param
    folder = tmp_path_factory.mktemp("world")
    calls = {"sums": functools.partial(test_gradient_sum.sums, backend, number, "float64")}
    for optimizer, route in IN_PROCESSES.items():
        calls[optimizer] = functools.partial(updates.free_run, backend, number, optimizer, *route)
    calls["resumed"] = functools.partial(resumed, backend, number, folder)
    return number, processes.run(backend, number, calls), folder


def test_processes_sum_as_numpy_does(world):
    number, results, _ = world
    by_process = results["sums"]
    merged = {name: [copy for result in by_process for copy in result[name]] for name in by_process[0]}
    test_gradient_sum.check_sums(merged, number, "float64")


@pytest.mark.parametrize("optimizer", IN_PROCESSES)
def test_processes_equal_the_whole_update_on_one(world, optimizer):
    _, results, _ = world
    by_process = results[optimizer]
    for result in by_process:
        check(result, optimizer)
        for mine, first in zip(result[1], by_process[0][1], strict=True):
            np.testing.assert_array_equal(mine[0], first[0], "replicas differ")


def test_processes_resume_bitwise_and_one_replica_restores_what_they_wrote(world):
    _, results, folder = world
    for uninterrupted, after in results["resumed"]:
        for mine, other in zip(after, uninterrupted, strict=True):
            np.testing.assert_array_equal(mine, other)
    assert [p.name for p in pathlib.Path(folder).iterdir()] == ["checkpoint_00000005.npz"]
    alone = updates.Runner("single", 1, "lazy_adam")
    assert checkpoint.restore_latest(alone, folder).step == 5
    alone.steps(15, first=5)
    for after, _ in results["resumed"]:
        assert furthest(after[-len(alone.slots()) :], alone.slots()) <= 1e-8
