"""Tests the clock: blocks partition the steps of any interrupted run, and give the published step counts."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.errors import UserError
from resnet.presets import PRESETS


@dataclass(frozen=True)
class Config(RunConfig):
    """A configuration with both roundings."""

    steps_per_epoch_rounding: str = "ceil"


@st.composite
def configs(draw):
    examples = draw(st.integers(1, 400))
    return Config(
        num_train_examples=examples,
        num_eval_examples=draw(st.integers(1, 500)),
        global_batch_size=draw(st.integers(1, 600)),
        eval_batch_size=draw(st.integers(1, 64)),
        train_epochs=draw(st.floats(0.5, 30)),
        train_steps=draw(st.sampled_from([0, 0, 1, 7, 100])),
        epochs_per_block=draw(st.floats(0.05, 7)),
        steps_per_block=draw(st.sampled_from([0, 0, 1, 9])),
        steps_per_epoch_rounding=draw(st.sampled_from(["floor", "ceil"])),
        eval_epochs=draw(st.sampled_from([(), (), (0.01,), (0.3,), (3.0,), (4.0, 6.0), (0.1, 0.2, 7.0)])),
    )


def clock_of(config):
    try:
        return RunLength.of(config)
    except UserError as error:
        assert "train_epochs" in str(error)
        return None


@given(configs())
def test_blocks_partition_the_steps_and_their_epochs_increase(config):
    run_length = clock_of(config)
    if run_length is None:
        return
    blocks = list(run_length.intervals())
    assert [step for b in blocks for step in range(b.first_step, b.end_step)] == list(
        range(run_length.train_steps)
    )
    assert [b.index for b in blocks] == list(range(len(blocks)))
    assert all(b.num_steps > 0 and b.epoch_count > 0 for b in blocks)
    epochs = [epoch for b in blocks for epoch in range(b.first_epoch, b.last_epoch + 1)]
    assert epochs == list(range(1, len(epochs) + 1))


@given(configs(), st.data())
def test_a_run_resumed_at_any_step_runs_the_remaining_steps(config, data):
    run_length = clock_of(config)
    if run_length is None:
        return
    start = data.draw(st.integers(0, run_length.train_steps))
    rest = list(run_length.intervals(start))
    assert [s for b in rest for s in range(b.first_step, b.end_step)] == list(
        range(start, run_length.train_steps)
    )
    whole = {b.index: b for b in run_length.intervals()}
    for block in rest:
        same = whole[block.index]
        assert (block.end_step, block.first_epoch, block.last_epoch) == (
            same.end_step,
            same.first_epoch,
            same.last_epoch,
        )


@given(configs(), st.data())
def test_a_run_stopped_before_an_evaluation_resumes_with_it(config, data):
    run_length = clock_of(config)
    if run_length is None:
        return
    block = data.draw(st.sampled_from(list(run_length.intervals())[:50]))
    first, *rest = run_length.intervals(block.end_step, evaluated=False)
    assert (first.index, first.num_steps, first.end_step) == (block.index, 0, block.end_step)
    assert rest == list(run_length.intervals(block.end_step))


def test_nothing_waits_for_an_evaluation_at_the_start_or_inside_a_block():
    run_length = RunLength.of(PRESETS["tpu-v3-2048"])
    assert list(run_length.intervals(0, evaluated=False)) == list(run_length.intervals())
    assert list(run_length.intervals(5, evaluated=False)) == list(run_length.intervals(5))


@given(configs())
def test_evaluation_pads_less_than_a_batch(config):
    run_length = clock_of(config)
    if run_length is None:
        return
    padded = run_length.eval_steps * config.eval_batch_size
    assert 0 <= padded - config.num_eval_examples < config.eval_batch_size


@given(configs())
def test_whole_steps_per_epoch_follow_the_configured_rounding(config):
    run_length = clock_of(config)
    if run_length is None:
        return
    exact = Fraction(config.num_train_examples, config.global_batch_size)
    rounded = math.floor(exact) if config.steps_per_epoch_rounding == "floor" else math.ceil(exact)
    assert run_length.whole_steps_per_epoch == max(1, rounded)


# Steps, steps between evaluations and epochs of the published logs (docs/sources.md, mlperf 1.1).
@pytest.mark.parametrize(
    "name, steps, per_block, epochs",
    [("tpu-v3-32", 22536, 1252, 72), ("tpu-v3-2048", 2983, 157, 76), ("tpu-v3-8192", 1738, 79, 88)],
)
def test_published_steps(name, steps, per_block, epochs):
    """The epochs and an evaluation every 4, rounded up, give the numbers that the presets state."""
    run_length = RunLength.of(PRESETS[name])
    assert run_length.train_steps == steps and {b.num_steps for b in run_length.intervals()} == {per_block}
    config = replace(PRESETS[name], train_steps=0, steps_per_block=0, train_epochs=float(epochs))
    rounded = RunLength.of(config)
    assert rounded.steps_per_block == per_block
    # Rounding each block up gives 4 to 19 steps more than rounding the whole run up.
    assert 0 <= steps - rounded.train_steps < epochs // 4
    for blocks in (list(run_length.intervals()), list(rounded.intervals())):
        assert [b.last_epoch for b in blocks] == list(range(4, epochs + 1, 4))
        assert {b.epoch_count for b in blocks} == {4}


def test_cpu_tiny_blocks():
    run_length = RunLength.of(PRESETS["cpu-tiny"])
    assert run_length.steps_per_epoch == 62.5 and run_length.eval_steps == 16
    assert [b.last_epoch for b in run_length.intervals()] == [2, 4, 6, 8, 10, 12]


def test_the_first_block_may_be_longer_than_the_others():
    """SSD's published runs evaluate late first, then more often (docs/sources.md, mlperf 1.2)."""
    config = Config(
        num_train_examples=100,
        num_eval_examples=1,
        global_batch_size=10,
        train_epochs=9.0,
        eval_epochs=(5.0,),
    )
    assert [block.num_steps for block in RunLength.of(config).intervals()] == [50, 10, 10, 10, 10]
    blocks = RunLength.of(replace(config, eval_epochs=(1.75,), steps_per_block=20)).intervals()
    assert [block.num_steps for block in blocks] == [35, 20, 20, 15]


