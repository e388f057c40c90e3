"""Tests that an optimizer's name is enough on a command line, and that a field of another rule is refused."""

import dataclasses

import pytest

from common.config.digest import digest, from_dict, to_dict
from common.config.optimizer import Adam, Optimizer, OwnRule, Sgd
from common.config.overrides import configure, split_overrides
from common.config.rules import RULES, named
from common.config.schema import RunConfig
from common.errors import UserError
from mnist.presets import PRESETS
from transformer.presets import PRESETS as TRANSFORMER


def optimizer(*flags: str, presets: dict = PRESETS) -> Optimizer:
    overrides, _ = split_overrides([f"--config.optimizer.{flag}" for flag in flags])
    return configure(presets, None, "cpu-tiny", overrides).optimizer


def test_a_rule_of_your_own_has_every_field() -> None:
    listed = {field.name for rule in RULES.values() for field in dataclasses.fields(rule)}
    assert listed == {field.name for field in dataclasses.fields(OwnRule)}


@pytest.mark.parametrize("name", RULES)
def test_a_name_alone_is_enough(name: str) -> None:
    rule = optimizer(f"name={name}")
    assert (type(rule), rule.base_learning_rate) == (
        RULES[name],
        PRESETS["cpu-tiny"].optimizer.base_learning_rate,
    )
    for config in (rule, named(name)):
        config.check()
        assert from_dict(RunConfig, to_dict(RunConfig(optimizer=config))).optimizer == config


def test_a_saved_optimizer_of_an_earlier_version_is_read() -> None:
    """It has the fields of every rule."""
    config = RunConfig(optimizer=Adam(0.01, beta_2=0.98))
    every = dataclasses.asdict(config.optimizer.every_field())
    again = from_dict(RunConfig, {**to_dict(config), "optimizer": every})
    assert every["eta"] == 0.001 and again == config and digest(again) == digest(config)


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
        (["name=adm"], "config.optimizer.name='adm': unknown .did you mean adam"),
        (["name=adamw", "momentum=0.5"], "momentum=0.5: adamw does not read it"),
        (["momentum=0.5", "name=adamw"], "momentum=0.5: adamw does not read it"),
        (["name=shampoo", "orthogonal_steps=3"], "orthogonal_steps=3: shampoo does not read it, muon do"),
    ],
)
def test_a_field_of_another_rule_is_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        optimizer(*flags)


def test_the_api_refuses_a_field_of_another_rule() -> None:
    with pytest.raises(UserError, match="root_interval=5: sgd does not read it"):
        named("sgd", root_interval=5)
    with pytest.raises(TypeError):
        Sgd(root_interval=5)
