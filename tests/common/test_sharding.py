"""The sharded update against the whole one: four optimizers and more, every route, on every backend that runs here."""

import functools

import numpy as np
import pytest

from tests.common import updates
from tests.common.updates import OPTIMIZERS, furthest, sharded

ROUTES = {
    "one bucket": sharded(bucket_bytes=1 << 20),
    "a bucket each": sharded(bucket_bytes=1),
    "hierarchical": sharded(algorithm="hierarchical", group_size=2),
    "2d": sharded(algorithm="2d"),
}


@functools.cache
def expected(optimizer):
    """The whole update on one replica."""
    return updates.free_run("single", 1, optimizer)


def check(result, optimizer):
    losses, copies, slots = result
    expected_losses, expected_copies, expected_slots = expected(optimizer)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-8)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5]), "it must train"
    assert furthest([c[0] for c in copies], [c[0] for c in expected_copies]) <= 1e-8
    assert furthest(slots, expected_slots) <= 1e-8
    for values in copies:
        assert all(np.array_equal(values[0], value) for value in values), "replicas differ"


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sharded_equals_whole_over_20_steps(optimizer, number):
    check(updates.free_run("mirrored", number, optimizer, sharded()), optimizer)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("optimizer", ["lars", "lazy_adam"])
def test_every_route_equals_the_whole_update(optimizer, route):
    check(updates.free_run("mirrored", 4, optimizer, ROUTES[route]), optimizer)


def test_on_one_replica_without_a_backend():
    check(updates.free_run("single", 1, "lars", sharded()), "lars")


@pytest.mark.parametrize("optimizer, slots", [("sgd", 1), ("lars", 1), ("adam", 2), ("lazy_adam", 2)])
def test_slots_exist_for_the_shard_only(optimizer, slots):
    runner = updates.Runner("mirrored", 4, optimizer, sharded())
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
    # Each replica traces the step: two kernels and the table, a weight's norm and a gradient's of each.
    assert sizes.count([6]) == 2
