"""Tests every Transformer preset: valid, as published, with a header that the stock checker accepts."""

import pathlib

import pytest

from common.config import overrides as configs
from common.config.clock import Clock
from tests.benchmarks import assert_the_header_follows, broken_rules
from transformer.presets import PRESETS

# Sequences per replica, steps per epoch, most epochs, decode batch (docs/sources.md, mlperf 1.4).
ARITHMETIC = {
    "tpu-v3-2048": (1, 271, 7, 2048), "tpu-v4-16": (32, 1107, 4, 3072), "tpu-v4-128": (4, 1107, 4, 3072),
    "tpu-v4-512": (4, 277, 7, 4096), "tpu-v3-8192": (1, 277, 7, 4096), "tpu-v3-8192-jax": (1, 277, 7, 4096),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_the_published(name: str) -> None:
    config, (per_replica, steps, epochs, decode) = PRESETS[name], ARITHMETIC[name]
    clock = Clock.of(config)
    assert config.micro_batch_size == per_replica and config.eval_batch_size == decode
    assert clock.steps_per_block == steps and clock.train_steps == pytest.approx(epochs * steps, abs=epochs)
    assert [block.last_epoch for block in clock.blocks()] == list(range(1, epochs + 1))
    assert (config.num_eval_examples, config.num_train_examples) == (3003, 566340)


@pytest.mark.parametrize("name", [name for name, c in PRESETS.items() if c.schedule.kind == "noam"])
def test_the_schedule_is_of_the_network_s_width(name: str) -> None:
    assert PRESETS[name].schedule.width == PRESETS[name].width


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("optimizer.epsilon", "1e-8", "opt_adam_epsilon"),
        ("quality_target", "0.2", "eval_accuracy"),
        ("max_sequence_length", "0", "max_sequence_length"),
    ],
)
def test_the_checker_rejects_changed_values(path: str, value: str, key: str, tmp_path: pathlib.Path) -> None:
    config = configs.override(PRESETS["tpu-v4-512"], path, value)
    assert broken_rules(config, tmp_path / "result_0.txt") == {key}


def test_header_follows_the_configuration() -> None:
    assert_the_header_follows(
        PRESETS["tpu-v4-512"],
        ("global_batch_size", "1024", "global_batch_size"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("optimizer.beta_1", "0.5", "opt_adam_beta_1"),
        ("optimizer.beta_2", "0.25", "opt_adam_beta_2"),
        ("optimizer.epsilon", "0.125", "opt_adam_epsilon"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("max_sequence_length", "64", "max_sequence_length"),
    )
