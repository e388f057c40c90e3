"""Tests logits and all gradients against tf-models-official's encoder and decoder, weight for weight, in float64.

The official normalisation is fixed to fp32; the test changes it to float64. The official embedding is fp32 too and
does not support packing, so embedding, positions, shift and softmax are written out here.
"""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.transformer.small import PLAIN, VOCABULARY, build, distance, packed, pairs

WIDTH = PLAIN.width


@pytest.fixture
def theirs(monkeypatch):
    """tf-models-official's encoder and decoder, unbuilt, in float64."""
    transformer = pytest.importorskip(
        "official.legacy.transformer.transformer", reason="tf-models-official absent"
    )
    stock = tf_keras.layers.LayerNormalization
    monkeypatch.setattr(
        tf_keras.layers, "LayerNormalization", lambda epsilon, dtype: stock(epsilon=epsilon, dtype="float64")
    )
    params = {
        "num_hidden_layers": PLAIN.layers, "hidden_size": WIDTH, "num_heads": PLAIN.heads,
        "filter_size": PLAIN.hidden, "attention_dropout": 0.0, "relu_dropout": 0.0,
        "layer_postprocess_dropout": 0.0,
    }  # fmt: skip
    before = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy("float64")
    yield transformer.EncoderStack(params), transformer.DecoderStack(params)
    tf_keras.mixed_precision.set_global_policy(before)


def their_logits(encoder, decoder, table, batch):
    ids, segments, positions, targets, target_segments, target_positions = batch

    def signal(positions):
        rates = 1e4 ** (-tf.range(WIDTH // 2, dtype=tf.float64) / (WIDTH // 2 - 1))
        angles = tf.cast(positions, tf.float64)[..., None] * rates
        return tf.concat([tf.sin(angles), tf.cos(angles)], -1)

    def embed(ids):
        rows = tf.one_hot(ids, VOCABULARY, dtype=tf.float64) @ table * WIDTH**0.5
        return rows * tf.cast(ids[..., None] > 0, tf.float64)

    def bias(allowed):
        return (1 - tf.cast(allowed, tf.float64))[:, None] * -1e9

    def equal(a, b):
        return a[:, :, None] == b[:, None, :]

    # The embeddings move one place to the right, but never into another sentence.
    shifted = tf.roll(embed(targets), 1, axis=1) * tf.cast(target_positions > 0, tf.float64)[..., None]
    n = targets.shape[1]
    earlier = tf.range(n)[:, None] >= tf.range(n)[None, :]
    memory = encoder(
        embed(ids) + signal(positions),
        bias(equal(segments, segments)),
        tf.cast(ids == 0, tf.float64),
        training=True,
    )
    out = decoder(
        shifted + signal(target_positions),
        memory,
        bias(equal(target_segments, target_segments) & earlier),
        bias(equal(target_segments, segments)),
        training=True,
    )
    return tf.einsum("bnd,vd->bnv", out, table)


def attention_pairs(ours, theirs):
    names = ("query", "key", "value", "output_product")
    their_names = ("query_dense_layer", "key_dense_layer", "value_dense_layer", "output_dense_layer")
    for name, their_name in zip(names, their_names):
        yield getattr(ours, name).kernel, getattr(theirs, their_name).kernel


def norm_pairs(ours, theirs):
    yield from ((ours.gamma, theirs.gamma), (ours.beta, theirs.beta))


def feed_forward_pairs(ours, theirs):
    for mine, other in ((ours.inner, theirs.filter_dense_layer), (ours.outer, theirs.output_dense_layer)):
        yield from ((mine.kernel, other.kernel), (mine.bias, other.bias))


def variable_pairs(network, encoder, decoder):
    """(our variable, official one) for all but the table; the official attention has a separate axis for heads."""
    for mine, other in zip(network.encoder_layers, encoder.layers, strict=True):
        yield from attention_pairs(mine.attention, other[0].layer)
        yield from feed_forward_pairs(mine.feed_forward, other[1].layer)
        for norm, wrapper in zip(mine.norms, other, strict=True):
            yield from norm_pairs(norm, wrapper.layer_norm)
    for mine, other in zip(network.decoder_layers, decoder.layers, strict=True):
        yield from attention_pairs(mine.attention, other[0].layer)
        yield from attention_pairs(mine.source_attention, other[1].layer)
        yield from feed_forward_pairs(mine.feed_forward, other[2].layer)
        for norm, wrapper in zip(mine.norms, other, strict=True):
            yield from norm_pairs(norm, wrapper.layer_norm)
    yield from norm_pairs(network.encoder_norm, encoder.output_normalization)
    yield from norm_pairs(network.decoder_norm, decoder.output_normalization)


def test_logits_and_all_gradients_in_float64(theirs):
    encoder, decoder = theirs
    network, batch = build(), packed(pairs())
    table = network.source_input.embedding.table
    their_table = tf.Variable(table)
    their_logits(encoder, decoder, their_table, batch)  # Builds the official network.
    variables = [(table, their_table), *variable_pairs(network, encoder, decoder)]
    assert len(variables) == len(network.trainable_variables)
    for mine, other in variables:
        other.assign(tf.reshape(mine, other.shape))
    weight = np.random.default_rng(2).normal(size=[*batch[3].shape, VOCABULARY])
    real = tf.cast(batch[3] > 0, tf.float64)[..., None]

    @tf.function(autograph=False)
    def both():
        with tf.GradientTape(persistent=True) as tape:
            mine = network(batch, training=True) * real
            other = their_logits(encoder, decoder, their_table, batch) * real
            losses = [tf.reduce_sum(tf.tanh(x) * weight) for x in (mine, other)]
        gradients = [tape.gradient(loss, [v[i] for v in variables]) for i, loss in enumerate(losses)]
        return mine, other, gradients

    mine, other, gradients = both()
    assert distance(mine, other) < 1e-8
    for ours, (variable, _), reference in zip(gradients[0], variables, gradients[1], strict=True):
        assert np.linalg.norm(reference) > 1e-6, variable.name
        assert distance(ours, tf.reshape(reference, ours.shape)) < 1e-8, variable.name
