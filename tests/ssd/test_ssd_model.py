"""Tests the network against stock tf_keras layers in float64, its sizes and its stem."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import precision
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from ssd import model
from ssd.config import Config
from ssd.presets import PRESETS

layers = tf_keras.layers
SMALL = dataclasses.replace(PRESETS["cpu-tiny"], width=4, global_batch_size=2, image_size=75)


def stock(config: Config) -> tf_keras.Model:
    """SSD on ResNet-34, layer by layer like the reference, with separate padding layers."""

    def conv(x, filters, size, stride=1, pad=0, bias=False):
        x = layers.ZeroPadding2D(pad, dtype="float64")(x)
        return layers.Conv2D(filters, size, stride, use_bias=bias, dtype="float64")(x)

    def norm(x):
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype="float64")(x)

    def relu(x):
        return layers.Activation("relu", dtype="float64")(x)

    def block(x, filters, stride, project):
        y = norm(conv(relu(norm(conv(x, filters, 3, stride, 1))), filters, 3, 1, 1))
        side = norm(conv(x, filters, 1, stride)) if project else x
        return relu(layers.add([y, side], dtype="float64"))

    w = config.width
    images = layers.Input([config.image_size, config.image_size, 3], dtype="float64")
    x = relu(norm(conv(images, w, 7, 2, 3)))
    x = layers.MaxPool2D(3, 2, dtype="float64")(layers.ZeroPadding2D(1, dtype="float64")(x))
    for i in range(13):
        filters = w if i < 3 else 2 * w if i < 7 else 4 * w
        x = block(x, filters, 2 if i == 3 else 1, i in (3, 7))
    maps = [x]
    for squeeze, out, stride, pad in [(4, 8, 2, 1), (4, 8, 2, 1), (2, 4, 1, 0)]:  # The last is a pixel wide.
        x = relu(conv(relu(conv(x, squeeze * w, 1, bias=True)), out * w, 3, stride, pad, True))
        maps.append(x)

    def heads(values):
        actual = []
        for x, number in zip(maps, config.sizes.per_cell):
            y = conv(x, number * values, 3, 1, 1, True)
            y = layers.Reshape([-1, number, values], dtype="float64")(y)
            actual.append(
                layers.Reshape([-1, values], dtype="float64")(layers.Permute([2, 1, 3], dtype="float64")(y))
            )
        return layers.concatenate(actual, axis=1, dtype="float64")

    return tf_keras.Model(images, [heads(4), heads(config.num_classes)])


def by_creation(network: tf_keras.Model, kinds: tuple[type, ...]) -> list[tf_keras.layers.Layer]:
    """The layers of some kinds in the order of their creation, which a counter in their variables' ids gives."""
    picks = [layer for layer in network.layers if isinstance(layer, kinds)]
    return sorted(picks, key=lambda layer: int(layer.trainable_weights[0]._unique_id.rsplit("_", 1)[1]))


def pair(config: Config):
    ours, theirs = model.build(config, Single(), precision("fp64")), stock(config)
    mine = by_creation(ours, (layers.Conv2D, SyncBatchNorm))
    other = by_creation(theirs, (layers.Conv2D, layers.BatchNormalization))
    rng, variables = np.random.default_rng(0), []
    for a, b in zip(mine, other, strict=True):
        for v, u in zip(a.trainable_weights, b.trainable_weights, strict=True):
            assert v.shape == u.shape, (a.name, b.name)
            spread = 0.3 if len(v.shape) == 1 else np.sqrt(2 / np.prod(v.shape[:3]))
            value = rng.normal(1 if "gamma" in v.name else 0, spread, v.shape)
            v.assign(value)
            u.assign(value)
            variables.append((v, u))
    assert len(variables) == len(ours.trainable_variables) == len(theirs.trainable_variables)
    return ours, theirs, variables


def outputs_and_gradients(network, images, variables):
    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            codes, logits = network(images, training=True)
            loss = tf.reduce_sum(tf.sin(codes)) + tf.reduce_sum(tf.nn.softmax(logits)[..., 0] ** 2)
        return codes, logits, tape.gradient(loss, variables)

    return step()


