"""Tests the sharded update against the whole one: optimizers and routes, on every backend that runs here."""

import functools

import numpy as np
import pytest

from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.common.distributed.updates import OPTIMIZERS, furthest, sharded

ROUTES = {
    "one bucket": (sharded(), 1 << 20),
    "a bucket each": (sharded(), 1),
    "2d": (sharded(algorithm="2d"),),
    "blocks": (sharded("blocks"),),
    "blocks of 2d sums": (sharded("blocks", algorithm="2d"),),
}


@functools.cache
def expected(optimizer):
    """The whole update on one replica."""
    return updates.free_run("single", 1, optimizer)


def check(result, optimizer, bound=1e-8):
    losses, copies, slots = result
    expected_losses, expected_copies, expected_slots = expected(optimizer)
    np.testing.assert_allclose(losses, expected_losses, rtol=bound)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5]), "it must train"
    assert furthest([c[0] for c in copies], [c[0] for c in expected_copies]) <= bound
    assert furthest(slots, expected_slots) <= bound
    for values in copies:
        assert all(np.array_equal(values[0], value) for value in values), "replicas differ"


@pytest.mark.parametrize(
    "optimizer, number",
    [(name, 4) for name in OPTIMIZERS]
    + [(o, n) for o in ("sgd", "lars", "adam", "lazy_adam") for n in (1, 2)],
)
def test_sharded_equals_whole_over_20_steps(optimizer, number):
    check(updates.free_run("mirrored", number, optimizer, sharded()), optimizer)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("optimizer", ["lars", "lazy_adam"])
@pytest.mark.parametrize("backend", ["mirrored", "pjrt"])
def test_every_route_equals_the_whole_update(backend, optimizer, route):
    processes.require(backend)
    check(updates.free_run(backend, 4, optimizer, *ROUTES[route]), optimizer)


LATER = ("adamw", "lamb")


@pytest.mark.parametrize("optimizer", LATER)
def test_compiled_devices_equal_the_whole_update(optimizer):
    processes.require("pjrt")
    check(updates.free_run("pjrt", 4, optimizer, sharded()), optimizer)


def test_lamb_takes_another_route():
    check(updates.free_run("mirrored", 4, "lamb", *ROUTES["blocks"]), "lamb")


def test_one_replica_equals_the_whole_update_without_a_backend():
    check(updates.free_run("single", 1, "lars", sharded()), "lars")


@pytest.mark.parametrize("route", ["one bucket", "blocks"])
@pytest.mark.parametrize("optimizer, slots", [("sgd", 1), ("lars", 1), ("adam", 2), ("lazy_adam", 2)])
def test_slots_exist_for_the_shard_only(optimizer, slots, route):
    runner = updates.Runner("mirrored", 4, optimizer, *ROUTES[route])
    shapes = [w.shape for w in runner.state.model.trainable_variables]
    # Padding: less than a row of the table, less than an element of each other weight.
    elements, padding = sum(s.num_elements() for s in shapes), len(shapes) + 3
    assert elements / 4 <= runner.slot_elements() / slots <= elements / 4 + padding


def test_one_small_all_reduce_carries_the_norms_of_all_layers(monkeypatch):
    runner = updates.Runner("mirrored", 2, "lars", sharded())
    sizes, all_reduce = [], runner.replicas.all_reduce

    def spy(x, groups=None):
        sizes.append(x.shape.as_list())
        return all_reduce(x, groups)

    monkeypatch.setattr(runner.replicas, "all_reduce", spy)
    runner.steps(1)
    # Each replica traces the step: norms of the weight and of the gradient, for two kernels and the table.
    assert sizes.count([6]) == 2
