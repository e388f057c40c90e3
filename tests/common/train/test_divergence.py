"""Tests that a run whose loss is not finite names what was so first, and the last healthy step."""

import dataclasses
import math
import re

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.config import benchmarks
from common.config.choices import with_field
from common.config.optimizer import Sgd
from common.config.rules import OPTIMIZERS
from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.errors import UserError
from common.train import divergence, guard
from common.train.programs import Programs
from tests.common.distributed.replicas import processes
from tests.common.export.networks import SMALLER
from tests.common.train import toy
from tests.common.train.loops import run


class SpoiltInput(toy.Task):
    def train_input(self, shard, batch_size, start_step):
        batches = shard.batches_per_step(self.config.global_batch_size, batch_size)

        def spoil(i, batch):
            late = i // batches + start_step >= 6
            return {**batch, "x": tf.where(late, batch["x"] * float("nan"), batch["x"])}

        return super().train_input(shard, batch_size, start_step).enumerate().map(spoil)


class SpoiltGradient(toy.Task):
    """The loss is finite, the gradient of the root of 0 is not."""

    def loss(self, model, batch):
        terms = super().loss(model, batch)
        term = terms["cross_entropy"]
        return {
            "all": dataclasses.replace(term, total=term.total + tf.sqrt(0 * tf.reduce_sum(model.weights[0])))
        }


class SpoiltLoss(toy.Task):
    def loss(self, model, batch):
        terms = super().loss(model, batch)
        term = terms["cross_entropy"]
        return {"all": dataclasses.replace(term, total=term.total / 0.0)}


PRESETS = {"mnist": "cpu-128", "ptb": "cpu-20"}
HUGE = Sgd(1e39, momentum=0.9, scaled_momentum=False)
CASES = {
    "input": (
        SpoiltInput,
        {},
        "7; first not finite: the input 'x' of step 7, after the healthy step 6; fix the data",
    ),
    "gradient": (
        SpoiltGradient,
        {},
        r"2; first not finite: the gradient of \S+ of step 1, after the healthy step 0; lower",
    ),
    "loss": (
        SpoiltLoss,
        {},
        "1; first not finite: the loss itself, .* of step 1, after the healthy step 0; lower",
    ),
    "slot": (
        toy.Task,
        {"optimizer": HUGE},
        r"2; first not finite: the slot 'momentum' of \S+ of step 1, after the healthy",
    ),
}


def end(task, **changes):
    config = toy.config(quality_target=2.0, **changes)
    return run(Programs(task(config), backends.make(config)))[-1]


@pytest.mark.parametrize("replicas", ["single", "mirrored", "pjrt"])
@pytest.mark.parametrize("case", CASES)
def test_the_first_tensor_that_is_not_finite_is_named(case, replicas):
    processes.require(replicas)
    task, changes, expected = CASES[case]
    stopped = end(task, replicas=replicas, num_replicas=1 if replicas == "single" else 2, **changes)
    assert stopped.status == "aborted" and re.match(rf"loss is \S+ at step {expected}", stopped.reason), (
        stopped.reason
    )
    assert stopped.step == int(re.search(r"at step (\d+)", stopped.reason)[1])


def test_a_replay_that_would_take_long_is_left_out(monkeypatch):
    monkeypatch.setattr(guard, "REPLAY_SECONDS", -1)
    assert end(SpoiltLoss).reason == "loss is inf at step 1; lower the learning rate or lengthen the warmup"


EXTREME = (1e-300, 1e-45, 1.2e-38, 1e-30, 1e-8, 1 - 1e-7, 1 - 1e-9, 1e39)


@pytest.mark.parametrize("name", ["sgd", "lars", "adam", "adagrad", "rmsprop", "lamb"])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data(), st.sampled_from(EXTREME))
def test_a_number_is_refused_or_three_steps_stay_finite(name, data, value):
    rule = OPTIMIZERS.make(name, base_learning_rate=1e-3)
    # What a run computes with: epochs and batches count examples.
    numbers = [f"optimizer.{f.name}" for f in dataclasses.fields(rule) if f.type in (float, "float")]
    path = data.draw(st.sampled_from(["loss_scale", *numbers]))
    config = toy.config(optimizer=rule, steps_per_block=3, train_steps=3)
    try:
        config = with_field(config, path, value)
        config.validate()
    except UserError:
        return
    stays_finite(toy.Task(config), lambda loop: loop.train_input(0))


def stays_finite(task, batches):
    loop = Programs(task, backends.make(task.config))
    losses = loop.call(batches(loop), loop.synthetic(False), 3, 0).losses
    assert len(losses) == 3 and divergence._in_variables(loop) == "" and all(map(math.isfinite, losses))


def own_numbers(config, prefix=""):
    """The names of a benchmark's own floating-point fields."""
    common = {f.name for f in dataclasses.fields(RunConfig)} - {"data"} if not prefix else ()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in common and isinstance(value, float):
            yield prefix + field.name
        elif field.name not in common and dataclasses.is_dataclass(value):
            yield from own_numbers(value, f"{prefix}{field.name}.")


SLOW = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt", "tsm_kinetics")


@pytest.mark.parametrize(
    "benchmark", ["mnist", "ptb", *(pytest.param(name, marks=pytest.mark.e2e) for name in SLOW)]
)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data(), st.sampled_from([*EXTREME, -1.0, 2.0, 1e30]))
def test_a_benchmarks_own_number_is_refused_or_three_steps_stay_finite(benchmark, data, value):
    config = benchmarks.module(benchmark, "presets").PRESETS[PRESETS.get(benchmark, "cpu-tiny")]
    path = data.draw(st.sampled_from(sorted(own_numbers(config))))
    changes = {**SMALLER.get(benchmark, {}), "global_batch_size": 4, "num_replicas": 1, "replicas": "single"}
    try:
        config = with_field(dataclasses.replace(config, train_steps=3, **changes), path, value)
        config.validate()
    except UserError:
        return
    stays_finite(benchmarks.module(benchmark, "task").Task(config, None), lambda loop: loop.synthetic(True))
