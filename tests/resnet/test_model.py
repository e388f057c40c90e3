"""Tests the structure and options of both networks."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.layers.batch_norm import span_layers
from common.layers.convolution import GroupedConv2D, PaddedConv2D, SpaceToDepthStem
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from resnet import model
from resnet.config import Config
from tests.common.layers.test_dense import value_and_gradients

TINY = Config(image_size=32, num_classes=10, width=8, global_batch_size=4, replicas="single")


def _build(name="fp32", **changes) -> tf_keras.Model:
    return model.build(dataclasses.replace(TINY, **changes), Single(), precision(name))


@functools.cache
def _tiny() -> tf_keras.Model:
    """A tiny network for tests that only inspect it."""
    return _build()


def _step(network, images):
    """(logits, gradients) of a training step's forward and backward pass, with a fixed random loss."""
    weights = tf.random.stateless_normal(
        [images.shape[0], network.output_shape[-1]], [1, 2], dtype=network.output.dtype
    )
    with tf.GradientTape() as tape:
        logits = network(images, training=True)
        loss = tf.reduce_sum(logits * weights)
    return logits, tape.gradient(loss, network.trainable_variables)


def test_full_size():
    network = model.build(Config(global_batch_size=2, replicas="single"), Single(), precision("fp32"))
    assert parameters(network) == 25_557_032
    # 4.09e9: the figure usually given for v1.5; v1, with the stride on the 1x1, has 3.86e9.
    assert forward_macs(network) == 4_089_184_256
    kinds = list(kind_of(network).values())
    assert {k: kinds.count(k) for k in set(kinds)} == {"kernel": 54, "norm": 106, "bias": 1}


def test_strides_sit_on_the_3x3_and_the_projection():
    convolutions = [layer for layer in _tiny().layers if isinstance(layer, tf_keras.layers.Conv2D)]
    assert len(convolutions) == 53
    strided = [layer.kernel_size[0] for layer in convolutions if layer.strides == (2, 2)]
    assert sorted(strided) == [1, 1, 1, 3, 3, 3, 7]
    assert not any(layer.use_bias for layer in convolutions)


def test_width_scales_every_layer_but_the_last():
    shapes = [[v.shape for v in network.trainable_variables] for network in (_tiny(), _build(width=16))]
    for narrow, wide in zip(*shapes):
        if narrow[-1] != 10:
            assert wide[-1] == 2 * narrow[-1]


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_logits_are_in_full_precision(name, dtype):
    network = _build(name)
    images = tf.cast(tf.random.stateless_normal([4, 32, 32, 3], [3, 4]), dtype)
    logits = network(images, training=True)
    assert logits.dtype == precision(name).variable
    assert logits.shape == [4, 10]
    assert np.all(np.isfinite(logits))
    assert all(v.dtype == precision(name).variable for v in network.trainable_variables)
    assert network(images[:3]).shape == [3, 10]


@pytest.mark.parametrize("name, deviation", [("google_v06", 1.0), ("tensorflow2", 2.0)])
def test_initializers(name, deviation):
    network = _build(implementation=name, width=16)
    for layer in network.layers:
        if isinstance(layer, PaddedConv2D) and layer.kernel.shape.num_elements() > 10_000:
            kernel = layer.kernel.numpy()
            fan_in = np.prod(kernel.shape[:3])
            np.testing.assert_allclose(kernel.var() * fan_in, deviation, rtol=0.1)
            # Truncated at two of its own deviations, before rescaling by 1/.8796.
            assert np.abs(kernel).max() <= 2 / 0.87962 * np.sqrt(deviation / fan_in)
    dense = network.layers[-1]
    np.testing.assert_allclose(dense.kernel.numpy().std(), 0.01, rtol=0.05)
    assert not np.any(dense.bias)


def test_the_seed_decides_the_weights():
    first, same, other = _tiny(), _build(seed=TINY.seed), _build(seed=TINY.seed + 1)
    assert all(np.array_equal(a, b) for a, b in zip(first.get_weights(), same.get_weights()))
    kernels = [[v for v in m.trainable_variables if len(v.shape) == 4] for m in (first, other)]
    assert not any(np.array_equal(a, b) for a, b in zip(*kernels))
    flat = [tuple(np.ravel(v)[:4]) for v in kernels[0]]
    assert len(set(flat)) == len(flat)


def test_zero_init_of_the_last_gamma():
    def zeros(network):
        return sum(not np.any(layer.gamma) for layer in span_layers(network))

    assert zeros(_tiny()) == 16
    assert zeros(_build(implementation="mxnet")) == 0
    last = [layer for layer in span_layers(_tiny()) if not np.any(layer.gamma)]
    assert sorted(layer.gamma.shape[0] for layer in last) == sorted(
        [32] * 3 + [64] * 4 + [128] * 6 + [256] * 3
    )


def test_padded_convolution_equals_zero_padding_in_front():
    """Covers all (kernel, stride) of the network, at even and odd sizes, forward and backward."""
    for size, stride in ((1, 1), (1, 2), (3, 1), (3, 2), (7, 2)):
        for pixels in (9, 10):
            x = tf.random.stateless_normal([2, pixels, pixels, 3], [size, stride], dtype=tf.float64)
            pad = (size - 1) // 2
            ours = PaddedConv2D(4, size, pad=pad, strides=stride, use_bias=False, dtype="float64")
            stock = tf_keras.layers.Conv2D(4, size, strides=stride, use_bias=False, dtype="float64")
            padding = tf_keras.layers.ZeroPadding2D(pad, dtype="float64")
            assert ours.compute_output_shape(x.shape) == ours(x).shape
            stock.build([None, None, None, 3])
            stock.kernel.assign(ours.kernel)
            results = []
            for function, layer in ((ours, ours), (lambda x, s=stock, p=padding: s(p(x)), stock)):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = function(x)
                    loss = tf.reduce_sum(y * y)
                results.append([y, *tape.gradient(loss, [x, layer.kernel])])
            for actual, want in zip(*results):
                np.testing.assert_allclose(actual, want, rtol=1e-12, atol=1e-12)


def test_space_to_depth_stem_equals_the_plain_one():
    """The layer alone, forward and both gradients; the variable keeps its 7x7x3 shape."""
    x = tf.random.stateless_normal([2, 12, 16, 3], [0, 1], dtype=tf.float64)
    plain = PaddedConv2D(5, 7, pad=3, strides=2, use_bias=False, dtype="float64")
    blocks = SpaceToDepthStem(5, dtype="float64")
    plain(x), blocks(x)
    blocks.kernel.assign(plain.kernel)
    assert blocks.kernel.shape == [7, 7, 3, 5]
    for actual, want in zip(value_and_gradients(plain, x), value_and_gradients(blocks, x), strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-12, atol=1e-12)


def test_grouped_convolution_equals_the_stock_layer():
    """tf_keras computes it through XLA, whose CPU kernel has groups."""
    x = tf.random.stateless_normal([2, 6, 6, 8], [0, 1])
    ours = GroupedConv2D(6, 3, pad=1, groups=2, bias_initializer="ones")
    stock = tf_keras.layers.Conv2D(6, 3, padding="same", groups=2)
    y = ours(x)
    stock.build(x.shape)
    stock.set_weights(ours.get_weights())
    np.testing.assert_allclose(y, stock(x), rtol=1e-5, atol=1e-5)
