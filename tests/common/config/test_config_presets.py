"""Tests what the presets of several benchmarks share: names, LEGW's families, logged keys."""

import dataclasses

import pytest

from common.config.legw import legw
from common.config.optimizer import Adam, Sgd
from common.config.presets import legw_family, momentum_key, named, solver_keys, without_metadata
from common.config.schedule import Constant
from common.config.schema import RunConfig

BASE = RunConfig(
    num_train_examples=800,
    num_eval_examples=8,
    global_batch_size=8,
    optimizer=Sgd(base_learning_rate=0.5, momentum=0.7),
    schedule=Constant(warmup_epochs=0.25),
)


def test_names_keep_the_order() -> None:
    got = named({"b": BASE, "a": BASE})
    assert [(name, config.system) for name, config in got.items()] == [("b", "b"), ("a", "a")]
    assert dataclasses.replace(got["a"], system="") == BASE


def test_a_family_is_legw_of_each_doubling() -> None:
    family = legw_family(BASE, name="of-{batch}", source="8 x {factor}", doublings=2)
    assert list(family) == ["of-8", "of-16", "of-32"]
    for factor, config in zip((1, 2, 4), family.values(), strict=True):
        assert config == dataclasses.replace(legw(BASE, factor), source=f"8 x {factor}")


def test_logged_keys_are_those_of_the_run() -> None:
    """A warmup in steps wins over one in epochs; solvers without momentum log none."""
    warmed = dataclasses.replace(BASE, schedule=dataclasses.replace(BASE.schedule, warmup_steps=150.0))
    assert solver_keys(warmed) == {
        "opt_name": "sgd",
        "opt_base_learning_rate": 0.5,
        "opt_learning_rate_warmup_epochs": pytest.approx(1.5),
        "opt_learning_rate_schedule": "constant",
    }
    assert solver_keys(BASE)["opt_learning_rate_warmup_epochs"] == 0.25
    assert momentum_key(BASE) == {"opt_momentum": 0.7}
    assert momentum_key(dataclasses.replace(BASE, optimizer=Adam())) == {}
    assert without_metadata({"b": 1, "a": 2}) == [("b", 1, {}), ("a", 2, {})]
