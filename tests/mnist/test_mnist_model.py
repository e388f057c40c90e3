"""Tests the networks against independent ones in float64, and whole steps on several replicas against one."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed import replicas as backends
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.train.describe import describe
from common.train.programs import Programs
from mnist import model, tiny
from mnist.config import Config
from mnist.presets import PRESETS, hyperparameters
from mnist.task import Task
from tests import faulty
from tests.common.train.loops import run

BATCH = 6
TINY = PRESETS["cpu-tiny"]


def built(**changes) -> tuple[Config, tf_keras.Model]:
    tf_keras.utils.set_random_seed(5)
    config = Config(global_batch_size=BATCH, **changes)
    return config, model.build(config, Single(), precision("fp64"))


def pixels() -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).uniform(size=[BATCH, 28, 28]))


def results(call, variables) -> list[tf.Tensor]:
    """Logits and gradients of a loss."""
    with tf.GradientTape() as tape:
        logits = call(pixels())
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(BATCH) % 10, logits)
        loss = tf.reduce_mean(losses)
    return [logits, *tape.gradient(loss, variables)]


def test_the_lstm_equals_one_of_stock_layers() -> None:
    _, ours = built(lstm_units=16)
    images = tf_keras.Input([28, 28], dtype="float64")
    x = tf_keras.layers.TimeDistributed(tf_keras.layers.Dense(16, dtype="float64"), dtype="float64")(images)
    x = tf_keras.layers.LSTM(16, dtype="float64", unroll=True)(x)
    theirs = tf_keras.Model(images, tf_keras.layers.Dense(10, dtype="float64")(x))
    for mine, other in zip(ours.trainable_variables, theirs.trainable_variables, strict=True):
        other.assign(mine)
    pairs = zip(results(ours, ours.trainable_variables), results(theirs, theirs.trainable_variables))
    for actual, want in pairs:
        np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_the_perceptron_equals_its_formula(activation) -> None:
    config, ours = built(model="mlp", hidden_layers=2, hidden_units=7, activation=activation)
    formulas = {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
    }
    x = pixels().numpy().reshape(BATCH, -1)
    weights = ours.get_weights()
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2]):
        x = formulas[activation](x @ kernel + bias)
    np.testing.assert_allclose(ours(pixels()), x @ weights[-2] + weights[-1], rtol=1e-8, atol=1e-12)
    assert len(weights) == 2 * (config.hidden_layers + 1)


def test_dropout_is_for_training_only() -> None:
    _, ours = built(model="mlp", hidden_layers=2, hidden_units=50, dropout=0.5)
    quiet = [ours(pixels(), training=False) for _ in range(2)]
    noisy = [ours(pixels(), training=True) for _ in range(2)]
    np.testing.assert_array_equal(*quiet)
    assert np.any(noisy[0] != noisy[1])


@pytest.mark.parametrize(
    ("changes", "parameters", "macs"),
    [
        # LEGW 5.1.1: 28 x 128 + 128, a cell kernel of 256 x 512 + 512, 128 x 10 + 10. A row of 28 pixels has one
        # product; that of the two matrices belongs to no example.
        ({}, 136586, 28 * (28 + 128) * 512 + 1280),
        # MagmaDNN 3.1, four layers of 528.
        ({"model": "mlp"}, 785 * 528 + 3 * 529 * 528 + 5290, 784 * 528 + 3 * 528 * 528 + 5280),
        # 5x5x32 on 24x24, 12x12x32 -> 128 -> 10.
        ({"model": "cnn"}, 832 + 4608 * 128 + 128 + 1290, 576 * 800 + 4608 * 128 + 1280),
    ],
)
def test_describe_counts_the_published_sizes(changes, parameters, macs) -> None:
    config = Config(**changes)
    description = describe(Task(config, None), hyperparameters(config))
    assert (description["parameters"], description["forward_macs_per_example"]) == (parameters, macs)
    assert description["quality_target"] == 0.985 and description["hyperparameters"]["model"] == config.model


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("digits")
    tiny.generate(folder)
    return folder


def losses(data_dir: pathlib.Path, **changes) -> np.ndarray:
    """The losses of six steps, and the result of the evaluation after them."""
    config = dataclasses.replace(
        TINY, train_steps=6, steps_per_block=6, lstm_units=8, hidden_layers=1, hidden_units=8, **changes
    )
    outcomes = run(Programs(Task(config, str(data_dir)), backends.make(config)))
    trained = next(e.losses for e in outcomes if hasattr(e, "losses"))
    return np.array([*trained, next(e.details["loss"] for e in outcomes if hasattr(e, "details"))])


@pytest.mark.parametrize("network", ["lstm", "mlp"])
def test_replicas_and_micro_batches_train_what_one_replica_does(data_dir, network) -> None:
    fixed = {"model": network, "precision": "fp64", "dropout": 0.2}
    one = losses(data_dir, **fixed)
    two = {"replicas": "mirrored", "num_replicas": 2}
    for changes in (two, {"accumulation_steps": 4}, {**two, "accumulation_steps": 2}):
        np.testing.assert_allclose(losses(data_dir, **changes, **fixed), one, rtol=1e-8)


@pytest.mark.parametrize("network", ["lstm", "mlp", "cnn"])
def test_micro_batches_under_xla(data_dir, network) -> None:
    fixed = {"model": network, "precision": "fp64", "dropout": 0.2}
    compiled = losses(data_dir, accumulation_steps=2, compile="on", **fixed)
    np.testing.assert_allclose(compiled, losses(data_dir, **fixed), rtol=1e-8)


def test_equal_seeds_give_equal_runs(data_dir) -> None:
    first, again, other = (losses(data_dir, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)


def test_an_lstm_cut_into_rows_stays_at_chance(data_dir, monkeypatch) -> None:
    """With the deliberate fault only a digit's last row, which is empty, reaches the output."""
    faulty.inject("mnist", "recurrent", monkeypatch.setattr)
    outcomes = run(Programs(Task(TINY, str(data_dir)), backends.make(TINY)))
    values = [e.value for e in outcomes if hasattr(e, "value")]
    assert len(values) == 20 and max(values) < 0.3
    assert outcomes[-1].status == "aborted"
