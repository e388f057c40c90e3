"""Every preset: sound, LEGW's rows, and a log that the checker of this repository takes."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import pytest

from common.config import overrides as configs
from common.config.clock import Clock
from common.errors import UserError
from compliance.check import check_paths
from ptb.config import Config, Data
from ptb.presets import PRESETS, hyperparameters
from tests.benchmarks import scripted_log

BATCHES = [20 * 2**i for i in range(6)]


@pytest.mark.parametrize("name", PRESETS)
def test_log_passes_the_checker(name: str, tmp_path: pathlib.Path) -> None:
    config = PRESETS[name]
    scripted_log(config, tmp_path / "result_0.txt", missed=1e4)
    errors = [f.rule for f in check_paths([tmp_path / "result_0.txt"]) if f.severity == "error"]
    assert not errors
    assert config.division == ("closed" if name.removeprefix("cpu-").isdigit() else "open")


@pytest.mark.parametrize("batch", BATCHES)
def test_batches_of_the_paper_follow_legw(batch: int) -> None:
    base, config = PRESETS["cpu-20"], PRESETS[f"cpu-{batch}"]
    k = batch / 20
    assert config.global_batch_size == batch
    assert config.optimizer.base_learning_rate == pytest.approx(
        base.optimizer.base_learning_rate * math.sqrt(k)
    )
    assert config.schedule.warmup_epochs == pytest.approx(base.schedule.warmup_epochs * k)
    assert (config.train_epochs, config.optimizer.momentum) == (13.0, 0.9)
    assert (config.schedule.kind, config.optimizer.name) == ("step", "sgd")
    assert (config.schedule.boundaries, config.schedule.factor) == ((7, 8, 9, 10, 11, 12), 0.5)
    # The rates within which LEGW 5.3 found the runs with the largest batch to work.
    assert batch < 640 or 0.1 <= config.optimizer.base_learning_rate <= 1.6


def test_the_flag_gives_the_presets() -> None:
    for k in (2, 32):
        got = configs.override(PRESETS["cpu-20"], "legw", str(k))
        want = PRESETS[f"cpu-{20 * k}"]
        assert dataclasses.replace(got, system="", source="") == dataclasses.replace(
            want, system="", source=""
        )
        back = configs.override(got, "legw", str(1 / k))
        assert (back.global_batch_size, back.schedule) == (20, PRESETS["cpu-20"].schedule)
        assert back.optimizer.base_learning_rate == pytest.approx(
            PRESETS["cpu-20"].optimizer.base_learning_rate
        )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("units", 0, "must be at least 1"),
        ("data", Data(eval_split="train"), "known: test, valid"),
        ("global_batch_size", 60000, "streams shorter than config.num_steps=20; use fewer streams"),
    ],
)
def test_bad_fields_are_one_line(field: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(Config(), **{field: value}).validate()


def header(config: Config) -> dict[str, object]:
    return {key: value for key, value, _ in hyperparameters(config)}


def test_the_header_says_what_the_run_does() -> None:
    """Not what fields say that it does not use: a warmup in steps, the momentum of a solver without one."""
    config = PRESETS["cpu-20"]
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
    poly = dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, kind="poly"))
    assert not [key for key in header(poly) if "decay" in key]
