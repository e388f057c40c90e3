"""Tests that every `WeightUpdate` keeps the same promises, whichever part of the weights a replica updates."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import Communication
from common.distributed.block_update import BlockUpdate
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.weight_update import WholeUpdate
from tests.common.distributed import updates
from tests.common.distributed.updates import furthest, sharded

FORMS = {
    "whole": (WholeUpdate, Communication()),
    "sharded": (ShardedUpdate, sharded()),
    # Parts are not in the order of the replicas.
    "2d": (ShardedUpdate, sharded(algorithm="2d")),
    "blocks": (BlockUpdate, sharded(shard_in_blocks=True)),
}
# Two slots; slots for rows of a table; scalar slots and averages; slots of matrices.
RULES = ("adam", "lazy_adam", "schedule_free_adamw", "shampoo")


@functools.cache
def runner_of(form, rule):
    runner = updates.Runner("mirrored", 4, rule, FORMS[form][1])
    assert type(runner.state.update) is FORMS[form][0]
    return runner


@pytest.fixture(
    scope="module",
    params=[(form, rule) for form in FORMS for rule in RULES if (form, rule) != ("blocks", "shampoo")],
    ids="-".join,
)
def runner(request):
    return runner_of(*request.param)


def test_slots_are_read_as_they_were_written(runner):
    update, rng = runner.state.update, np.random.default_rng(0)
    shapes = update.slot_shapes
    scalars = {n: rng.normal(size=()) for n, shape in shapes[0].items() if shape == ()}
    values = [{n: scalars.get(n, rng.normal(size=shape)) for n, shape in one.items()} for one in shapes]
    update.write_slots(values)
    for mine, written in zip(update.read_slots(), values, strict=True):
        assert mine.keys() == written.keys()
        for name, value in written.items():
            np.testing.assert_array_equal(mine[name], value)
    assert shapes == runner_of("whole", runner.config.optimizer.name).state.update.slot_shapes


def test_only_shampoo_reports_roots(runner):
    runner.state.update.write_slots(
        [{n: np.ones(shape) for n, shape in one.items()} for one in runner.state.update.slot_shapes]
    )
    report, shapes = runner.state.update.report(), runner.state.update.slot_shapes
    roots = sum(int(np.prod(one["kept_roots"])) for one in shapes if "kept_roots" in one)
    assert report == ({"kept_roots": roots} if runner.config.optimizer.name == "shampoo" else {})


def test_an_update_that_is_not_finite_is_skipped_on_every_replica(runner):
    """One element on the last replica is infinite."""
    state, replicas = runner.state, runner.replicas
    before, slots, told = runner.copies(), runner.slots(), []

    def apply():
        first, *rest = [tf.ones(w.shape, w.dtype) for w in state.model.trainable_variables]
        last = tf.cast(tf.equal(replicas.replica_id(), 3), first.dtype)
        bad = [tf.tensor_scatter_nd_update(first, [[0] * first.shape.rank], [1 / (1 - last)]), *rest]
        rate, step = tf.constant(1.0, tf.float64), tf.constant(1, tf.int64)
        state.update.apply(bad, rate, step, lambda finite: told.append(finite) or [tf.cast(finite, tf.int32)])
        return tf.cast(told[-1], tf.int32)

    finite = tf.function(lambda: replicas.local_results(replicas.run(apply)), autograph=False)()
    assert [int(x) for x in finite] == [0] * 4
    assert furthest(sum(runner.copies(), []), sum(before, [])) == 0
    assert furthest(runner.slots(), slots) == 0


@pytest.mark.parametrize("form", FORMS)
def test_averages_take_the_weights_place_and_leave_it_bit_for_bit(form):
    runner = runner_of(form, "schedule_free_adamw")
    runner.steps(3)
    update, replicas, before = runner.state.update, runner.replicas, runner.copies()

    def swap(to_average):
        def on_one():
            with tf.control_dependencies(update.swap(to_average)):
                return tf.constant(0)

        tf.function(lambda: replicas.local_results(replicas.run(on_one)), autograph=False)()
        return runner.copies()

    averaged = swap(True)
    assert furthest(sum(averaged, []), sum(before, [])) > 1e-6
    assert all(np.array_equal(copies[0], x) for copies in averaged for x in copies)
    assert furthest(sum(swap(False), []), sum(before, [])) == 0
