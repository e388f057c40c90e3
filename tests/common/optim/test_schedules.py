"""Tests learning rates at their knots and against published formulas, among them section 3.2 of LEGW's paper."""

import dataclasses
import fractions
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.run_length import RunLength
from common.config.schedule import Constant, Cosine, Gnmt, Noam, Polynomial, Schedule, Step
from common.config.schema import RunConfig
from common.optim import schedules

IMAGENET = 1281167


def rates(
    schedule: Schedule, steps, base: float = 1.0, steps_per_epoch: float = 100.0, train_steps: int = 1000
):
    """Rates at `steps`, as numpy."""
    rate = schedules.learning_rate(schedule, base, steps_per_epoch, train_steps)
    result = rate(tf.constant(steps, tf.int64))
    assert result.dtype == tf.float32
    return result.numpy()


def published(step: np.ndarray, base: float, batch: int, warmup_epochs: int, train_steps: int) -> np.ndarray:
    """The schedule of G7 resnet-research-TF-tpu-v3-8192/lars_util.py (docs/sources.md, mlperf 1.1)."""
    epoch = step * batch / IMAGENET
    start = warmup_epochs * IMAGENET // batch
    decayed = np.minimum(np.maximum(1, step - start), train_steps - start + 1)
    poly = (base - 1e-4) * (1 - decayed / (train_steps - start + 1)) ** 2 + 1e-4
    return np.where(epoch <= warmup_epochs, base * epoch / warmup_epochs, poly)


@pytest.mark.parametrize(
    ("base", "batch", "warmup_epochs", "train_steps"),
    [(10.0, 4096, 5, 22536), (31.2, 32768, 25, 2983), (17.0, 8192, 5, 7500), (24.699, 65536, 31, 1738)],
)
def test_poly_is_the_published_curve(base: float, batch: int, warmup_epochs: int, train_steps: int) -> None:
    steps = np.arange(train_steps + 50)
    schedule = Polynomial(warmup_epochs=warmup_epochs)
    ours = rates(schedule, steps, base, IMAGENET / batch, train_steps)
    np.testing.assert_allclose(ours, published(steps, base, batch, warmup_epochs, train_steps), rtol=1e-6)
    start = warmup_epochs * IMAGENET // batch
    assert schedule.decay_start(IMAGENET / batch) == start
    assert schedule.decay_steps(IMAGENET / batch, train_steps) == train_steps - start + 1
    assert ours[0] == 0 and np.argmax(ours) in (start, start + 1)
    assert ours[start] == pytest.approx(base, rel=0.01) and ours.max() <= np.float32(base)
    # The decay ends one step after the last one of the run, and stays there.
    assert ours[train_steps - 1] > ours[train_steps] > np.float32(1e-4)
    np.testing.assert_array_equal(ours[train_steps + 1 :], np.float32(1e-4))


def test_warmup_in_steps_peaks_there() -> None:
    """G7 gpu-v100-8-TF2.0: 40 epochs of 513 steps, 5 of them warmup; its log says 17956 decay steps."""
    schedule = Polynomial(warmup_epochs=5, warmup_steps=5 * 513)
    at = rates(schedule, [0, 1, 2564, 2565, 2566, 20520, 20521], 9.5, IMAGENET / 2496, 20520)
    np.testing.assert_allclose(at[:4], np.array([0, 1, 2564, 2565]) * 9.5 / 2565, rtol=1e-6)
    assert at[3] == np.float32(9.5) and at[4] < at[3] and at[6] == np.float32(1e-4)
    assert schedule.decay_steps(IMAGENET / 2496, 20520) == 17956


def test_fractional_warmup_steps() -> None:
    """G7 tpu-v3-8192-JAX counts 19.75 steps per epoch; its log says 1166.25 decay steps."""
    schedule = Polynomial(warmup_epochs=33, warmup_steps=33 * 19.75)
    assert schedule.decay_steps(IMAGENET / 65536, 1817) == 1166.25
    at = rates(schedule, [651, 652], 23.0, IMAGENET / 65536, 1817)
    assert at[0] == pytest.approx(23 * 651 / 651.75, rel=1e-6)
    assert at[1] == pytest.approx(1e-4 + (23 - 1e-4) * (1 - 0.25 / 1166.25) ** 2, rel=1e-6)


def test_constant_after_warmup() -> None:
    schedule = Constant(warmup_epochs=2)
    np.testing.assert_allclose(rates(schedule, [0, 50, 200, 201, 5000], 4.0), [0, 1, 4, 4, 4])
    np.testing.assert_allclose(rates(dataclasses.replace(schedule, warmup_epochs=0), [0, 1], 4.0), [4, 4])


def test_warmup_from_a_rate_above_zero() -> None:
    """borisgin/nvcaffe solver_32k.prototxt: from 1 to 32 in 400 steps, then 32 (1 - i/4000)^2."""
    schedule = Polynomial(
        warmup_steps=400, initial_learning_rate=1, end_learning_rate=0, decay_over_whole_run=True
    )
    at = rates(schedule, [0, 200, 400, 401, 2000, 4000], 32.0, IMAGENET / 32768, 4000)
    np.testing.assert_allclose(at, [1, 16.5, 32, 32 * (1 - 401 / 4000) ** 2, 8, 0], rtol=1e-6)


