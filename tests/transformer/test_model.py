"""Tests the network: sizes, packing, cached decoding and precision."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.layers import attention
from common.layers.layer_norm import LayerNormalization
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.train.describe import describe
from tests.transformer.small import PACKED, PLAIN, SMALL, VOCABULARY, build, packed, pairs
from transformer import layers, model
from transformer.config import Config
from transformer.model import EOS
from transformer.task import Task


def test_packed_sentences_equal_unpacked_ones():
    network, rows = build(), pairs()
    together = network(packed(rows), training=False).numpy()
    for i, row in enumerate(rows):
        at = 0
        for pair in row:
            alone = network(packed([[pair], [pair]]), training=False).numpy()[0]
            n = len(pair[1])
            np.testing.assert_allclose(together[i, at : at + n], alone[:n], rtol=1e-8, atol=1e-10)
            at += n


def test_a_token_sees_no_later_one_and_no_other_sentence():
    network, rows = build(), pairs()
    before = network(packed(rows)).numpy()
    rows[0][1][1][1] = 2 if rows[0][1][1][1] != 2 else 3  # The second token of the second target.
    changed = np.abs(network(packed(rows)).numpy() - before).max(-1)
    first, second = len(rows[0][0][1]), len(rows[0][1][1])
    assert changed[0, first + 2 : first + second].min() > 1e-6
    changed[0, first + 2 : first + second] = 0
    assert changed.max() == 0


def formula(query, key, value, allowed, scale, dropout, seed):
    """The formula of `fused_attention`, without dropout."""
    scores = tf.einsum("bqhs,bmhs->bhqm", query, key) * scale
    weights = tf.nn.softmax(tf.where(allowed, scores, tf.constant(-1e9, scores.dtype)))
    return tf.einsum("bhqm,bmhs->bqhs", weights, value)


@pytest.mark.parametrize("form", ["cpu", "gpu", "gpu, fused"])
def test_a_compiled_step_equals_the_plain_one(monkeypatch, form):
    """Loss and gradients are the same under XLA, for a GPU too, in float64, with dropout."""
    actual, choices, choice = [], [], attention.select

    def choose(*arguments, **_):
        choices.append("fused" if compiled and form == "gpu, fused" else choice(*arguments, fusable=False))
        return choices[-1]

    monkeypatch.setattr(attention, "select", choose)
    monkeypatch.setattr(attention, "fused_attention", formula)
    monkeypatch.setattr(Single, "platform", "NVIDIA H200" if "gpu" in form else "")
    for compiled in (True, False):
        network = build(dataclasses.replace(SMALL, attention_dropout=0.0) if "fused" in form else SMALL)
        choices.clear()
        batch = packed(pairs())

        def step(network=network, batch=batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.sin(network(batch, training=True)))
            return loss, *tape.gradient(loss, network.trainable_variables)

        function = tf.function(step, jit_compile=compiled, autograph=False)
        expected = {"cpu": "plain", "gpu": "positions_first", "gpu, fused": "fused"}[form]
        actual.append(function())
        assert set(choices) == {expected if compiled else "plain"}
    for one, other in zip(*actual, strict=True):
        assert np.linalg.norm(one - other) <= 1e-9 * np.linalg.norm(other)


@pytest.mark.parametrize("broken", [False, True])
def test_the_compiled_layer_norm_equals_the_stock_one(broken):
    """Value and gradients in float64, also for a row of equal numbers; a NaN reaches the gradients of both."""
    x = np.random.default_rng(2).normal(3, 2, [2, 5, 8])
    x[0, 0], x[1, 1, 1] = 4, np.nan if broken else 1
    values = [np.random.default_rng(3).normal(1, 1, 8) for _ in range(2)]

    def run(layer, compiled):
        layer.build(x.shape)
        layer.set_weights(values)

        @tf.function(jit_compile=compiled, autograph=False)
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                loss = tf.reduce_sum(tf.sin(y))
            return y, *tape.gradient(loss, [x, *layer.trainable_variables])

        return step(tf.constant(x))

    stock = tf_keras.layers.LayerNormalization(epsilon=layers.EPSILON, dtype="float64")
    for actual, expected in zip(
        run(LayerNormalization(epsilon=layers.EPSILON, dtype="float64"), True), run(stock, False)
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-7)


def naive_search(network, source, steps, beam):
    """Beam search whose every step runs the whole sequences through the packed, uncached network."""

    def log_probs(prefix):
        targets = [*prefix, 0]
        batch = packed([[(source, targets)], [(source, targets)]])
        batch[4] = tf.where(tf.range(PACKED) < len(targets), 1, 0) * tf.ones_like(batch[4])
        logits = network(batch, training=False)[0, len(prefix)]
        return tf.nn.log_softmax(logits).numpy()

    living, finished = [(0.0, ())], []
    for _ in range(steps):
        grown = [(p + q, (*tokens, t)) for p, tokens in living for t, q in enumerate(log_probs(tokens))]
        grown = sorted(grown, reverse=True)[: 2 * beam]
        finished += [(p / ((5 + len(t)) / 6) ** 0.6, t) for p, t in grown if t[-1] == EOS]
        finished = sorted(finished, reverse=True)[:beam]
        living = [g for g in grown if g[1][-1] != EOS][:beam]
    return finished[0] if finished else (living[0][0] / ((5 + steps) / 6) ** 0.6, living[0][1])


@pytest.mark.parametrize("likely_end", [False, True])
def test_cached_decoding_equals_recomputing_everything(likely_end):
    network = build()
    if likely_end:  # Makes hypotheses of different lengths compete.
        table = network.source_input.embedding.table
        table.assign(tf.tensor_scatter_nd_update(table, [[EOS]], [network.decoder_norm.beta]))
    decode = PLAIN.decode
    rows = [row[0][0] for row in pairs(3)]
    ids = np.zeros([2, decode.source_length], np.int32)
    for i, source in enumerate(rows):
        ids[i, : len(source)] = source
    positions = np.tile(np.arange(decode.source_length, dtype=np.int32), [2, 1])
    # A shorter search, because the naive one takes a pass for every token of every hypothesis.
    network.config = dataclasses.replace(PLAIN, decode=dataclasses.replace(decode, extra_length=-4))
    actual = network.translate(tf.constant(ids), tf.constant(positions))
    assert actual.tokens.shape == [2, 3, 6]
    for i, source in enumerate(rows):
        score, tokens = naive_search(network, source, 6, decode.beam_size)
        assert tuple(actual.tokens[i, 0, : len(tokens)].numpy()) == tokens
        assert (tokens[-1] == EOS) == likely_end
        # The search keeps its scores in fp32.
        np.testing.assert_allclose(actual.scores[i, 0], score, rtol=1e-6)


def test_a_translation_does_not_depend_on_the_padding_of_its_source():
    """An export takes sentences as long as training's, longer than any of the evaluation."""
    assert (
        PLAIN.serving_length == PLAIN.packed_length - PLAIN.decode.extra_length > PLAIN.decode.source_length
    )
    network, steps = build(), PLAIN.decode.target_length
    actual = []
    for length in (PLAIN.decode.source_length, PLAIN.serving_length):
        ids = np.zeros([1, length], np.int32)
        source = pairs(1)[0][0][0]
        ids[0, : len(source)] = source
        decode = dataclasses.replace(PLAIN.decode, extra_length=steps - length)
        network.config = dataclasses.replace(PLAIN, decode=decode)
        actual.append(network.translate(tf.constant(ids), tf.range(length)[None]))
    np.testing.assert_array_equal(actual[0].tokens, actual[1].tokens)
    np.testing.assert_allclose(actual[0].scores, actual[1].scores, rtol=1e-6)


