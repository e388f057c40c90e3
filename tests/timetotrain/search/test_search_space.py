"""Tests search spaces: their forms, and the errors before anything runs."""

import dataclasses

import pytest

from common.errors import UserError
from mnist.presets import PRESETS
from timetotrain.search import space

BASE = PRESETS["cpu-tiny"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("optimizer.learning_rate=0.1..1", "no field 'learning_rate'.*base_learning_rate"),
        ("global_batch_size=32..64.5", "--config.global_batch_size=64.5: not a whole number"),
        ("global_batch_size=32,many", "--config.global_batch_size=many: not a whole number"),
        ("model=lstm..mlp", "not a range of numbers"),
        ("optimizer.momentum=0.9..0.5", "an empty range"),
        ("optimizer.base_learning_rate=0..1:log", "an empty range"),
        ("global_batch_size=32..64:1.5", "a step of 1.5 is not"),
        ("global_batch_size", "not understood; write FIELD=A,B,C or"),
        ("optimizer=0.1", "'optimizer' is a group"),
    ],
)
def test_a_bad_space_is_refused_in_one_line_before_anything_runs(entry: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        space.parse([entry], BASE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["model=lstm,cmn"], "--space model: cmn cannot be: config.model='cmn'"),
        (["global_batch_size=64..70000"], "--space global_batch_size: 70000 cannot be"),
        (["precision=fp32,fp31", "train_epochs=1..3"], "--space precision: fp31 cannot be"),
    ],
)
def test_a_value_without_any_valid_configuration_is_refused(entries, message) -> None:
    with pytest.raises(UserError, match=message) as error:
        space.check(space.parse(entries, BASE), BASE)
    assert "\n" not in str(error.value)


def test_a_value_that_is_valid_with_some_other_value_is_accepted() -> None:
    """Four replicas alone do not divide a batch of 50."""
    parsed = space.parse(["num_replicas=1,4", "global_batch_size=50,64"], BASE)
    space.check(parsed, dataclasses.replace(BASE, replicas="mirrored"))


def test_ranges_keep_the_type_of_their_field() -> None:
    parsed = space.parse(["global_batch_size=32..128:32", "optimizer.weight_decay=0..1", "legw=1..8:1"], BASE)
    assert [type(d).__name__ for d in parsed.values()] == [
        "IntDistribution",
        "FloatDistribution",
        "FloatDistribution",
    ]
    del parsed["optimizer.weight_decay"]
    assert space.axes(parsed) == {
        "global_batch_size": [32, 64, 96, 128],
        "legw": [float(i) for i in range(1, 9)],
    }
    values = {"legw": 2.0, "global_batch_size": 32}
    assert space.configured(BASE, values).global_batch_size == 64
