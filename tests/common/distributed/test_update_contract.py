"""Tests that every `WeightUpdate` keeps the same promises, whichever part of the weights a replica updates."""

import functools

import numpy as np
import pytest

from common.config.schema import Communication
from common.distributed.block_update import BlockUpdate
from common.distributed.sharded_update import ShardedUpdate
from common.distributed.weight_update import WholeUpdate
from tests.common.distributed import updates
from tests.common.distributed.updates import sharded

FORMS = {
    "whole": (WholeUpdate, Communication()),
    "sharded": (ShardedUpdate, sharded()),
    # Parts are not in the order of the replicas.
    "2d": (ShardedUpdate, sharded(algorithm="2d")),
    "blocks": (BlockUpdate, sharded("blocks")),
}
# Two slots; slots for rows of a table; scalar slots.
RULES = ("adam", "lazy_adam", "own")


@functools.cache
def runner_of(form, rule):
    runner = updates.Runner("mirrored", 4, rule, FORMS[form][1])
    assert type(runner.state.update) is FORMS[form][0]
    return runner


@pytest.fixture(
    scope="module",
    params=[(form, rule) for form in FORMS for rule in RULES],
    ids="-".join,
)
def runner(request):
    return runner_of(*request.param)


def test_slots_are_read_as_they_were_written(runner):
    rule = runner.config.optimizer.name if not runner.config.optimizer.is_plugin else "own"
    update, rng = runner.state.update, np.random.default_rng(0)
    shapes = update.slot_shapes
    scalars = {n: rng.normal(size=()) for n, shape in shapes[0].items() if shape == ()}
    values = [{n: scalars.get(n, rng.normal(size=shape)) for n, shape in one.items()} for one in shapes]
    update.write_slots(lambda i, name: values[i][name])
    mine = {(i, name): value for i, name, value in update.each_slot()}
    assert mine.keys() == {(i, name) for i, one in enumerate(values) for name in one}
    for (i, name), value in mine.items():
        np.testing.assert_array_equal(value, values[i][name])
    assert shapes == runner_of("whole", rule).state.update.slot_shapes
