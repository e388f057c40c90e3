"""Every preset: sound, LEGW's rows, and a log that the checker of this repository takes."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import pytest

from common.config import overrides as configs
from common.config.clock import Clock
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from compliance.check import check_paths
from mnist.config import Config
from mnist.model import build
from mnist.presets import PRESETS, hyperparameters
from tests.benchmarks import scripted_log

BATCHES = [128 * 2**i for i in range(7)]


@pytest.mark.parametrize("name", PRESETS)
def test_log_passes_the_checker(name: str, tmp_path: pathlib.Path) -> None:
    config = PRESETS[name]
    scripted_log(config, tmp_path / "result_0.txt")
    errors = [f.rule for f in check_paths([tmp_path / "result_0.txt"]) if f.severity == "error"]
    # Below 98.5 % no division takes a log: what MagmaDNN's perceptron reaches in its five epochs is less.
    low = config.quality_target < 0.985
    assert bool(errors) == low, errors
    assert config.division == ("closed" if name.removeprefix("cpu-").isdigit() else "open")


@pytest.mark.parametrize("batch", BATCHES)
def test_batches_of_the_paper_follow_legw(batch: int) -> None:
    base, config = PRESETS["cpu-128"], PRESETS[f"cpu-{batch}"]
    k = batch / 128
    assert config.global_batch_size == batch
    assert config.optimizer.base_learning_rate == pytest.approx(
        base.optimizer.base_learning_rate * math.sqrt(k)
    )
    assert config.schedule.warmup_epochs == pytest.approx(base.schedule.warmup_epochs * k)
    assert (config.train_epochs, config.optimizer.momentum) == (25.0, 0.9)
    assert (config.schedule.kind, config.optimizer.name) == ("constant", "sgd")


def test_the_flag_gives_the_presets() -> None:
    for k in (2, 64):
        got = configs.override(PRESETS["cpu-128"], "legw", str(k))
        want = PRESETS[f"cpu-{128 * k}"]
        assert dataclasses.replace(got, system="", source="") == dataclasses.replace(
            want, system="", source=""
        )
        back = configs.override(got, "legw", str(1 / k))
        assert (back.global_batch_size, back.schedule) == (128, PRESETS["cpu-128"].schedule)
        assert back.optimizer.base_learning_rate == pytest.approx(
            PRESETS["cpu-128"].optimizer.base_learning_rate
        )


def test_magmadnn_s_figures() -> None:
    config = PRESETS["cpu-mlp"]
    assert (config.hidden_units, config.activation, config.global_batch_size) == (528, "sigmoid", 100)
    assert (config.optimizer.base_learning_rate, config.optimizer.weight_decay) == (0.05, 0.001)
    assert (config.train_epochs, config.optimizer.momentum) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", "cmn", "known: lstm, mlp, cnn"),
        ("activation", "gelu", "known: sigmoid, tanh, relu"),
        ("lstm_units", 0, "must be at least 1"),
        ("dropout", 1.0, r"must be in \[0, 1\)"),
        ("global_batch_size", 60001, "more than the 60000 training images"),
    ],
)
def test_bad_fields_are_one_line(field: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(Config(), **{field: value}).validate()


def test_the_smallest_image_of_the_convolutional_network() -> None:
    smallest = dataclasses.replace(PRESETS["cpu-tiny"], model="cnn", image_size=6)
    smallest.validate()
    build(smallest, Single(), precision("fp32"))
    with pytest.raises(UserError, match="config.image_size=5: config.model=cnn needs at least 6"):
        dataclasses.replace(smallest, image_size=5).validate()


def header(config: Config) -> dict[str, object]:
    return {key: value for key, value, _ in hyperparameters(config)}


def test_the_header_says_what_the_run_does() -> None:
    """Not what fields say that it does not use: a warmup in steps, the momentum of a solver without one."""
    config = PRESETS["cpu-128"]
    steps = Clock.of(config).steps_per_epoch
    warmed = dataclasses.replace(
        config, schedule=dataclasses.replace(config.schedule, warmup_steps=2 * steps)
    )
    assert header(warmed)["opt_learning_rate_warmup_epochs"] == pytest.approx(2.0)
    assert header(config)["opt_learning_rate_warmup_epochs"] == config.schedule.warmup_epochs
    assert header(config)["opt_momentum"] == 0.9
    for name in ("adam", "adagrad", "rmsprop", "adadelta"):
        changed = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, name=name))
        assert "opt_momentum" not in header(changed)
