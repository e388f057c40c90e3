"""Tests logits and all gradients against tf-models-official's encoder and decoder, weight for weight, in float64.

The official normalization is fixed to fp32; the test changes it to float64. The official embedding is fp32 too and
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


def attention_parts(ours, theirs):
    """(our kernel, the official kernels that it holds side by side) of an attention."""
    query, key, value = (getattr(theirs, f"{name}_dense_layer").kernel for name in ("query", "key", "value"))
    if hasattr(ours, "query_key_value"):
        yield ours.query_key_value.kernel, [query, key, value]
    else:
        yield from ((ours.query.kernel, [query]), (ours.key_value.kernel, [key, value]))
    yield ours.output_product.kernel, [theirs.output_dense_layer.kernel]


def norm_parts(ours, theirs):
    yield from ((ours.gamma, [theirs.gamma]), (ours.beta, [theirs.beta]))


def feed_forward_parts(ours, theirs):
    for mine, other in ((ours.inner, theirs.filter_dense_layer), (ours.outer, theirs.output_dense_layer)):
        yield from ((mine.kernel, [other.kernel]), (mine.bias, [other.bias]))


def variable_parts(network, encoder, decoder):
    """(our variable, official ones that it holds side by side) for all but the table."""
    both = [*zip(network.encoder_layers, encoder.layers, strict=True)]
    both += zip(network.decoder_layers, decoder.layers, strict=True)
    for mine, other in both:
        attention, *source, feed_forward = other
        yield from attention_parts(mine.attention, attention.layer)
        yield from norm_parts(mine.attention_norm, attention.layer_norm)
        for one in source:
            yield from attention_parts(mine.source_attention, one.layer)
            yield from norm_parts(mine.source_norm, one.layer_norm)
        yield from feed_forward_parts(mine.feed_forward, feed_forward.layer)
        yield from norm_parts(mine.feed_forward_norm, feed_forward.layer_norm)
    yield from norm_parts(network.encoder_norm, encoder.output_normalization)
    yield from norm_parts(network.decoder_norm, decoder.output_normalization)


def test_logits_and_all_gradients_in_float64(theirs):
    encoder, decoder = theirs
    network, batch = build(), packed(pairs())
    table = network.source_input.embedding.table
    their_table = tf.Variable(table)
    their_logits(encoder, decoder, their_table, batch)  # Builds the official network.
    variables = [(table, [their_table]), *variable_parts(network, encoder, decoder)]
    assert len(variables) == len(network.trainable_variables)
    for mine, others in variables:  # The official attention has a separate axis for heads.
        for part, other in zip(tf.split(mine, len(others), -1), others):
            other.assign(tf.reshape(part, other.shape))
    weight = np.random.default_rng(2).normal(size=[*batch[3].shape, VOCABULARY])
    real = tf.cast(batch[3] > 0, tf.float64)[..., None]

    @tf.function(autograph=False)
    def both():
        with tf.GradientTape(persistent=True) as tape:
            mine = network(batch, training=True) * real
            other = their_logits(encoder, decoder, their_table, batch) * real
            losses = [tf.reduce_sum(tf.tanh(x) * weight) for x in (mine, other)]
        ours, theirs = zip(*variables)
        return mine, other, tape.gradient(losses[0], ours), tape.gradient(losses[1], theirs)

    mine, other, gradients, references = both()
    assert distance(mine, other) < 1e-8
    for ours, (variable, _), parts in zip(gradients, variables, references, strict=True):
        for part, reference in zip(tf.split(ours, len(parts), -1), parts, strict=True):
            assert np.linalg.norm(reference) > 1e-6, variable.name
            assert distance(part, tf.reshape(reference, part.shape)) < 1e-8, variable.name
