"""Tests span batch norm against numpy: groups, gradients, moving averages, merged moments."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import contiguous_groups
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.batch_norm import SyncBatchNorm, merge_moments, span_layers
from common.layers.precision import precision

CHANNELS, EPSILON = 3, 1e-5


def _images(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.5, 2.0, [batch, 5, 4, CHANNELS])


def _layer(replicas, span, name="fp64", **kwargs) -> SyncBatchNorm:
    return SyncBatchNorm(replicas, span, precision(name), epsilon=EPSILON, **kwargs)


def _naive(x: np.ndarray, groups: int, gamma, beta, upstream):
    """Output and gradients (x, gamma, beta) of batch norm, one group of consecutive images at a time."""
    out, dx, dgamma, dbeta, means, variances = [], [], 0.0, 0.0, [], []
    for part, up in zip(np.split(x, groups), np.split(upstream, groups)):
        count = part.size // CHANNELS
        mean, variance = part.mean((0, 1, 2)), part.var((0, 1, 2))
        normal = (part - mean) / np.sqrt(variance + EPSILON)
        out.append(normal * gamma + beta)
        dbeta = dbeta + up.sum((0, 1, 2))
        dgamma = dgamma + (up * normal).sum((0, 1, 2))
        inner = count * up - up.sum((0, 1, 2)) - normal * (up * normal).sum((0, 1, 2))
        dx.append(gamma / np.sqrt(variance + EPSILON) * inner / count)
        means.append(mean)
        variances.append(variance)
    return np.concatenate(out), np.concatenate(dx), dgamma, dbeta, np.stack(means), np.stack(variances)


def _set_affine(layer: SyncBatchNorm) -> tuple[np.ndarray, np.ndarray]:
    gamma, beta = np.array([0.5, 1.5, -2.0]), np.array([0.1, -0.3, 2.0])
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    return gamma, beta


@pytest.mark.parametrize("span, groups", [(0, 1), (8, 1), (4, 2), (2, 4), (1, 8)])
def test_virtual_groups_equal_a_loop_over_groups(span, groups):
    x, upstream = _images(8), _images(8, seed=1)
    layer = _layer(Single(), span)
    layer.build(x.shape)
    gamma, beta = _set_affine(layer)
    image = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(image)
        y = layer(image, training=True)
    gradients = tape.gradient(y, [image, layer.gamma, layer.beta], output_gradients=tf.constant(upstream))
    expected = _naive(x, groups, gamma, beta, upstream)
    for actual, want in zip([y, *gradients], expected):
        np.testing.assert_allclose(actual, want, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(layer.moving_mean, 0.1 * expected[4], rtol=1e-12)
    np.testing.assert_allclose(layer.moving_variance, 0.9 + 0.1 * expected[5], rtol=1e-12)


def _on_replicas(
    replicas, x: np.ndarray, upstream: np.ndarray, layer: SyncBatchNorm
) -> list[list[np.ndarray]]:
    """(y, dx, dgamma, dbeta), each by replica; the replicas get equal parts of x in order."""
    batch = len(x) // replicas.num_replicas

    @tf.function(autograph=False)
    def step():
        def replica():
            mine = replicas.replica_id() * batch
            image, up = (tf.constant(a)[mine : mine + batch] for a in (x, upstream))
            image, up = (tf.ensure_shape(a, [batch, *x.shape[1:]]) for a in (image, up))
            with tf.GradientTape() as tape:
                tape.watch(image)
                y = layer(image, training=True)
            return y, *tape.gradient(y, [image, layer.gamma, layer.beta], output_gradients=up)

        return replicas.run(replica)

    return [[v.numpy() for v in replicas.local_results(value)] for value in step()]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_groups_of_replicas_equal_virtual_groups(size):
    """4 replicas of 2 images equal one replica of 8 images sorted by group."""
    x, upstream = _images(8), _images(8, seed=1)
    replicas, groups = Mirrored(4), contiguous_groups(4, size)
    with replicas.scope():
        layer = _layer(replicas, 2 * size)
        layer.build([2, *x.shape[1:]])
        gamma, beta = _set_affine(layer)
    y, dx, dgamma, dbeta = _on_replicas(replicas, x, upstream, layer)
    order = np.ravel([[2 * r, 2 * r + 1] for r in np.ravel(groups)])
    expected = _naive(x[order], len(groups), gamma, beta, upstream[order])
    np.testing.assert_allclose(np.concatenate(y)[order], expected[0], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.concatenate(dx)[order], expected[1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sum(dgamma), expected[2], rtol=1e-10)
    np.testing.assert_allclose(sum(dbeta), expected[3], rtol=1e-10)
    for r, moving in enumerate(replicas.local_results(layer.moving_mean)):
        group = next(i for i, members in enumerate(groups) if r in members)
        np.testing.assert_allclose(moving[0], 0.1 * expected[4][group], rtol=1e-10)

    tf.function(lambda: replicas.run(lambda: merge_moments([layer], replicas)), autograph=False)()
    means, variances = 0.1 * expected[4], 0.9 + 0.1 * expected[5]
    np.testing.assert_allclose(layer.merged_mean, means.mean(0), rtol=1e-10)
    np.testing.assert_allclose(layer.merged_variance, variances.mean(0) + means.var(0), rtol=1e-10)


@pytest.mark.parametrize("span", [1, 2, 4, 8])
def test_merged_moments_are_those_of_all_images(span):
    """With a momentum of 0 the merged moments are the mean and variance of all images together, however grouped."""
    x = _images(8)
    replicas = Mirrored(4)
    with replicas.scope():
        layer = _layer(replicas, span, momentum=0.0)
        layer.build([2, *x.shape[1:]])
    _on_replicas(replicas, x, x, layer)
    tf.function(lambda: replicas.run(lambda: merge_moments([layer], replicas)), autograph=False)()
    np.testing.assert_allclose(layer.merged_mean, x.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(layer.merged_variance, x.var((0, 1, 2)), rtol=1e-12)


def test_groups_of_partitioned_images_are_made_of_whole_groups():
    """Two replicas share each image: the four places are the pairs of eight replicas."""

    eight = Single()
    eight.num_replicas = 8
    layer = _layer(eight, 4)
    layer.spatial.partitions = 2
    assert layer._grouping(2) == (1, [[0, 1, 2, 3], [4, 5, 6, 7]])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name, tolerance", [("fp64", 1e-11), ("fp32", 2e-5), ("bf16", 2e-2), ("fp16", 3e-3)])
@pytest.mark.parametrize("compiled", [False, True])
def test_batch_norm_and_its_relu_equal_their_formulas(name, tolerance, relu, compiled):
    """Under XLA one function computes both, with its own gradient."""
    policy = precision(name)
    x, upstream = (tf.cast(_images(8, s), policy.compute) for s in (0, 1))
    layer = _layer(Single(), 0, name, relu=relu)
    layer.build(x.shape)
    gamma, beta = _set_affine(layer)

    @tf.function(autograph=False, jit_compile=compiled)
    def step(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, *tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=upstream)

    y, *gradients = step(x, upstream)
    assert y.dtype == x.dtype
    wide, up = (tf.cast(value, tf.float64).numpy() for value in (x, upstream))
    out, *_ = _naive(wide, 1, gamma, beta, up)
    out, *expected, mean, variance = _naive(wide, 1, gamma, beta, up * (out > 0) if relu else up)
    for actual, want in zip([y, *gradients], [np.maximum(out, 0) if relu else out, *expected]):
        atol = tolerance * np.abs(want).max()
        np.testing.assert_allclose(tf.cast(actual, tf.float64), want, rtol=tolerance, atol=atol)
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean, rtol=tolerance)
    np.testing.assert_allclose(layer.moving_variance, 0.9 + 0.1 * variance, rtol=tolerance)


@pytest.mark.parametrize("setting", [{"span": 2}, {"span": 0, "trainable": False}])
def test_the_layers_relu_belongs_to_every_form(setting):
    x = tf.constant(_images(4))
    alone, joined = (_layer(Single(), **setting, relu=relu) for relu in (False, True))
    for layer in (alone, joined):
        layer.build(x.shape)
        _set_affine(layer)
    for training in (False, True):
        want = np.maximum(alone(x, training=training), 0)
        np.testing.assert_array_equal(joined(x, training=training), want)


def test_moving_average_after_many_steps_and_evaluation():
    layer = _layer(Single(), 2, "fp32", momentum=0.8)
    mean, variance = np.zeros([2, CHANNELS]), np.ones([2, CHANNELS])
    for step in range(5):
        x = _images(4, step).astype(np.float32)
        layer(x, training=True)
        groups = np.stack(np.split(x.astype(np.float64), 2))
        mean = 0.8 * mean + 0.2 * groups.mean((1, 2, 3))
        variance = 0.8 * variance + 0.2 * groups.var((1, 2, 3))
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, variance, rtol=1e-5)

    merge_moments([layer], Single())
    merged_mean, merged_variance = mean.mean(0), variance.mean(0) + mean.var(0)
    np.testing.assert_allclose(layer.merged_variance, merged_variance, rtol=1e-5)
    x = _images(3, 9).astype(np.float32)
    want = (x - merged_mean) / np.sqrt(merged_variance + EPSILON)
    np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-5)


def test_one_group_on_one_replica_merges_to_its_own_moments():
    layer = _layer(Single(), 0, "fp32")
    layer(_images(4).astype(np.float32), training=True)
    merge_moments([layer], Single())
    assert np.array_equal(layer.merged_mean, layer.moving_mean[0])
    assert np.array_equal(layer.merged_variance, layer.moving_variance[0])


def test_without_affine_there_is_nothing_to_train():
    layer = _layer(Single(), 0, "fp32", affine=False)
    x = _images(4).astype(np.float32)
    y = layer(x, training=True)
    assert layer.trainable_weights == []
    np.testing.assert_allclose(y, (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + EPSILON), atol=1e-5)


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_frozen_stays_in_its_evaluation_form(name):
    layer = _layer(Single(), 0, name, trainable=False)
    x = tf.constant(_images(4), precision(name).compute)
    y = layer(x, training=True)
    np.testing.assert_allclose(y, x / np.sqrt(1 + EPSILON), rtol=1e-6)
    assert layer.trainable_weights == []
    assert not np.any(layer.moving_mean)


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_frozen_passes_on_the_gradient_of_its_evaluation_form(name):
    layer, rng = _layer(Single(), 0, name, trainable=False), np.random.default_rng(5)
    x = tf.constant(_images(4), precision(name).compute)
    layer(x)
    for variable in (layer.gamma, layer.beta, layer.merged_mean, layer.merged_variance):
        variable.assign(rng.uniform(0.5, 2, CHANNELS))
    actual = []
    for training in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
            total = tf.reduce_sum(y * y)
        actual.append((y, tape.gradient(total, x)))
    for mine, other in zip(*actual):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize("shape", [[6, CHANNELS], [6, 4, CHANNELS], [6, 2, 3, 4, CHANNELS]])
def test_any_rank(shape):
    x = np.random.default_rng(3).normal(2, 3, shape).astype(np.float32)
    layer = _layer(Single(), 0, "fp32")
    axes = tuple(range(len(shape) - 1))
    want = (x - x.mean(axes)) / np.sqrt(x.var(axes) + EPSILON)
    np.testing.assert_allclose(layer(x, training=True), want, atol=1e-5)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("span, batch", [(3, 8), (12, 8), (16, 8), (-1, 8)])
def test_spans_that_do_not_fit_name_the_values(span, batch):
    with pytest.raises(UserError, match=f"batch_norm_span={span}.*{batch}"):
        _layer(Single(), span).build([batch, 4, 4, CHANNELS])


def test_a_grouped_layer_needs_one_batch_size():
    with pytest.raises(UserError, match="fixed batch size"):
        _layer(Single(), 2).build([None, 4, 4, CHANNELS])
    layer = _layer(Single(), 2)
    layer(_images(4), training=True)
    with pytest.raises(UserError, match="one batch size"):
        layer(_images(8), training=True)


def test_span_layers_finds_nested_layers():
    inner = tf_keras.Sequential([_layer(Single(), 0), tf_keras.layers.ReLU()])
    outer = tf_keras.Sequential([tf_keras.layers.Dense(3), inner])
    assert span_layers(outer) == [inner.layers[0]]
