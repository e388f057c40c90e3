"""Tests overrides of configurations, their errors, JSON form and digest, and what presets of benchmarks share."""

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import overrides as configs
from common.config.digest import digest, from_dict, to_dict
from common.config.optimizer import Adam, Lars, Sgd
from common.config.presets import momentum_key, solver_keys, without_metadata
from common.config.schedule import Constant, Schedule, Step
from common.config.schema import RunConfig
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """A benchmark's configuration with a field of every type that may occur."""

    sizes: tuple[int, ...] = (1, 2)
    names: tuple[str, ...] = ()
    limit: int | None = None
    schedule: Schedule = Step(boundaries=(1.0,))


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("global_batch_size", "4096", 4096),
        ("optimizer.base_learning_rate", "31.2", 31.2),
        ("optimizer.base_learning_rate", "1e-3", 0.001),
        ("optimizer.base_learning_rate", "2", 2.0),
        ("optimizer.nesterov", "true", True),
        ("optimizer.nesterov", "0", False),
        ("optimizer.skip_kinds", "norm", ("norm",)),
        ("optimizer.skip_kinds", "", ()),
        ("schedule.boundaries", "30,60, 80", (30.0, 60.0, 80.0)),
        ("schedule.boundaries", "(30.5,)", (30.5,)),
        ("sizes", "[3,4]", (3, 4)),
        ("names", "a,b", ("a", "b")),
        ("limit", "none", None),
        ("limit", "7", 7),
        ("system", "a=b", "a=b"),
    ],
)
def test_override(path: str, text: str, value: object) -> None:
    before = Config()
    after = configs.override(before, path, text)
    actual = after
    for part in path.split("."):
        actual = getattr(actual, part)
    assert actual == value and type(actual) is type(value)
    assert before == Config(), "presets are shared: an override must not change them"


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("optimiser.momentum", "0.9", "no field 'optimiser' .did you mean optimizer"),
        ("optimizer.momentun", "0.9", "no field 'momentun' .did you mean momentum"),
        (
            "base_learning_rate",
            "1",
            "no field 'base_learning_rate' .did you mean optimizer.base_learning_rate..$",
        ),
        ("short_name", "1", "no field 'short_name' in "),  # A property of a group, no field.
        (
            "optimizer.zzz",
            "1",
            "no field 'zzz' in base_learning_rate, bias_gradient_factor, clip_epsilon, clip_norm",
        ),
        ("optimizer", "lars", "'optimizer' is a group; set one of its fields: name, base_learning_rate"),
        ("seed.x", "1", "'seed' is a plain value, it has no fields"),
        ("limit.x", "1", "'limit' is a plain value, it has no fields"),
        (
            "global_batch_size",
            "4096.0",
            "--config.global_batch_size=4096.0: not a whole number; give a value such as 8",
        ),
        ("global_batch_size", "many", "not a whole number"),
        ("optimizer.momentum", "high", "not a finite number; give a value such as 0.1"),
        ("limit", "many", "not a whole number"),
        ("optimizer.momentum", "nan", "not a finite number"),
        ("optimizer.momentum", "inf", "not a finite number"),
        ("optimizer.nesterov", "yes", "not true or false; give a value such as true"),
        ("schedule.boundaries", "30,x", "not a list, each a finite number; give a value such as 0.1,0.1"),
    ],
)
def test_bad_overrides_name_field_and_fix(path: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        configs.override(Config(), path, text)
    assert str(error.value).startswith(f"--config.{path}={text}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp23"}, "config.precision='fp23': unknown .did you mean fp32"),
        ({"ruleset": "0.8.0"}, "config.ruleset='0.8.0': unknown"),
        ({"replicas": "mirored"}, "did you mean mirrored"),
        ({"division": "close"}, "did you mean closed"),
        ({"compile": "yes"}, "config.compile='yes'"),
        ({"num_replicas": 0}, "config.num_replicas=0: must be at least 1"),
        (
            {"num_replicas": 3, "global_batch_size": 64},
            "64 does not divide into 3 replicas .* use a multiple of 3",
        ),
        ({"accumulation_steps": 3, "global_batch_size": 64}, "x 3 accumulation steps"),
        (
            {"num_replicas": 4, "global_batch_size": 64, "eval_batch_size": 6},
            "eval_batch_size=6 .* multiple of 4",
        ),
        ({"smoke_run": True}, "needs config.division=open"),
        ({"checkpoint_blocks": 0}, "config.checkpoint_blocks=0: must be at least 1"),
        *(
            ({field: -1}, f"config.{field}=-1: must be at least 0")
            for field in ("train_steps", "steps_per_block")
        ),
        *(
            ({field: -0.5}, f"config.{field}=-0.5: must be at least 0")
            for field in ("train_epochs", "epochs_per_block")
        ),
        ({"seed": -1}, "config.seed=-1: must be at least 0 and at most 4294967295"),
        ({"seed": 2**32}, "config.seed=4294967296: must be"),
        *(
            ({"optimizer": rule(**{name: value})}, f"config.optimizer.{name}={value}: must be {bound}")
            for rule, name, value, bound in (
                (Lars, "clip_norm", -5.0, "a number of at least 0"),
                (Lars, "base_learning_rate", float("nan"), "a number of at least 0"),
                (Lars, "momentum", 1.0, "below 1"),
                (Adam, "beta_2", -0.1, "a number of at least 0"),
            )
        ),
        ({"schedule": Constant(warmup_epochs=-1.0)}, "config.schedule.warmup_epochs=-1.0: must be"),
        (
            {"schedule": Step(boundaries=(3.0, -4.0)), "num_train_examples": 8, "num_eval_examples": 8},
            "config.schedule.boundaries=.*: epochs must be",
        ),
        ({"loss_scale": 0.0}, "config.loss_scale=0.0: must be above 0"),
        ({"loss_scale": float("nan")}, "config.loss_scale=nan: must be above 0"),
    ],
)
def test_contradictions_are_one_line(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(Config(), **changes).validate()


def test_sound_configuration_validates() -> None:
    config = Config(
        replicas="mirrored", num_replicas=4, accumulation_steps=2, global_batch_size=64, eval_batch_size=8,
        num_train_examples=64, num_eval_examples=8,
    )  # fmt: skip
    config.validate()
    assert config.micro_batch_size == 8
    dataclasses.replace(config, seed=2**32 - 1, steps_per_block=0).validate()


@given(
    st.builds(
        Config,
        seed=st.integers(),
        global_batch_size=st.integers(1, 1 << 20),
        sizes=st.lists(st.integers()).map(tuple),
        names=st.lists(st.text()).map(tuple),
        limit=st.none() | st.integers(),
        optimizer=st.builds(Lars, base_learning_rate=st.floats(allow_nan=False, allow_infinity=False)),
        schedule=st.builds(Step, boundaries=st.lists(st.floats(0, 100)).map(tuple)),
    )
)
def test_json_round_trip_and_digest(config: Config) -> None:
    text = json.dumps(to_dict(config))
    again = from_dict(Config, json.loads(text))
    assert again == config
    assert digest(again) == digest(config)
    changed = dataclasses.replace(config, seed=config.seed + 1)
    assert digest(changed) != digest(config)


def test_digest_does_not_depend_on_the_process() -> None:
    """The digest is equal in another process with another hash seed."""
    code = (
        "from common.config.digest import digest; from common.config.schema import RunConfig; "
        "print(digest(RunConfig()))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "7"}
    )
    assert out.stdout.strip() == digest(RunConfig())


def test_from_dict_refuses_unknown_fields() -> None:
    values = to_dict(Config())
    with pytest.raises(UserError, match="config.sede: unknown field .did you mean seed"):
        from_dict(Config, {**values, "sede": 1})
    with pytest.raises(UserError, match="config.optimizer.momentun: unknown field .did you mean momentum"):
        from_dict(Config, {**values, "optimizer": {**values["optimizer"], "momentun": 1}})


def test_split_overrides() -> None:
    argv = [
        "--system=x", "--config.seed=3", "--config.optimizer.name", "lars", "-config.names=a,b", "--dry_run",
    ]  # fmt: skip
    overrides, rest = configs.split_overrides(argv)
    assert overrides == [("optimizer.name", "lars"), ("seed", "3"), ("names", "a,b")]
    assert rest == ["--system=x", "--dry_run"]
    for bad in (["--config.seed"], ["--config.seed", "--dry_run"]):
        with pytest.raises(UserError, match="--config.seed: needs a value, as in --config.seed=VALUE"):
            configs.split_overrides(bad)


BASE = RunConfig(
    num_train_examples=800,
    num_eval_examples=8,
    global_batch_size=8,
    optimizer=Sgd(base_learning_rate=0.5, momentum=0.7),
    schedule=Constant(warmup_epochs=0.25),
)


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
