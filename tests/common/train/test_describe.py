"""Tests counted parameters and multiply-adds against hand counts and published figures."""

import pytest
import tf_keras

from common.errors import UserError
from common.train.describe import forward_macs, parameters

L = tf_keras.layers


@pytest.mark.parametrize(
    "layer, shape, macs",
    [
        (L.Conv2D(8, 3, padding="same"), [6, 5, 4], 6 * 5 * 3 * 3 * 4 * 8),
        (L.Conv2D(8, 3, strides=2), [7, 7, 4], 3 * 3 * 3 * 3 * 4 * 8),
        (L.Conv2D(8, 3, padding="same", groups=2), [6, 6, 4], 6 * 6 * 3 * 3 * 2 * 8),
        (L.Conv1D(8, 3, padding="same"), [6, 4], 6 * 3 * 4 * 8),
        (L.Conv3D(8, 3, padding="same"), [2, 3, 4, 5], 2 * 3 * 4 * 27 * 5 * 8),
        (L.Conv2DTranspose(8, 2, strides=2), [3, 3, 4], 3 * 3 * 2 * 2 * 4 * 8),
        (L.DepthwiseConv2D(3, padding="same", depth_multiplier=2), [6, 6, 4], 6 * 6 * 3 * 3 * 4 * 2),
        (L.SeparableConv2D(8, 3, padding="same"), [6, 6, 4], 6 * 6 * (3 * 3 * 4 + 4 * 8)),
        (L.Dense(8), [4], 4 * 8),
        (L.Dense(8), [5, 4], 5 * 4 * 8),
        (L.BatchNormalization(), [4, 4, 3], 0),
        (L.PReLU(shared_axes=[1, 2]), [4, 4, 3], None),
    ],
)
def test_one_layer(layer, shape, macs):
    model = tf_keras.Sequential([tf_keras.Input(shape, batch_size=2), layer])
    if macs is None:
        with pytest.raises(UserError, match="multiply_adds"):
            forward_macs(model)
    else:
        assert forward_macs(model) == macs


def test_published_sizes():
    """tf_keras's MobileNet: 4.2 M parameters and 569 M multiply-adds in table 8 of its paper."""
    model = tf_keras.applications.MobileNet(weights=None)
    assert parameters(model) == 4_231_976
    assert round(forward_macs(model) / 1e6) == 569


def test_every_call_of_a_shared_layer_and_model_counts():
    shared = L.Dense(3)
    inner_input = tf_keras.Input([4])
    inner = tf_keras.Model(inner_input, shared(inner_input))
    a, b = tf_keras.Input([4]), tf_keras.Input([4])
    model = tf_keras.Model([a, b], [inner(a), inner(b)])
    assert forward_macs(model) == 2 * 12
    assert parameters(model) == 15


def test_a_frozen_layer_multiplies_too():
    frozen = L.Dense(3, trainable=False)
    model = tf_keras.Sequential([tf_keras.Input([4]), frozen, L.Dense(2)])
    assert forward_macs(model) == 4 * 3 + 3 * 2
    assert parameters(model) == 3 * 2 + 2


def test_unknown_sizes_are_named():
    model = tf_keras.Sequential([tf_keras.Input([None, 4]), L.Dense(3)])
    with pytest.raises(UserError, match="unknown size"):
        forward_macs(model)
