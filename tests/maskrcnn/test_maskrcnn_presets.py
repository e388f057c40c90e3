"""Tests every Mask R-CNN preset: valid, as published, and accepted by the stock checker or documented as rejected."""

import dataclasses

import pytest
import tensorflow as tf

from common.config import overrides as configs
from common.config.clock import Clock
from common.errors import UserError
from common.optim import schedules
from maskrcnn.config import Config
from maskrcnn.presets import PRESETS
from tests.benchmarks import assert_the_header_follows

NAMES = list(PRESETS)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("tpu-v3", "tpu-v4"))])
def test_every_block_is_an_epoch(name: str) -> None:
    """16, 20 or 30 epochs of 924 or 462 steps (docs/sources.md, mlperf 1.3)."""
    config, clock = PRESETS[name], Clock.of(PRESETS[name])
    assert clock.steps_per_block == 924 * 128 // config.global_batch_size
    assert clock.train_steps == config.train_epochs * clock.steps_per_block
    blocks = list(clock.blocks())
    assert [block.last_epoch for block in blocks] == list(range(1, len(blocks) + 1))
    assert config.freeze and config.batch_norm == "frozen" and config.batch_norm_epsilon == 1e-4


def test_cpu_tiny_s_rate_is_that_of_seven_epochs_whatever_its_length() -> None:
    def rates(config: Config) -> list[float]:
        clock = Clock.of(config)
        rate = schedules.learning_rate(
            config.schedule, config.optimizer.base_learning_rate, clock.steps_per_epoch, clock.train_steps
        )
        return rate(tf.range(2500, dtype=tf.int64)).numpy().tolist()

    config = PRESETS["cpu-tiny"]
    whole = dataclasses.replace(config.schedule, train_epochs=0.0)
    assert config.train_epochs == 5.0
    assert rates(config) == rates(dataclasses.replace(config, train_epochs=7.0, schedule=whole))
    assert rates(config) == rates(dataclasses.replace(config, train_epochs=2.0))


@pytest.mark.parametrize("name", NAMES)
def test_no_full_size_preset_keeps_the_records_in_memory(name: str) -> None:
    assert PRESETS[name].data.cache == ("encoded" if name.startswith("cpu-") else "none")


def test_header_follows_the_configuration() -> None:
    assert_the_header_follows(
        PRESETS["v100-8"],
        ("global_batch_size", "64", "global_batch_size"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("schedule.factor", "0.5", "opt_learning_rate_decay_factor"),
        ("rpn_post_nms", "3000", "num_image_candidates"),
        ("short_side", "700", "min_image_size"),
        ("long_side", "1200", "max_image_size"),
    )


def test_rows_of_gpus_have_the_reference_s_losses_and_initial_values() -> None:
    """NVIDIA's rates belong to them: NV7 maskrcnn_benchmark/modeling/rpn/loss.py, roi_heads/box_head/loss.py."""
    for name, config in PRESETS.items():
        gpu = name.startswith(("v100", "dgx", "h100", "h200", "b200"))
        assert config.loss_divisors == ("sampled" if gpu else "positives"), name
        assert config.uniform_initializer == ("fan_in" if gpu else "fan_avg"), name
        assert config.rpn_inside == gpu, name


def test_a_span_that_does_not_group_is_one_line() -> None:
    config = configs.override(PRESETS["cpu-tiny"], "batch_norm_span", "3")
    with pytest.raises(UserError, match="config.batch_norm_span=3 does not group 1 replicas of 4 images"):
        config.validate()
