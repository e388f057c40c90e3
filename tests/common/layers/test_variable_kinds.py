"""Tests that the kinds of variables come from the layers that own them."""

import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of

L = tf_keras.layers


def test_layers_tell_their_variables_kinds():
    words = tf_keras.Input([5], dtype=tf.int32)
    x = embedding = L.Embedding(7, 6)
    x = x(words)
    lstm, norm, dense = L.LSTM(4), SyncBatchNorm(Single(), 0, precision("fp32")), L.Dense(2)
    model = tf_keras.Model(words, dense(norm(lstm(x))))
    kinds = kind_of(model)
    assert kinds[embedding.embeddings.ref()] == "embedding"
    assert kinds[norm.gamma.ref()] == kinds[norm.beta.ref()] == "norm"
    assert (kinds[dense.kernel.ref()], kinds[dense.bias.ref()]) == ("kernel", "bias")
    cell = lstm.cell
    assert [kinds[v.ref()] for v in (cell.kernel, cell.recurrent_kernel, cell.bias)] == [
        "kernel",
        "kernel",
        "bias",
    ]
    assert len(kinds) == len(model.trainable_variables)


@pytest.mark.parametrize("layer", [L.BatchNormalization(), L.LayerNormalization(), L.GroupNormalization(2)])
def test_stock_normalizations(layer):
    model = tf_keras.Sequential(
        [tf_keras.Input([4, 4, 2]), L.SeparableConv2D(4, 3, name="batch_normalization_bias"), layer]
    )
    assert sorted(kind_of(model).values()) == ["bias", "kernel", "kernel", "norm", "norm"]


def test_frozen_variables_have_no_kind():
    model = tf_keras.Sequential([tf_keras.Input([4]), L.Dense(3), L.Dense(2)])
    model.layers[0].trainable = False
    assert set(kind_of(model)) == {v.ref() for v in model.layers[1].trainable_variables}


def test_an_unknown_owner_is_named():
    class Odd(L.Layer):
        def build(self, shape):
            self.thing = self.add_weight(name="thing", shape=[3])

    model = tf_keras.Sequential([tf_keras.Input([3]), Odd()])
    with pytest.raises(UserError, match="thing.*`kinds`"):
        kind_of(model)