def test_step_drops_at_its_epochs() -> None:
    """LEGW, section 3.2: a tenth from the 30th, 60th and 80th epoch on."""
    schedule = Step(warmup_epochs=1, boundaries=(30, 60, 80), factor=0.1)
    at = rates(schedule, [0, 50, 100, 2999, 3000, 5999, 6000, 7999, 8000, 8999], 2.0)
    np.testing.assert_allclose(at, [0, 1, 2, 2, 0.2, 0.2, 0.02, 0.02, 0.002, 0.002], rtol=1e-6)


def test_step_boundary_on_a_whole_step_survives_floating_point() -> None:
    schedule = Step(warmup_epochs=0, boundaries=(100,), factor=0.5)
    np.testing.assert_allclose(rates(schedule, [28, 29], steps_per_epoch=0.29), [1, 0.5])


def test_cosine() -> None:
    schedule = Cosine(warmup_epochs=0, end_learning_rate=0.1, train_epochs=10)
    at = rates(schedule, [0, 500, 1001, 2000], 1.0, train_steps=5000)
    np.testing.assert_allclose(at, [1, 0.55 + 0.45 * math.cos(math.pi * 500 / 1001), 0.1, 0.1], rtol=1e-6)


def test_epochs_of_the_schedule_may_end_before_the_run() -> None:
    schedule = Polynomial(warmup_epochs=0, train_epochs=5, end_learning_rate=0.5)
    np.testing.assert_allclose(rates(schedule, [0, 501, 900]), [1, 0.5, 0.5])


def test_inside_a_compiled_function() -> None:
    rate = schedules.learning_rate(Polynomial(), 31.2, IMAGENET / 32768, 2983)
    compiled = tf.function(rate, jit_compile=True)
    for step in (0, 977, 978, 2982):
        at = tf.constant(step, tf.int64)
        np.testing.assert_allclose(compiled(at).numpy(), rate(at).numpy(), rtol=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2_000_000), st.integers(1, 70_000), st.integers(0, 100), st.integers(1, 64))
def test_decay_starts_where_the_warmup_ends(examples: int, batch: int, epochs: int, part: int) -> None:
    """The schedule takes a float of steps per epoch, published code computes warm*N//B; they agree at every step."""
    config = RunConfig(
        num_train_examples=examples, num_eval_examples=1, global_batch_size=batch, train_steps=10
    )
    run_length, warmup = RunLength.of(config), epochs / part
    start = Polynomial(warmup_epochs=warmup).decay_start(run_length.steps_per_epoch)
    exact = math.floor(fractions.Fraction(warmup) * examples / batch)
    # 1/3 as a float is slightly less than a third; the schedule then rounds to the nearest whole step.
    nearly = exact + 1 - fractions.Fraction(warmup) * examples / batch < 1e-6
    assert start == (exact + 1 if nearly else exact)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5])
def test_polynomial_takes_any_power(power: float) -> None:
    """The decay ends one step after the last, as in lars_util.py (steps + 1)."""
    schedule = Polynomial(warmup_epochs=0.0, power=power, end_learning_rate=0.5)
    rate = schedules.learning_rate(schedule, 2.5, steps_per_epoch=10, train_steps=40)
    steps = np.arange(41)
    np.testing.assert_allclose(rate(tf.constant(steps)), 0.5 + 2.0 * (1 - steps / 41) ** power, rtol=1e-6)


@pytest.mark.parametrize("train_steps", [1, 1000, 5000])
def test_a_table_has_the_rates_and_the_length_of_similar_runs(train_steps: int) -> None:
    schedule = Polynomial(warmup_epochs=2)
    rate = schedules.learning_rate(schedule, 3.1, 100.0, train_steps)
    traced = tf.function(schedules.tabled(rate, train_steps)).get_concrete_function(
        tf.TensorSpec([], tf.int32)
    )
    for step in {0, train_steps // 2, train_steps - 1}:
        assert traced(tf.constant(step, tf.int32)).numpy() == rate(tf.constant(step)).numpy()
    (table,) = traced.captured_inputs  # An argument of the program, no constant in it.
    assert table.shape[0] == (8192 if train_steps == 5000 else 1024)


# The Transformer's and GNMT's rates, step by step.
_STEPS = np.arange(0, 6000, 7)


@pytest.mark.parametrize(("scale", "warm"), [(2.0, 1000), (1.3, 550), (1.875, 1107), (3.30922, 664)])
def test_noam_is_the_published_formula(scale, warm):
    rate = schedules.learning_rate(Noam(warmup_steps=warm, width=1024), scale, 1107.0, 4428)
    s = _STEPS.astype(float)
    expected = scale * np.minimum(1, s / warm) * np.maximum(s, warm) ** -0.5 * 1024**-0.5
    np.testing.assert_allclose(rate(_STEPS), expected, rtol=1e-6)


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize(("warm", "start", "interval"), [(150, 4000, 300), (200, 1924, 241)])
def test_gnmt_is_google_s_or_the_reference_s(warm, start, interval, at_start):
    schedule = Gnmt(warmup_steps=warm, warmup_curve="exponential", factor=0.5, decay_start_step=start,
        decay_interval=interval, decay_at_start=at_start,
    )  # fmt: skip
    rate = schedules.learning_rate(schedule, 0.0045, 420.0, 4200)
    for s in [*_STEPS, start - 1, start, start + interval - 1, start + interval, start + 4 * interval]:
        if s < warm:
            expected = 0.0045 * 0.01 ** ((warm - s) / warm)
        elif s < start:
            expected = 0.0045
        else:
            halvings = (s - start) // interval + (1 if at_start else 0)
            expected = 0.0045 * 0.5 ** min(halvings, 4)
        assert float(rate(int(s))) == pytest.approx(expected, rel=1e-6), s