def test_the_first_evaluations_may_stand_at_any_epochs():
    """SSD's rules evaluate after epochs 40, 50, 55, 60, ...; published code trains in equal blocks of 578 steps."""
    config = Config(
        num_train_examples=118287, num_eval_examples=1, global_batch_size=1024, train_epochs=65.0,
        eval_epochs=(40.0, 50.0), epochs_per_block=5.0,
    )  # fmt: skip
    epochs = [40, 50, 55, 60, 65]
    by_epochs = list(RunLength.of(config).intervals())
    assert [block.last_epoch for block in by_epochs] == epochs
    assert [block.end_step for block in by_epochs] == [4621, 5776, 6354, 6932, 7509]
    by_steps = list(RunLength.of(replace(config, steps_per_block=578, train_steps=13 * 578)).intervals())
    assert [block.last_epoch for block in by_steps] == epochs
    assert [block.end_step // 578 for block in by_steps] == [8, 10, 11, 12, 13]
    resumed = list(RunLength.of(config).intervals(start_step=4700))
    assert [(b.first_step, b.end_step, b.first_epoch, b.last_epoch) for b in resumed[:1]] == [
        (4700, 5776, 41, 50)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_epochs": (5.0, 5.0)}, r"config\.eval_epochs=\[5.0, 5.0\]: must be positive and ascend"),
        ({"eval_epochs": (0.0,)}, r"config\.eval_epochs=\[0.0\]: must be positive and ascend"),
        ({"eval_epochs": (float("nan"),)}, r"config\.eval_epochs=\[nan\]: must be positive and ascend"),
    ],
)
def test_evaluations_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Config(quality_target=0.5, **changes).validate()


@pytest.mark.parametrize(
    "epochs, rounding, steps",
    [(0.1, "ceil", 60), (0.3, "floor", 180), (16 / 3, "floor", 3200), (16 / 3, "ceil", 3200)],
)
def test_epochs_are_the_simple_fraction_that_their_number_stands_for(epochs, rounding, steps):
    """600 steps are an epoch; a float of 0.1 is above it, one of 0.3 below."""
    config = Config(
        num_train_examples=60000,
        num_eval_examples=1,
        global_batch_size=100,
        train_epochs=epochs,
        steps_per_epoch_rounding=rounding,
    )
    assert RunLength.of(config).train_steps == steps
