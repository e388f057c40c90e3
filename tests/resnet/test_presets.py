"""Tests every ResNet preset: valid, as published, and accepted by the stock checker or documented as rejected."""

import dataclasses
import pathlib

import pytest

from common.config import overrides as configs
from common.config.digest import digest
from common.config.optimizer import Sgd
from common.config.rules import SCHEDULES
from common.config.run_length import RunLength
from common.config.schedule import Step
from resnet.presets import PRESETS, hyperparameters
from tests.benchmarks import assert_the_header_follows, broken_rules, decay_end, header

# Steps to the end of the decay, their epochs, steps per evaluation, replicas per batch-norm group
# (docs/sources.md, mlperf 1.1).
ARITHMETIC = {
    "tpu-v3-2048": (2983, 76.3, 157, 8),
    "tpu-v3-2048-unscaled": (2983, 76.3, 157, 8),
    "tpu-v3-2048-unscaled-tuned": (2512, 64.25, 157, 8),
    "v100-8": (20520, 40.0, 2052, 1),
    # The decay ends a step before the epochs do: NVIDIA's code divides by one less than Google's.
    "dgx-1": (28489, 37.0, 3080, 1),
    "dgx-2h": (16169, 42.0, 1540, 1),
    "dgx-2h-32": (2261, 58.73, 156, 1),
    "tpu-v3-32-v0.7": (12792, 40.9, 1248, 1),
    "tpu-v4-16": (25656, 41.0, 2502, 1),
    "tpu-v4-128": (7500, 48.0, 625, 1),
    "tpu-v4-512": (6875, 44.0, 626, 4),
    "tpu-v3-8192": (1738, 88.9, 79, 8),
    "tpu-v3-8192-jax": (1817, 92.9, 79, 8),
    "cpu-cluster-1024": (3519, 90.0, 40, 1),
    "cpu-cluster-1024-alexnet": (4000, 102.3, 40, 1),
    # borisgin/nvcaffe: iterations of the solvers, which call 78 of 16K an epoch.
    "alexnet-512": (150000, 59.9, 5000, 1),
    "alexnet-8192": (15600, 99.7, 150, 1),
    "alexnet-16384": (7800, 99.7, 150, 1),
    # 90 epochs, evaluated after each.
    "legw-1024": (112603, 90.0, 1252, 1),
    "legw-32768": (3519, 90.0, 40, 1),
    "legw-step-8192": (14076, 90.0, 157, 1),
}


def test_presets_differ() -> None:
    assert len({digest(dataclasses.replace(c, system="", source="")) for c in PRESETS.values()}) == len(
        PRESETS
    )


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_the_published(name: str) -> None:
    config, (steps, epochs, block, group) = PRESETS[name], ARITHMETIC[name]
    run_length = RunLength.of(config)
    assert (decay_end(config), run_length.steps_per_block) == (steps, block)
    assert steps / run_length.steps_per_epoch == pytest.approx(epochs, abs=0.06)
    assert config.bn_span == group * config.micro_batch_size
    assert (config.num_train_examples, config.num_eval_examples) == (1281167, 50000)


@pytest.mark.parametrize("name", [n for n, c in PRESETS.items() if c.ruleset == "0.6.0"])
def test_round_v06_evaluates_every_fourth_epoch(name: str) -> None:
    last = [block.last_epoch for block in RunLength.of(PRESETS[name]).intervals()]
    assert last == [4 * (i + 1) for i in range(len(last))]


def test_evaluations_of_the_v100_log() -> None:
    """G7 results/gpu-v100-8-TF2.0/resnet: after epochs 3, 7, ... 39, and 43, which one of its runs needs."""
    last = [block.last_epoch for block in RunLength.of(PRESETS["v100-8"]).intervals()]
    assert last == [*range(3, 44, 4)]


# LEGW, Table 1: batch, log2 of the rate, warmup epochs.
TABLE_1 = [(1024, 2.5, 0.3125), (2048, 3.0, 0.625), (4096, 3.5, 1.25)]
TABLE_1 += [(8192, 4.0, 2.5), (16384, 4.5, 5.0), (32768, 5.0, 10.0)]


