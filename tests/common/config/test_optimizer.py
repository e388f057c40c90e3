"""Tests that an optimizer's name is enough on a command line, and that a field of another rule is refused."""

import dataclasses

import pytest

from common.config.digest import digest, from_dict, to_dict
from common.config.optimizer import Adam, Optimizer, OwnRule, Sgd
from common.config.overrides import configure, split_overrides
from common.config.rules import OPTIMIZERS, SCHEDULES
from common.config.schema import RunConfig
from common.errors import UserError
from mnist.presets import PRESETS
from transformer.presets import PRESETS as TRANSFORMER


def optimizer(*flags: str, presets: dict = PRESETS) -> Optimizer:
    overrides, _ = split_overrides([f"--config.optimizer.{flag}" for flag in flags])
    return configure(presets, None, "cpu-tiny", overrides).optimizer


def test_a_rule_of_your_own_has_every_field() -> None:
    listed = {field.name for rule in OPTIMIZERS.classes.values() for field in dataclasses.fields(rule)}
    assert listed == {field.name for field in dataclasses.fields(OwnRule)}


@pytest.mark.parametrize("name", OPTIMIZERS.classes)
def test_a_name_alone_is_enough(name: str) -> None:
    rule = optimizer(f"name={name}")
    assert (type(rule), rule.base_learning_rate) == (
        OPTIMIZERS.classes[name],
        PRESETS["cpu-tiny"].optimizer.base_learning_rate,
    )
    for config in (rule, OPTIMIZERS.make(name)):
        config.check()
        assert from_dict(RunConfig, to_dict(RunConfig(optimizer=config))).optimizer == config


def test_a_saved_optimizer_of_an_earlier_version_is_read() -> None:
    """It has the fields of every rule."""
    config = RunConfig(optimizer=Adam(0.01, beta_2=0.98))
    every = dataclasses.asdict(OPTIMIZERS.every_field(config.optimizer))
    again = from_dict(RunConfig, {**to_dict(config), "optimizer": every})
    assert every["eta"] == 0.001 and again == config and digest(again) == digest(config)


def test_a_rule_has_its_own_defaults_and_keeps_what_both_read() -> None:
    lamb = optimizer("name=lamb", presets=TRANSFORMER)
    assert (lamb.beta_1, lamb.beta_2, lamb.epsilon) == (0.9, 0.98, 1e-9)
    assert optimizer("name=adam", presets=TRANSFORMER).beta_2 == 0.98


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["rho=0.5"],
            "rho=0.5: sgd does not read it, rmsprop, adadelta do; sgd has momentum, nesterov",
        ),
        (["name=adm"], "config.optimizer.name='adm': unknown .did you mean adam"),
        (["name=adamw", "momentum=0.5"], "momentum=0.5: adamw does not read it"),
        (["momentum=0.5", "name=adamw"], "momentum=0.5: adamw does not read it"),
        (["name=muon"], "name=muon: earlier versions had this rule; take adamw, lamb or a rule of your own"),
        (["grafting=sgd"], "grafting=sgd: earlier versions had this field"),
    ],
)
def test_a_field_of_another_rule_is_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        optimizer(*flags)


def test_the_api_refuses_a_field_of_another_rule() -> None:
    with pytest.raises(UserError, match="rho=0.5: sgd does not read it"):
        OPTIMIZERS.make("sgd", rho=0.5)
    with pytest.raises(TypeError):
        Sgd(rho=0.5)


@pytest.mark.parametrize("kind", SCHEDULES.classes)
def test_a_kind_of_schedule_is_read_in_its_old_form_and_keeps_the_warmup(kind: str) -> None:
    before = PRESETS["cpu-tiny"].schedule
    schedule = SCHEDULES.renamed(before, kind)
    assert (type(schedule), schedule.warmup_epochs) == (SCHEDULES.classes[kind], before.warmup_epochs)
    config = RunConfig(schedule=schedule)
    every = dataclasses.asdict(SCHEDULES.every_field(schedule))
    assert every["power"] == 2.0 and from_dict(RunConfig, {**to_dict(config), "schedule": every}) == config


def test_a_field_of_another_kind_of_schedule_is_refused() -> None:
    flags = ["--config.schedule.boundaries=3", "--config.schedule.kind=poly"]
    with pytest.raises(UserError, match=r"boundaries=3: poly does not read it, step does; poly has .*power"):
        configure(PRESETS, None, "cpu-tiny", split_overrides(flags)[0])
    config = configure(PRESETS, None, "cpu-tiny", [("schedule.kind", "poly"), ("schedule.power", "3")])
    assert (config.schedule.kind, config.schedule.power) == ("poly", 3.0)
