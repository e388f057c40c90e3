"""Tests what a run of llama31_8b refuses before TensorFlow starts: values against the rules, texts, machines."""

import dataclasses
import pathlib

import numpy as np
import pytest

from common.config import hardware
from common.config import overrides as configs
from common.errors import UserError
from llama31_8b import input as pipeline
from llama31_8b.presets import PRESETS, hyperparameters
from tests.llama31_8b import texts
from timetotrain.run import closed_division, devices

FULL = PRESETS["h200-8"]
# Reference points: batch, peak rate, warmup in sequences (rcps_llama31_8b.json), and the steps of 12,288 sequences.
POINTS = [(16, 4e-4, 256, 768), (32, 8e-4, 4096, 384), (96, 1e-3, 16_348, 128), (128, 2e-3, 32_768, 96)]


def flags(*words: str, base=FULL):
    config = base
    for word in words:
        config = configs.override(config, *word.split("=", 1))
    return config


def at(batch: int, peak: float, warmup: int, interval: int):
    return flags(
        f"global_batch_size={batch}", f"eval_batch_size={batch}", f"optimizer.base_learning_rate={peak}",
        f"schedule.end_learning_rate={peak / 10}", f"schedule.warmup_steps={warmup // batch + 1}",
        f"steps_per_block={interval}",
    )  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_every_reference_point_is_a_closed_run_and_logged_as_one(point) -> None:
    config = at(*point)
    config.validate()
    closed_division.check(config, FULL, hyperparameters)
    header = {key: value for key, value, _ in hyperparameters(config)}
    assert header["opt_learning_rate_warmup_steps"] == point[2] // point[0]
    assert header["opt_end_learning_rate"] == pytest.approx(point[1] / 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["optimizer.base_learning_rate=8e-4"], r"end_learning_rate=4e-05: .*set --config\S*end_learning_rate=8e-05$"),
        (["global_batch_size=32"], r"steps_per_block: 768 steps .*at most 384 .*set --config.steps_per_block=384$"),
        (["steps_per_block=0"], r"config.steps_per_block: 160173 steps .*set --config.steps_per_block=768$"),
        (["eval_epochs=0.1,3"], r"config.eval_epochs: \d+ steps .*set --config.eval_epochs=$"),
        (["schedule.warmup_steps=0"], r"config.schedule.warmup_steps=0: .*at least 1; set --config"),
        (["schedule.warmup_steps=16.5"], r"config.schedule.warmup_steps=16.5: .*whole steps"),
        (["schedule.first_step=5"], r"config.schedule.first_step=5: .*set --config.schedule.first_step=1$"),
    ],
)  # fmt: skip
def test_values_against_the_rules_are_refused_in_the_closed_division_alone(change, message) -> None:
    config = flags(*change)
    with pytest.raises(UserError, match=message) as error:
        config.validate()
    assert "\n" not in str(error.value)
    dataclasses.replace(config, division="open").validate()


def test_megatron_s_warmup_and_more_evaluations_are_closed() -> None:
    flags("schedule.warmup_steps=16", "schedule.first_step=0", "steps_per_block=384").validate()


def test_the_number_of_examples_and_the_text_are_the_published_ones(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    with pytest.raises(UserError, match="config.num_train_examples=9: the closed rules"):
        closed_division.check(flags("num_train_examples=9"), FULL, hyperparameters)
    config = texts.write(tmp_path)
    closed = dataclasses.replace(config, division="closed", smoke_run=False)
    pipeline.check_files(config, tmp_path)
    sizes = {name: len(np.fromfile(tmp_path / f"{name}.bin", np.uint16)) for name in ("train", "valid")}
    message = rf"train.idx: {sizes['train']} tokens, the published text has 20,994,193,570; fill"
    with pytest.raises(UserError, match=message):
        pipeline.check_files(closed, tmp_path)
    monkeypatch.setattr(pipeline, "TRAIN_TOKENS", sizes["train"])
    with pytest.raises(UserError, match="valid.idx: .* tokens, the published text has 41,642,091; fill"):
        pipeline.check_files(closed, tmp_path)
    monkeypatch.setattr(pipeline, "EVAL_TOKENS", sizes["valid"])
    pipeline.check_files(closed, tmp_path)


def test_legw_is_refused() -> None:
    with pytest.raises(UserError, match="--config.legw=2: llama31_8b has a reference rate and warmup"):
        flags("legw=2")


def test_the_bytes_of_the_state_are_those_of_the_published_parameters() -> None:
    assert FULL.state_bytes == 12 * 8_030_261_248
    assert (FULL.head_size, FULL.residual_std) == (128, pytest.approx(0.0025))
    assert PRESETS["cpu-tiny"].parameters == 2 * (64 * (8 * 16 + 64 + 3 * 192) + 128) + 2 * 256 * 64 + 64


@pytest.mark.parametrize("system", ["h200-1", "h200-8", "h100-8"])
def test_a_host_without_the_memory_is_refused(system, monkeypatch) -> None:
    """The state passes the host in parts, three of the largest table's copies at once."""
    monkeypatch.setattr(hardware, "jax_gpu_memory", lambda: 0)
    monkeypatch.setattr(hardware, "host_memory", lambda: int(6.4e9))
    with pytest.raises(UserError, match=r"take 96 GB, .* but it has 6 GB; use a larger host"):
        devices.check_memory(PRESETS[system])
    devices.check_memory(PRESETS["cpu-tiny"])
    monkeypatch.setattr(hardware, "host_memory", lambda: int(7.4e9))
    devices.check_memory(PRESETS[system])


def test_one_gpu_needs_a_larger_share_of_its_memory(monkeypatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setattr(hardware, "host_memory", lambda: 10**12)
    monkeypatch.setattr(hardware, "jax_gpu_memory", lambda: 150 * 10**9)
    one = PRESETS["h200-1"]
    with pytest.raises(
        UserError, match=r"135 GB .*0.75 of its 150 GB; set XLA_PYTHON_CLIENT_MEM_FRACTION=0.98$"
    ):
        devices.check_memory(one)
    devices.check_memory(FULL)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.98")
    devices.check_memory(one)
    monkeypatch.setattr(hardware, "jax_gpu_memory", lambda: 85 * 10**9)
    with pytest.raises(UserError, match="use a GPU with more memory"):
        devices.check_memory(one)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "most")
    with pytest.raises(UserError, match="MEM_FRACTION=most: not a number"):
        devices.check_memory(one)


def test_the_fused_kernel_is_for_sizes_that_it_takes() -> None:
    with pytest.raises(UserError, match="up to 128, not 256; use blocks"):
        flags("attention=fused", "heads=16", "division=open").validate()
    flags("attention=fused").validate()
