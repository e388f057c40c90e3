"""Tests that an optimizer's name is enough on a command line, and that a field of another rule is refused."""

import dataclasses

import pytest

from common.config import rules
from common.config.overrides import configure, split_overrides
from common.config.schema import Optimizer
from common.config.validation import OPTIMIZERS
from common.errors import UserError
from mnist.presets import PRESETS
from transformer.presets import PRESETS as TRANSFORMER


def optimizer(*flags: str, presets: dict = PRESETS) -> Optimizer:
    overrides, _ = split_overrides([f"--config.optimizer.{flag}" for flag in flags])
    return configure(presets, None, "cpu-tiny", overrides).optimizer


def test_every_rule_and_every_field_is_listed() -> None:
    assert tuple(rules.READ) == OPTIMIZERS
    listed = {*rules.SHARED, *(field for fields in rules.READ.values() for field in fields)}
    assert listed == {field.name for field in dataclasses.fields(Optimizer)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_name_alone_is_enough(name: str) -> None:
    found = optimizer(f"name={name}")
    assert (found.name, found.base_learning_rate) == (name, PRESETS["cpu-tiny"].optimizer.base_learning_rate)


def test_a_rule_has_its_own_defaults_and_keeps_what_both_read() -> None:
    muon = optimizer("nesterov=false", "name=muon")
    assert (muon.momentum, muon.nesterov, muon.epsilon) == (0.95, False, 1e-8)
    soap = optimizer("name=soap", presets=TRANSFORMER)
    assert (soap.beta_1, soap.beta_2, soap.epsilon) == (0.95, 0.95, 1e-9)
    assert optimizer("name=adam", presets=TRANSFORMER).beta_2 == 0.98


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["root_interval=5"],
            "root_interval=5: sgd does not read it, shampoo, soap do; sgd has momentum, nesterov",
        ),
        (["name=adamw", "momentum=0.5"], "momentum=0.5: adamw does not read it"),
        (["momentum=0.5", "name=adamw"], "momentum=0.5: adamw does not read it"),
        (["name=shampoo", "orthogonal_steps=3"], "orthogonal_steps=3: shampoo does not read it, muon do"),
    ],
)
def test_a_field_of_another_rule_is_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        optimizer(*flags)