@pytest.mark.parametrize("form", ["legw", "legw-step"])
@pytest.mark.parametrize(("batch", "power", "warmup"), TABLE_1)
def test_table_1_of_legw(form: str, batch: int, power: float, warmup: float) -> None:
    config = PRESETS[f"{form}-{batch}"]
    values = header(config)
    assert values["global_batch_size"] == batch and config.train_epochs == 90.0
    assert values["lars_opt_base_learning_rate"] == 2**power
    assert values["lars_opt_learning_rate_warmup_epochs"] == warmup
    scaled = configs.override(PRESETS[f"{form}-1024"], "legw", str(batch // 1024))
    assert scaled.optimizer.base_learning_rate == pytest.approx(2**power)
    assert scaled.schedule == config.schedule
    schedule, run_length = config.schedule, RunLength.of(config)
    if form == "legw":
        assert (schedule.kind, schedule.power, schedule.end_learning_rate) == ("poly", 2.0, 0.0)
        assert schedule.decay_start(run_length.steps_per_epoch) == 0
    else:
        assert (schedule.kind, schedule.boundaries, schedule.factor) == ("step", (30.0, 60.0, 80.0), 0.1)


@pytest.mark.parametrize(
    ("name", "rate", "ramp", "steps"),
    [
        ("cpu-cluster-1024-alexnet", 32.0, 400, 4000),
        ("alexnet-16384", 24.0, 400, 7800),
        ("alexnet-8192", 10.0, 600, 15600),
        ("alexnet-512", 0.01, 0, 150000),
    ],
)
def test_alexnet_s_solvers(name: str, rate: float, ramp: int, steps: int) -> None:
    """borisgin/nvcaffe models/alexnet_bn: base_lr, rampup_interval, max_iter; 5e-4 and 0.9 everywhere."""
    config = PRESETS[name]
    assert (config.optimizer.base_learning_rate, config.train_steps) == (rate, steps)
    assert (config.optimizer.weight_decay, config.optimizer.momentum) == (5e-4, 0.9)
    assert config.schedule.warmup_steps == ramp and config.model == "alexnet_bn"
    values = header(config)
    warmup = next(value for key, value in values.items() if key.endswith("warmup_epochs"))
    assert warmup == pytest.approx(ramp * config.global_batch_size / 1281167)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"optimizer.weight_decay": "0.0003"}, "lars_opt_weight_decay"),
        ({"optimizer.epsilon": "1e-5"}, "lars_epsilon"),
        ({"schedule.power": "3"}, "lars_opt_learning_rate_decay_poly_power"),
        ({"schedule.end_learning_rate": "0.001"}, "lars_opt_end_learning_rate"),
        ({"quality_target": "0.7"}, "eval_accuracy"),
    ],
)
def test_the_checker_rejects_changed_values(
    changes: dict[str, str], key: str, tmp_path: pathlib.Path
) -> None:
    config = PRESETS["tpu-v3-8192"]
    for path, value in changes.items():
        config = configs.override(config, path, value)
    assert broken_rules(config, tmp_path / "result_0.txt") == {key}


@pytest.mark.parametrize("ruleset", ["0.6.0", "0.7.0"])
def test_a_closed_sgd_run_has_the_keys_the_rules_ask_for(ruleset: str, tmp_path: pathlib.Path) -> None:
    """v0.6 wants SGD with drops, v0.7 with a polynomial decay."""
    kind = "step" if ruleset == "0.6.0" else "poly"
    config = dataclasses.replace(
        PRESETS["v100-8"],
        ruleset=ruleset,
        optimizer=Sgd(base_learning_rate=0.256, weight_decay=1e-4),
        schedule=Step(boundaries=(30.0, 60.0)) if kind == "step" else SCHEDULES.make(kind),
    )
    assert broken_rules(config, tmp_path / "result_0.txt") == set()


def test_span_of_zero_is_the_micro_batch() -> None:
    config = configs.override(PRESETS["v100-8"], "batch_norm_span", "0")
    config.validate()
    assert config.bn_span == config.micro_batch_size == 312


def test_header_follows_the_configuration() -> None:
    config = PRESETS["tpu-v3-8192"]
    assert_the_header_follows(
        config,
        ("global_batch_size", "32768", "global_batch_size"),
        ("batch_norm_span", "128", "model_bn_span"),
        ("optimizer.base_learning_rate", "1.5", "lars_opt_base_learning_rate"),
        ("optimizer.momentum", "0.5", "lars_opt_momentum"),
        ("optimizer.weight_decay", "0.25", "lars_opt_weight_decay"),
        ("optimizer.epsilon", "0.125", "lars_epsilon"),
        ("schedule.warmup_epochs", "7", "lars_opt_learning_rate_warmup_epochs"),
        ("schedule.power", "1", "lars_opt_learning_rate_decay_poly_power"),
        ("schedule.end_learning_rate", "0", "lars_opt_end_learning_rate"),
    )
    longer = hyperparameters(dataclasses.replace(config, train_steps=config.train_steps + 100))
    assert ("lars_opt_learning_rate_decay_steps", 1233, {}) in longer
