"""Tests every GNMT preset: valid, as published, with a header that the stock checker accepts."""

import dataclasses
import pathlib

import pytest

from common.config import overrides as configs
from common.config.run_length import RunLength
from gnmt.presets import PRESETS
from tests.benchmarks import assert_the_header_follows, broken_rules, header

NAMES = list(PRESETS)
# The last epoch of Google's rows (docs/sources.md, mlperf 1.5); tests/pinned has their logs and flags.
EPOCHS = {
    "tpu-v3-32": 8, "tpu-v3-128": 10, "tpu-v3-256": 10, "tpu-v3-512": 10, "tpu-v3-1024": 10, "tpu-v4-16": 8,
    "tpu-v4-128": 15, "tpu-v3-1024-v0.7": 10, "tpu-v4-512": 15,
}  # fmt: skip


@pytest.mark.parametrize("name", EPOCHS)
def test_a_run_evaluates_after_each_of_the_published_epochs(name: str) -> None:
    config = PRESETS[name]
    assert [block.last_epoch for block in RunLength.of(config).intervals()] == list(
        range(1, EPOCHS[name] + 1)
    )
    assert (config.wiring, config.schedule.decay_at_start) == ("google", False)


def test_google_s_rows_of_v07_smooth_over_the_other_classes() -> None:
    """Source: docs/sources.md, mlperf 0.7."""
    over = {name for name, config in PRESETS.items() if config.smoothing_over == "others"}
    assert over == {"tpu-v4-16", "tpu-v4-128", "tpu-v3-1024-v0.7", "tpu-v4-512", "tpu-v5e-16", "tpu-v6e-16"}


def test_v100_is_the_reference_s_network_and_decay() -> None:
    config = PRESETS["v100-8"]
    assert (config.wiring, config.schedule.decay_at_start) == ("reference", True)


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("cpu-")])
def test_every_row_has_the_benchmark_s_constants(name: str) -> None:
    """The constants of docs/sources.md, mlperf 1.5; buckets have equal width."""
    config = PRESETS[name]
    assert (config.label_smoothing, config.dropout) == (0.1, 0.2)
    assert config.bias_scale == (0.0 if config.wiring == "google" else 0.1)
    assert (config.decode.beam_size, config.decode.alpha, config.decode.coverage) == (5, 0.6, 0.1)
    # Five buckets of one width (docs/sources.md, mlperf 1.5).
    longest, width = config.max_sequence_length, -(-config.max_sequence_length // 5)
    assert config.bucket_limits == (width, 2 * width, 3 * width, 4 * width, longest)


def test_the_checker_rejects_changed_values(tmp_path: pathlib.Path) -> None:
    config = configs.override(PRESETS["tpu-v4-512"], "quality_target", "0.2")
    assert broken_rules(config, tmp_path / "result_0.txt") == {"eval_accuracy"}
    config = configs.override(PRESETS["tpu-v3-512"], "schedule.decay_start_step", "0")
    assert broken_rules(config, tmp_path / "result_1.txt") == {"opt_learning_rate_remain_steps"}


def test_header_follows_the_configuration() -> None:
    assert_the_header_follows(
        PRESETS["tpu-v4-512"],
        ("global_batch_size", "1024", "global_batch_size"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("schedule.factor", "0.25", "opt_learning_rate_decay_factor"),
        ("schedule.decay_interval", "9", "opt_learning_rate_decay_interval"),
        ("schedule.decay_start_step", "77", "opt_learning_rate_remain_steps"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("max_sequence_length", "64", "max_sequence_length"),
    )
    for path, value, key in (
        ("schedule.kind", "constant", "opt_learning_rate_alt_decay_func"),
        ("schedule.warmup_curve", "linear", "opt_learning_rate_alt_warmup_func"),
    ):
        assert header(PRESETS["tpu-v4-512"], path, value)[key] is False


def test_a_warmup_in_epochs_is_logged_in_steps() -> None:
    """The logged steps are those of training: 2 epochs of 3,442,299 / 8192 = 420.2 steps."""
    schedule = dataclasses.replace(PRESETS["tpu-v4-512"].schedule, warmup_steps=0.0, warmup_epochs=2.0)
    config = dataclasses.replace(PRESETS["tpu-v4-512"], schedule=schedule)
    assert header(config)["opt_learning_rate_warmup_steps"] == 840
