"""Tests every SSD preset: valid, as published, and accepted by the stock checker or documented as rejected."""

import dataclasses

import pytest

from common.config.clock import Clock
from common.detection import nms
from ssd.presets import PRESETS, SUPPRESSED_AT_ONCE
from tests.benchmarks import assert_the_header_follows


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("tpu-v3-32", [3750, 5000, 5625, 6250, 6875, 7500]),
        # Loops of 313 steps: the sixth, the eighth, then each (G6 train_and_eval_low_level_runner.py).
        ("tpu-v3-2048", [313 * loop for loop in (6, 8, 9, 10, 11, 12, 13, 14, 15)]),
        ("tpu-v4-16", [578 * loop for loop in (8, 10, 11, 12, 13)]),
        ("dgx-1", [4887, 6108, 6719, 7330, 7941, 8552, 9163, 9773]),
    ],
)
def test_steps_are_the_published(name: str, steps: list[int]) -> None:
    """G6: after 120,000, 160,000, 180,000, ... steps of 32 images; rules of v0.7: after epochs 40, 50, 55, ..., 80."""
    assert [block.end_step for block in Clock.of(PRESETS[name]).blocks()] == steps


def test_header_follows_the_configuration() -> None:
    config = dataclasses.replace(PRESETS["v100-8"], logged_rate_batch=0)
    assert_the_header_follows(
        config,
        ("batch_norm_span", "60", "model_bn_span"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("optimizer.weight_decay", "0.25", "opt_weight_decay"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("data.crop_attempts", "9", "max_samples"),
    )


def test_memory_counts_the_classes_that_are_suppressed_at_once():
    assert SUPPRESSED_AT_ONCE == nms.CLASSES
