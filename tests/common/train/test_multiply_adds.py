"""Tests counted multiply-adds against hand counts and published figures."""

import pytest
import tensorflow as tf
import tf_keras

from common.errors import UserError
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs

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
        (L.Conv3DTranspose(8, 2, strides=2), [3, 2, 3, 4], 3 * 2 * 3 * 2 * 2 * 2 * 4 * 8),
        (L.DepthwiseConv2D(3, padding="same", depth_multiplier=2), [6, 6, 4], 6 * 6 * 3 * 3 * 4 * 2),
        (L.SeparableConv2D(8, 3, padding="same"), [6, 6, 4], 6 * 6 * (3 * 3 * 4 + 4 * 8)),
        (L.Dense(8), [4], 4 * 8),
        (L.Dense(8), [5, 4], 5 * 4 * 8),
        (L.EinsumDense("...ij,jk->...ik", (None, 8)), [3, 5, 4], 3 * 5 * 4 * 8),
        (L.BatchNormalization(), [4, 4, 3], 0),
        (L.PReLU(shared_axes=[1, 2]), [4, 4, 3], 0),
    ],
)
def test_one_layer(layer, shape, macs):
    model = tf_keras.Sequential([tf_keras.Input(shape, batch_size=2), layer])
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


class Between(L.Layer):
    """Runs `step` on its input [b, n] `turns` times, with the product of its weights."""

    def __init__(self, turns: int | None):
        super().__init__()
        self.turns = turns

    def build(self, shape: tf.TensorShape) -> None:
        self.a, self.b = (self.add_weight(name, [shape[-1], shape[-1]]) for name in "ab")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        both = self.a @ self.b
        return tf.while_loop(
            lambda i, x: i < 7, lambda i, x: (i + 1, x @ both), (0, x), maximum_iterations=self.turns
        )[1]


def test_a_loop_counts_its_turns_and_a_product_of_weights_nothing():
    assert forward_macs(tf_keras.Sequential([tf_keras.Input([4]), Between(7)])) == 7 * 4 * 4
    with pytest.raises(UserError, match="number of turns is unknown"):
        forward_macs(tf_keras.Sequential([tf_keras.Input([4]), Between(None)]))


def test_a_product_without_a_formula_is_an_error():
    dense = L.Lambda(lambda x: tf.sparse.sparse_dense_matmul(tf.sparse.eye(4), x, adjoint_b=True))
    with pytest.raises(UserError, match="SparseTensorDenseMatMul .*no formula"):
        forward_macs(tf_keras.Sequential([tf_keras.Input([4]), dense]))
    branch = L.Lambda(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x @ tf.transpose(x), lambda: x[:, :1]))
    with pytest.raises(UserError, match="If .*no formula"):
        forward_macs(tf_keras.Sequential([tf_keras.Input([4]), branch]))


def test_unknown_sizes_are_named_or_the_longest_batch_s():
    model = tf_keras.Sequential([tf_keras.Input([None, 4]), L.Dense(3)])
    with pytest.raises(UserError, match="unknown size"):
        forward_macs(model)
    assert forward_macs(model, [{"source": [2, 1]}, {"source": [5, 1]}]) == 5 * 4 * 3
