"""Tests LEGW's arithmetic: Table 1 of its paper, both directions, every benchmark's presets, and the flag."""

import dataclasses
import importlib
import math
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import benchmarks
from common.config import overrides as configs
from common.config.legw import legw
from common.config.optimizer import Lars
from common.config.run_length import RunLength
from common.config.schedule import Constant, Gnmt, Polynomial
from common.config.schema import RunConfig
from common.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCHMARKS = [name for name in benchmarks.NAMES if benchmarks.module(name, "config").Config.scales_by_legw]
# (batch, rate, warmup epochs): the rows of Table 1, rates as powers of two.
TABLE_1 = [(1024 * 2**i, 2 ** (2.5 + i / 2), 0.3125 * 2**i) for i in range(6)]


def row(batch: int, rate: float, warmup: float, **changes) -> RunConfig:
    return RunConfig(
        num_train_examples=1281167, num_eval_examples=50000, global_batch_size=batch, train_epochs=90,
        optimizer=Lars(base_learning_rate=rate), schedule=Polynomial(warmup_epochs=warmup),
        **changes,
    )  # fmt: skip


def numbers(config: RunConfig) -> tuple[float, ...]:
    schedule = config.schedule
    rates = config.optimizer.base_learning_rate, schedule.warmup_start
    return (config.global_batch_size, *rates, schedule.warmup_epochs)


def test_gives_every_row_of_table_1_from_every_other() -> None:
    assert TABLE_1[-1] == (32768, 2**5.0, 10.0)
    for batch, rate, warmup in TABLE_1:
        for other in TABLE_1:
            scaled = legw(row(batch, rate, warmup), other[0] / batch)
            assert numbers(scaled) == pytest.approx((other[0], other[1], 0, other[2]), rel=1e-12)
            assert scaled.train_epochs == 90


rows = st.tuples(
    st.integers(1, 4096).map(lambda n: 64 * n), st.floats(1e-4, 100), st.floats(0, 50), st.floats(0, 0.1)
)
powers = st.integers(-6, 6).map(lambda n: 2.0**n)


def config_of(values: tuple[int, float, float, float]) -> RunConfig:
    batch, rate, warmup, initial = values
    config = row(batch, rate, warmup)
    return dataclasses.replace(
        config, schedule=dataclasses.replace(config.schedule, initial_learning_rate=initial)
    )


@given(rows, powers)
def test_scaling_by_a_factor_and_its_inverse_is_the_identity(values, k) -> None:
    config = config_of(values)
    assert numbers(legw(legw(config, k), 1 / k)) == pytest.approx(numbers(config), rel=1e-12)


@given(rows, powers, st.sampled_from([1.0, 2.0, 4.0]))
def test_two_factors_equal_their_product(values, k, then) -> None:
    config = config_of(values)
    assert numbers(legw(legw(config, k), then)) == pytest.approx(numbers(legw(config, k * then)), rel=1e-12)


@given(rows, powers)
def test_the_rate_scales_by_the_root_and_the_warmup_keeps_its_steps(values, k) -> None:
    config = config_of(values)
    scaled = legw(config, k)
    assert scaled.optimizer.base_learning_rate == pytest.approx(values[1] * math.sqrt(k), rel=1e-12)
    before, after = (
        c.schedule.warmup_length(c.num_train_examples / c.global_batch_size) for c in (config, scaled)
    )
    assert after == pytest.approx(before, rel=1e-12)
    assert dataclasses.replace(
        scaled, global_batch_size=1, optimizer=Lars(), schedule=Constant()
    ) == dataclasses.replace(config, global_batch_size=1, optimizer=Lars(), schedule=Constant())


def test_fields_in_steps_keep_their_epochs() -> None:
    schedule = Gnmt(warmup_steps=40, decay_start_step=600, decay_interval=50)
    config = dataclasses.replace(
        row(1024, 1.0, 0.5), train_steps=1001, steps_per_block=100, schedule=schedule
    )
    scaled = legw(config, 4)
    assert (scaled.train_steps, scaled.steps_per_block) == (251, 25)
    assert scaled.schedule.warmup_steps == 40
    assert (scaled.schedule.decay_start_step, scaled.schedule.decay_interval) == (150, 13)


@pytest.mark.parametrize("k", [0, -1, 1 / 3])
def test_a_factor_that_gives_no_whole_batch_is_refused(k: float) -> None:
    with pytest.raises(UserError, match="not a whole batch"):
        legw(row(1024, 1.0, 1.0), k)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_preset_keeps_its_epochs(benchmark: str) -> None:
    """Where the doubled batch does not fit the preset's data, pieces or replicas, a one-line error says so."""
    fitting = 0
    for name, config in importlib.import_module(f"{benchmark}.presets").PRESETS.items():
        scaled = configs.override(config, "legw", "2")
        assert numbers(scaled) == pytest.approx(numbers(legw(config, 2)))
        try:
            scaled.validate()
        except UserError as error:
            assert "config." in str(error), name
            continue
        fitting += 1
        epochs = [RunLength.of(c).train_steps / RunLength.of(c).steps_per_epoch for c in (config, scaled)]
        assert epochs[1] == pytest.approx(epochs[0], rel=0.02), name
    assert fitting


def test_one_benchmark_refuses_the_flag() -> None:
    """Its own test reads the message."""
    assert set(benchmarks.NAMES) - set(BENCHMARKS) == {"llama31_8b"}


def test_the_flag_scales_the_values_of_other_flags_in_any_order() -> None:
    flags = ["--config.legw=4", "--config.optimizer.base_learning_rate=0.5", "--config.global_batch_size=16"]
    for argv in (flags, flags[::-1]):
        overrides, rest = configs.split_overrides(argv)
        config = row(1024, 1.0, 1.0)
        for path, value in overrides:
            config = configs.override(config, path, value)
        assert not rest and numbers(config) == (64, 1.0, 0, 4.0)


@pytest.mark.parametrize("value", ["many", "inf", "", "nan"])
def test_the_flag_wants_a_number(value: str) -> None:
    with pytest.raises(UserError, match=r"--config\.legw=.*give a value such as"):
        configs.override(row(1024, 1.0, 1.0), "legw", value)