def distance(a, b) -> float:
    return float(np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b))


@pytest.mark.parametrize("size", [75, pytest.param(72, marks=pytest.mark.e2e)])
def test_outputs_and_gradients_are_those_of_stock_layers_in_float64(size):
    ours, theirs, variables = pair(dataclasses.replace(SMALL, image_size=size))
    images = tf.constant(np.random.default_rng(1).normal(size=[2, size, size, 3]))
    mine = outputs_and_gradients(ours, images, [v for v, _ in variables])
    other = outputs_and_gradients(theirs, images, [u for _, u in variables])
    assert distance(mine[0], other[0]) < 1e-8 and distance(mine[1], other[1]) < 1e-8
    assert max(distance(a, b) for a, b in zip(mine[2], other[2])) < 1e-8


def full_size(**changes) -> Config:
    return dataclasses.replace(Config(), replicas="single", global_batch_size=1, precision="fp32", **changes)


def test_full_size_network_has_8732_anchors_and_the_counted_parameters():
    network = model.build(full_size(), Single(), precision("fp32"))
    codes, logits = network.output_shape
    assert codes[1:] == (8732, 4) and logits[1:] == (8732, 81)
    assert model.anchors(full_size()).shape == (8732, 4)

    def conv(size, inputs, outputs, bias=False):
        return size * size * inputs * outputs + (outputs if bias else 2 * outputs)  # or gamma and beta

    backbone = conv(7, 3, 64) + 6 * conv(3, 64, 64)
    backbone += conv(3, 64, 128) + 7 * conv(3, 128, 128) + conv(1, 64, 128)
    backbone += conv(3, 128, 256) + 11 * conv(3, 256, 256) + conv(1, 128, 256)
    extras = [(256, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256)]
    rest = sum(conv(1, a, b, True) + conv(3, b, c, True) for a, b, c in extras)
    channels, anchors = (256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4)
    rest += sum(conv(3, c, n * 85, True) for c, n in zip(channels, anchors))
    # torchvision's ResNet-34 has 21,797,672, of which 13,114,368 in layer4 and 513,000 in fc.
    assert backbone == 21797672 - 13114368 - 513000
    assert parameters(network) == backbone + rest == 19972534
    assert forward_macs(network) > 10e9


def test_published_sizes():
    assert full_size().feature_sizes == (38, 19, 10, 5, 3, 1)


def test_space_to_depth_changes_nothing():
    config = dataclasses.replace(SMALL, image_size=72)
    plain = model.build(config, Single(), precision("fp64"))
    blocks = model.build(dataclasses.replace(config, space_to_depth=True), Single(), precision("fp64"))
    blocks.set_weights(plain.get_weights())
    images = tf.constant(np.random.default_rng(2).normal(size=[2, 72, 72, 3]))
    for a, b in zip(blocks(images), plain(images)):
        assert distance(a, b) < 1e-12


@pytest.mark.parametrize("name", ["plain", "google", "nvidia"])
def test_biases_start_as_in_google_s_code_or_as_in_the_reference(name):
    """PyTorch draws a convolution's bias from +-1 / sqrt(fan-in); REF ssd-v1/ssd/ssd300.py leaves it so."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], implementation=name)
    network = model.build(config, Single(), precision("fp32"))
    convolutions = [layer for layer in network.layers if getattr(layer, "bias", None) is not None]
    sizes = config.sizes
    assert len(convolutions) == 2 * (sizes.strided + sizes.unpadded) + 2 * len(sizes.per_cell)
    ratios = []
    for layer in convolutions:
        bound, bias = np.prod(layer.kernel.shape[:3]) ** -0.5, layer.bias.numpy()
        ratios += list(bias / bound)
    if name != "nvidia":
        assert not np.any(ratios)
        return
    assert np.abs(ratios).max() <= 1 and np.min(ratios) < -0.9 and np.max(ratios) > 0.9
    assert len(set(np.round(ratios, 6))) > 0.99 * len(ratios)  # No two layers have the same draws.
