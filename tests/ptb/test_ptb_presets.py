"""Tests every PTB preset: valid, LEGW's rows, and a log that this repository's checker accepts."""

import pathlib

import pytest

from compliance.api import check
from ptb.presets import PRESETS
from tests.benchmarks import (
    assert_follows_legw,
    assert_the_flag_gives,
    assert_the_header_says_what_runs,
    header,
    scripted_log,
)

BATCHES = [20 * 2**i for i in range(6)]


@pytest.mark.parametrize("name", PRESETS)
def test_log_passes_the_checker(name: str, tmp_path: pathlib.Path) -> None:
    config = PRESETS[name]
    scripted_log(config, tmp_path / "result_0.txt", missed=1e4)
    errors = [f.rule for f in check([tmp_path / "result_0.txt"]).findings if f.severity == "error"]
    assert not errors
    assert config.division == ("closed" if name.removeprefix("cpu-").isdigit() else "open")


@pytest.mark.parametrize("batch", BATCHES)
def test_batches_of_the_paper_follow_legw(batch: int) -> None:
    config = PRESETS[f"cpu-{batch}"]
    assert config.global_batch_size == batch
    assert_follows_legw(config, PRESETS["cpu-20"], batch / 20)
    assert (config.train_epochs, config.optimizer.momentum) == (13.0, 0.9)
    assert (config.schedule.kind, config.optimizer.name) == ("step", "sgd")
    assert (config.schedule.boundaries, config.schedule.factor) == ((7, 8, 9, 10, 11, 12), 0.5)
    # The range of rates in which runs with the largest batch work (LEGW, section 5.3).
    assert batch < 640 or 0.1 <= config.optimizer.base_learning_rate <= 1.6


def test_the_flag_gives_the_presets() -> None:
    for k in (2, 32):
        assert_the_flag_gives(PRESETS[f"cpu-{20 * k}"], PRESETS["cpu-20"], k)


def test_the_header_says_what_the_run_does() -> None:
    config = PRESETS["cpu-20"]
    assert_the_header_says_what_runs(config)
    assert not [key for key in header(config, "schedule.kind", "poly") if "decay" in key]
    assert header(config, "dropout", "0.25")["dropout"] == 0.25
    assert "dropout" not in header(config)
