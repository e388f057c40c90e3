"""The curvature along the gradient against the exact one; what measuring leaves behind: nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.errors import UserError
from common.precision import precision
from common.replicas.single import Single
from mnist import tiny
from mnist.config import PRESETS
from mnist.task import Task
from studies import legw_curvature

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


def test_measuring_does_not_disturb_the_training(tmp_path) -> None:
    tiny.generate(tmp_path)
    task = Task(CONFIG, str(tmp_path))
    often = legw_curvature.curvature(task, 6, 1, 32)
    seldom = legw_curvature.curvature(task, 6, 3, 32)
    assert [step for step, _ in often] == [0, 1, 2, 3, 4, 5]
    assert seldom == [often[0], often[3]]


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
