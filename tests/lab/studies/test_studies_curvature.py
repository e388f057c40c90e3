"""Tests the measured curvature along the gradient against the exact one, and that measuring changes no state."""

import argparse
import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.config.clock import Clock
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.optim import schedules
from lab.studies import legw_curvature
from mnist import tiny
from mnist.presets import PRESETS
from mnist.task import Task
from ptb import tiny as ptb_tiny
from ptb.presets import PRESETS as PTB_PRESETS
from ptb.task import Task as PtbTask

CONFIG = dataclasses.replace(
    PRESETS["cpu-tiny"], model="mlp", precision="fp64", hidden_layers=1, hidden_units=6, activation="tanh"
)


def exact(task: Task, model, batch) -> float:
    """|g' H g| / |g|^2 by differentiating the gradient."""
    variables = model.trainable_variables
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            term = task.loss(model, batch)["cross_entropy"]
            loss = term.total / term.weight
        g = inner.gradient(loss, variables)
        fixed = [tf.stop_gradient(x) for x in g]
        along = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(g, fixed)])
    products = outer.gradient(along, variables)
    top = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(products, fixed)])
    return float(tf.abs(top) / tf.add_n([tf.reduce_sum(x * x) for x in fixed]))


def test_finite_differences_give_the_exact_curvature_and_change_nothing() -> None:
    tf_keras.utils.set_random_seed(0)
    task = Task(CONFIG, None)
    model = task.build(Single(), precision("fp64"))
    (batch,) = task.synthetic_input(32).take(1)
    before = [v.numpy() for v in model.variables]
    found = float(legw_curvature.make_probe(task, model, batch)())
    assert found == pytest.approx(exact(task, model, batch), rel=1e-3)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_the_running_median_covers_the_neighbours() -> None:
    curve = [(4 * i, 100.0 if i == 5 else float(i)) for i in range(12)]
    smooth = legw_curvature.running_median(curve)
    assert [step for step, _ in smooth] == [step for step, _ in curve]
    assert smooth[0][1] == 2.0 and smooth[5][1] == 6.0 and smooth[-1][1] == 9.0


def test_measuring_does_not_disturb_the_training(tmp_path) -> None:
    tiny.generate(tmp_path)
    task = Task(CONFIG, str(tmp_path))
    often = legw_curvature.curvature(task, 6, 1, 32)
    seldom = legw_curvature.curvature(task, 6, 3, 32)
    assert [step for step, _ in often] == [0, 1, 2, 3, 4, 5]
    assert seldom == [often[0], often[3]]


def test_the_fixed_batch_is_the_same_whatever_the_batch(tmp_path) -> None:
    tiny.generate(tmp_path)
    small, large = (
        legw_curvature.fixed_batch(
            Task(dataclasses.replace(CONFIG, global_batch_size=size), str(tmp_path)), 16
        )
        for size in (16, 64)
    )
    assert small["image"].shape[0] == 16
    for name in small:
        np.testing.assert_array_equal(small[name], large[name])


def test_a_carried_state_is_put_back(tmp_path) -> None:
    """Measuring does not disturb the language model's training, and its fixed batch is equal for all batch sizes."""
    ptb_tiny.generate(tmp_path)
    tasks = [
        PtbTask(dataclasses.replace(PTB_PRESETS["cpu-tiny"], global_batch_size=size), str(tmp_path))
        for size in (20, 40)
    ]
    often, seldom = (legw_curvature.curvature(tasks[1], 5, every, 20) for every in (1, 4))
    assert seldom == [often[0], often[4]]
    batches = [legw_curvature.fixed_batch(task, 20) for task in tasks]
    np.testing.assert_array_equal(*(batch["words"] for batch in batches))


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--every=0", "--every: 0 is not at least 1"),
        ("--steps=0", "--steps: 0 is not at least 1"),
        ("--factors=4,0", "--factors: 0 is not at least 1"),
        ("--examples=129", "--examples=129: must be 1..128, the smallest batch"),
        ("--factors=1000", "config.global_batch_size=128000 is more than the 60000 training images"),
    ],
)
def test_invalid_flags_are_one_line(tmp_path, monkeypatch, flag, message) -> None:
    monkeypatch.setattr(legw_curvature, "ROOT", tmp_path)
    parser = argparse.ArgumentParser()
    legw_curvature.add_arguments(parser)
    with pytest.raises(UserError, match=message):
        legw_curvature.run(parser.parse_args(["mnist", flag]))


def test_a_record_with_other_settings_is_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(legw_curvature, "ROOT", tmp_path)
    path = tmp_path / "results" / "study-legw-curvature-mnist" / "128.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"settings": {"steps": 1}, "curve": []}))
    parser = argparse.ArgumentParser()
    legw_curvature.add_arguments(parser)
    with pytest.raises(UserError, match="measured with other settings"):
        legw_curvature.run(parser.parse_args(["mnist", "--factors=1"]))
    with pytest.raises(UserError, match="--factors=a: not whole numbers"):
        legw_curvature.run(parser.parse_args(["mnist", "--factors=a"]))


def test_batches_are_the_benchmark_s_and_a_part_does_not_replace_a_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(legw_curvature, "ROOT", tmp_path)
    configs = []

    def measured(path, settings, study, config) -> list:
        configs.append(config)
        return [(0, 1.0), (4, 2.0)]

    monkeypatch.setattr(legw_curvature, "_measured", measured)
    parser = argparse.ArgumentParser()
    legw_curvature.add_arguments(parser)
    legw_curvature.run(parser.parse_args(["ptb"]))
    assert [c.global_batch_size for c in configs] == [20, 80, 320, 640]
    for config in configs:
        rates = schedules.learning_rate(
            config.schedule, config.optimizer.base_learning_rate, Clock.of(config).steps_per_epoch, 1000
        )
        assert {float(rates(tf.constant(step, tf.int64))) for step in (0, 399, 999)} == {np.float32(0.03)}
    table = tmp_path / "lab/studies" / "legw-curvature-ptb" / "curvature.csv"
    before = table.read_text()
    legw_curvature.run(parser.parse_args(["ptb", "--factors=1,4"]))
    assert table.read_text() == before
    assert (tmp_path / "results" / "study-legw-curvature-ptb" / "curvature.csv").is_file()