def test_position_signal_is_a_sine_and_a_cosine_of_each_wavelength():
    signal = layers.position_signal(50, 8)
    for position in (0, 1, 17, 49):
        for i in range(4):
            angle = position / 10000 ** (i / 3)
            np.testing.assert_allclose(
                signal[position, [i, 4 + i]], [np.sin(angle), np.cos(angle)], atol=1e-12
            )


def test_full_size_has_the_published_parameters():
    """210.8 M (docs/sources.md, mlperf 2): the table, 6 x (4 + 2 x 4) and 6 x (8 + 2 x 4) of 1024^2, biases, norms."""
    d, f, v = 1024, 4096, 33708
    attention, feed_forward, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    expected = v * d + 6 * encoder + 6 * decoder + 2 * norm
    assert expected == 210_804_736
    # A width of one eighth has the same structure and is built in a moment; the full one is an e2e test.
    config = dataclasses.replace(
        Config(), width=d // 8, hidden=f // 8, vocabulary_size=v // 8, heads=2, global_batch_size=1,
        optimizer=PLAIN.optimizer,
    )  # fmt: skip
    network = model.Transformer(config, Single(), precision("fp32"))
    d, f, v = config.width, config.hidden, config.vocabulary_size
    attention, feed_forward, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    expected = v * d + 6 * (3 * attention + 2 * feed_forward + 5 * norm) + 2 * norm
    assert sum(np.prod(w.shape) for w in network.trainable_variables) == expected


def test_describe_counts_products():
    description = describe(Task(SMALL, None), [])
    n, d, f, v = PACKED, SMALL.width, SMALL.hidden, VOCABULARY
    attention, feed_forward = 4 * n * d * d + 2 * n * n * d, 2 * n * d * f
    expected = SMALL.layers * (3 * attention + 2 * feed_forward) + n * d * v
    assert description["forward_macs_per_example"] == expected


def test_kinds():
    model = build()
    assert set(kind_of(model).values()) == {"bias", "embedding", "kernel", "norm"}
    assert model.source_input.embedding.table.shape == [VOCABULARY, SMALL.width]


def test_dropout_acts_in_training_only():
    network, batch = build(SMALL), packed(pairs())
    np.testing.assert_array_equal(network(batch, training=False), network(batch, training=False))
    assert np.abs(network(batch, training=True) - network(batch, training=True)).max() > 1e-3


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_precisions_agree_roughly_and_give_full_logits(name):
    reference = build()
    network = build(PLAIN, name)
    for mine, other in zip(network.variables, reference.variables, strict=True):
        mine.assign(tf.cast(other, mine.dtype))
    logits = network(packed(pairs()))
    assert logits.dtype == tf.float32
    tolerance = {"bf16": 0.1, "fp16": 0.02, "fp32": 1e-4}[name]
    assert np.abs(logits.numpy() - reference(packed(pairs())).numpy()).max() < tolerance
