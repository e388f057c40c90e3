"""Tests the network against a numpy transcription, and its decoding, padding, end of sentence and sizes."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers import scan
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.text.bpe import BOS, EOS
from common.train.describe import describe
from gnmt import attention, model
from gnmt.config import Config
from gnmt.task import Task, smoothed_cross_entropy
from tests.gnmt.small import PLAIN, SMALL, VOCABULARY, Search, batch, build, tensors
from tests.gnmt.transcription import Transcription

WIRINGS = [{"wiring": "reference"}, {"wiring": "google"}]
wirings = pytest.mark.parametrize("wiring", WIRINGS, ids=["reference", "google"])


def configured(wiring: dict, **changes) -> Config:
    return dataclasses.replace(PLAIN, **wiring, **changes)


def values(v):
    return v.numpy()


@wirings
def test_logits_are_those_of_the_transcription(wiring):
    network, data = build(configured(wiring)), batch()
    logits = network(tensors(data)).numpy()
    plain = Transcription(network, values)
    for i in range(3):
        m, n = data["source_length"][i], data["target_length"][i]
        expected = plain.logits(data["source"][i, :m], data["target"][i, :n])
        np.testing.assert_allclose(logits[:n, i], expected, rtol=1e-8, atol=1e-10)


@wirings
def test_gradients_are_those_of_the_transcription(wiring):
    """Compares along random directions of each variable, to the last digits, with a sentence of weight 0."""
    config = configured(wiring)
    network, data = build(config), batch()
    data["weight"][1] = 0
    task = Task(config, None)

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            (term,) = task.loss(network, {k: tf.constant(v) for k, v in data.items()}).values()
            loss = term.total / term.weight
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, network.trainable_variables)]

    loss, slopes = gradients()
    np.testing.assert_allclose(loss, Transcription(network, values).loss(data, 0.1), rtol=1e-10)
    rng, step = np.random.default_rng(3), 1e-30
    for variable, gradient in zip(network.trainable_variables, slopes, strict=True):
        direction = rng.normal(size=variable.shape)

        def moved(v, variable=variable, direction=direction):
            return v.numpy() + (1j * step * direction if v is variable else 0)

        expected = Transcription(network, moved).loss(data, 0.1).imag / step
        np.testing.assert_allclose(
            np.sum(gradient * direction), expected, rtol=1e-8, atol=1e-12, err_msg=variable.name
        )


@pytest.mark.parametrize(
    ("wiring", "lengths", "dropout", "platform"),
    [
        *((wiring, lengths, 0.2, "TPU") for wiring in WIRINGS for lengths in ((12, 10), (5, 7))),
        (WIRINGS[1], (5, 19), 0.2, "TPU"),  # The loop has more steps than the target.
        (WIRINGS[1], (12, 16), 0.2, "NVIDIA"),
        (WIRINGS[1], (5, 7), 0.0, "NVIDIA"),
    ],
)
def test_the_compiled_form_equals_the_plain_one(wiring, lengths, dropout, platform, monkeypatch):
    """Loss and every gradient: behind XLA the loops have other forms, and on a GPU one loop runs several layers."""
    data = batch(sources=(lengths[0], 4, 2), targets=(5, 3, lengths[1]))
    monkeypatch.setattr(Single, "platform", platform)

    def outcome(compiled):
        config = dataclasses.replace(SMALL, dropout=dropout, **wiring)
        network, task = build(config), Task(config, None)

        @tf.function(autograph=False, jit_compile=compiled)
        def gradients():
            with tf.GradientTape() as tape:
                (term,) = task.loss(network, {k: tf.constant(v) for k, v in data.items()}).values()
            slopes = tape.gradient(term.total, network.trainable_variables)
            return [term.total, *(tf.convert_to_tensor(g) for g in slopes)]

        return gradients()

    for one, other in zip(outcome(True), outcome(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("rows", "blocks"), [(7, 1), (4, 2), (3, 3), (1, 7), (0, 7)])
def test_scores_equal_their_formula(rows, blocks, compiled, monkeypatch):
    """For all seven queries at once, and for blocks of queries that do or do not divide seven."""
    rng = np.random.default_rng(0)
    shapes = [2, 7, 5], [2, 4, 5], [5], [2, 7, 4]
    q, k, v, up = (tf.constant(rng.normal(size=s)) for s in shapes)
    monkeypatch.setattr(attention, "BLOCK_BYTES", rows * 2 * 4 * 5 * 8)
    assert attention._blocks(q, k) == blocks

    def plain(q, k, v):
        return tf.einsum("bqmn,n->bqm", tf.tanh(q[:, :, None] + k[:, None]), v)

    def outcome(function):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            y = function(q, k, v)
        return [y, *tape.gradient(y, [q, k, v], output_gradients=up)]

    mine = tf.function(lambda: outcome(attention.additive_scores), autograph=False, jit_compile=compiled)
    for one, other in zip(mine(), outcome(plain), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)


@pytest.mark.e2e
def test_attention_in_blocks_changes_nothing(monkeypatch):
    """A step's gradients and a search, with one query at a time; in Google's wiring only the search has several."""
    network, data, task = build(), batch(), Task(PLAIN, None)

    def outcome():
        with tf.GradientTape() as tape:
            (term,) = task.loss(network, {k: tf.constant(v) for k, v in data.items()}).values()
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(term.total, network.trainable_variables)]
        hypotheses = network.translate(tf.constant(data["source"]), tf.constant(data["source_length"]))
        return [*gradients, hypotheses.tokens, hypotheses.scores]

    whole = tf.function(outcome, autograph=False)()
    monkeypatch.setattr(attention, "BLOCK_BYTES", 0)
    for one, other in zip(tf.function(outcome, autograph=False)(), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@wirings
def test_what_follows_the_end_is_without_effect_and_without_gradient(wiring):
    """Other tokens in the padding, or more padding, change nothing; padding has no gradient."""
    config = configured(wiring)
    network, data, task = build(config), batch(), Task(config, None)
    other = {k: v.copy() for k, v in data.items()}
    for side in ("source", "target"):
        wider = np.full([3, data[side].shape[1] + 3], VOCABULARY - 1, np.int32)
        for row, tokens, length in zip(wider, data[side], data[f"{side}_length"]):
            row[:length] = tokens[:length]
        other[side] = wider
    unused = VOCABULARY - 1
    for name in ("source", "target"):
        real = np.arange(other[name].shape[1]) < other[f"{name}_length"][:, None]
        data[name][data[name] == unused] = 3
        other[name] = np.where(real & (other[name] == unused), 3, other[name])
    outcomes = []
    for data_ in (data, other):
        with tf.GradientTape() as tape:
            (term,) = task.loss(network, {k: tf.constant(v) for k, v in data_.items()}).values()
        variables = network.trainable_variables
        outcomes.append([tf.convert_to_tensor(g) for g in tape.gradient(term.total, variables)])
        assert float(term.weight) == 3
    for one, two in zip(*outcomes):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    table = next(g for g, v in zip(outcomes[1], variables) if v is network.embedding.table)
    assert not table[unused].numpy().any() and table[3].numpy().any()


def test_the_end_of_a_sentence_is_trained():
    """EOS has the gradient of a label at each sentence's last place, and only there (docs/sources.md, mlperf 0.1)."""
    config = PLAIN
    network, data, task = build(config), batch(), Task(config, None)
    with tf.GradientTape() as tape:
        (term,) = task.loss(network, {k: tf.constant(v) for k, v in data.items()}).values()
    gradient = tape.gradient(term.total, network.softmax.bias).numpy()
    with tf.GradientTape() as tape:
        logits = network(tensors(data))
        tape.watch(logits)
        losses = smoothed_cross_entropy(logits, tf.transpose(data["target"]), 0.1)
        real = tf.sequence_mask(data["target_length"], 7, tf.float64)
        total = tf.reduce_sum(losses * tf.transpose(real))
    by_logit = tape.gradient(total, logits).numpy()
    np.testing.assert_allclose(by_logit.sum((0, 1)), gradient, rtol=1e-9)
    for i, n in enumerate(data["target_length"]):
        assert by_logit[n - 1, i, EOS] < -0.5 and (by_logit[: n - 1, i, EOS] > -0.1).all()
        assert not by_logit[n:, i].any()


def naive_search(plain, source, steps, k, alpha, weight):
    """Beam search over lists: [(score, tokens)], best first; each step starts from the sentence's beginning."""
    memory = plain.encode(source)

    def after(tokens):
        state, covered = plain.start(), 0
        for token in [BOS, *tokens]:
            logits, state, attention = plain.write(token, state, memory)
            covered = covered + attention
        return logits - np.log(np.exp(logits).sum()), covered

    living = [(0.0, (), 0)]
    for _ in range(steps):
        grown = [g for g in living if g[1] and g[1][-1] == EOS]
        for p, tokens, _ in (g for g in living if g not in grown):
            log_probs, covered = after(tokens)
            grown += [(p + q, (*tokens, t), tuple(covered)) for t, q in enumerate(log_probs)]
        living = sorted(grown, key=lambda g: -g[0])[:k]
    scored = [
        (p / ((5 + len(t)) / 6) ** alpha + weight * np.log(np.minimum(c, 1)).sum(), t) for p, t, c in living
    ]
    return sorted(scored, reverse=True)


@wirings
@pytest.mark.parametrize("coverage", [0.0, 0.1, 1.0])
def test_stepwise_decoding_equals_recomputing_everything(wiring, coverage, monkeypatch):
    monkeypatch.setattr(Search, "coverage", coverage)
    network = build(configured(wiring))
    # EOS becomes likely, so that hypotheses of different lengths compete.
    network.softmax.kernel.assign(0.5 * network.softmax.kernel)
    data = batch()
    actual = network.translate(tf.constant(data["source"]), tf.constant(data["source_length"]))
    # Full-size sources are longer than the unrolled steps, so the search is also tested with loops, in a graph.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "UNROLLED_STEPS", 0)
        looped = tf.function(network.translate, autograph=False)(
            tf.constant(data["source"]), tf.constant(data["source_length"])
        )
    np.testing.assert_array_equal(actual.tokens, looped.tokens)
    plain = Transcription(network, values)
    for i, length in enumerate(data["source_length"]):
        best = naive_search(plain, data["source"][i, :length], 6, 3, 0.6, coverage)
        score, tokens = best[0]
        np.testing.assert_allclose(actual.scores[i, 0], score, rtol=1e-8)
        assert tuple(actual.tokens[i, 0, : len(tokens)].numpy()) == tokens


def test_a_wide_beam_finds_the_best_of_all_translations(monkeypatch):
    """Compares with an exhaustive search: all 85 sequences of up to three of five tokens, scored by the formula,
    those of three without an end too."""
    monkeypatch.setattr(Search, "beam_size", 85)
    monkeypatch.setattr(Search, "coverage", 0.4)
    decode = dataclasses.replace(PLAIN.decode, target_length=3)
    config = dataclasses.replace(PLAIN, vocabulary_size=5, decode=decode)
    network = build(config)
    plain = Transcription(network, values)
    source = np.array([[3, 4, 2], [4, 2, 0]], np.int32)
    actual = network.translate(tf.constant(source), tf.constant([3, 2]))
    for i, length in enumerate((3, 2)):
        memory = plain.encode(source[i, :length])
        best = (-np.inf, ())
        for n in (1, 2, 3):
            for middle in itertools.product([t for t in range(5) if t != EOS], repeat=n - 1):
                state, log_p, covered = plain.start(), 0.0, 0
                for before, token in zip((BOS, *middle), (*middle, None)):
                    logits, state, attention = plain.write(before, state, memory)
                    log_probs = logits - np.log(np.exp(logits).sum())
                    log_p, covered = (
                        log_p + (log_probs[token] if token is not None else 0),
                        covered + attention,
                    )
                penalty = 0.4 * np.log(np.minimum(covered, 1)).sum()
                for last in range(5) if n == 3 else [EOS]:
                    score = (log_p + log_probs[last]) / ((5 + n) / 6) ** 0.6 + penalty
                    best = max(best, (score, (*middle, last)))
        np.testing.assert_allclose(actual.scores[i, 0], best[0], rtol=1e-8)
        assert tuple(actual.tokens[i, 0, : len(best[1])].numpy()) == best[1]


def parameters(config: Config) -> int:
    n, v = config.width, config.vocabulary_size
    lstm = {1: 8 * n * n + 4 * n, 2: 12 * n * n + 4 * n}  # By the width of the input, n or 2n.
    encoder = 2 * lstm[1] + lstm[2] + 2 * lstm[1]
    decoder = lstm[2 if config.wiring == "google" else 1] + 3 * lstm[2]
    return (
        v * n + encoder + decoder + 2 * n * n + 2 * n + 1 + n * v + (v if config.wiring == "reference" else 0)
    )


def test_the_published_parameters():
    """Google's 164.8 M (docs/sources.md, mlperf 2), and the 160,671,297 of NVIDIA's v0.6 DGX-1 log.

    NVIDIA's vocabulary is padded to 32,320, and its nine LSTMs have a second bias each.
    """
    assert parameters(Config(**WIRINGS[1])) == 164_788_225
    assert parameters(Config(vocabulary_size=32320)) + 9 * 4 * 1024 == 160_671_297
    for wiring in WIRINGS:
        network = build(configured(wiring))
        assert sum(np.prod(v.shape) for v in network.trainable_variables) == parameters(configured(wiring))


def test_describe_counts_products():
    description = describe(Task(SMALL, None), [])
    n, v, length = SMALL.width, VOCABULARY, SMALL.max_sequence_length
    encoder, decoder = 4 * 8 * n * n + 12 * n * n, 8 * n * n + 3 * 12 * n * n
    attention = 2 * n * n + length * n
    assert description["forward_macs_per_example"] == length * (encoder + decoder + attention + n * v)
    assert description["parameters"] == parameters(SMALL)


@wirings
@pytest.mark.parametrize("has_random_biases", [False, True])
def test_initial_values_and_kinds(wiring, has_random_biases):
    """REF seq2seq/utils.py (init_lstm_) and models/decoder.py (Classifier): biases too; Google's start at 0."""
    network = model.Gnmt(
        configured(wiring, bias_scale=0.1 if has_random_biases else 0.0), Single(), precision("fp64")
    )
    kinds = kind_of(network)
    attention = network.decoder.attention
    biases = [v for v in network.trainable_variables if kinds[v.ref()] == "bias"]
    for v in network.trainable_variables:
        if v is attention.bias or (kinds[v.ref()] == "bias" and not has_random_biases):
            assert not v.numpy().any()
        elif v.shape.rank:
            assert 0 < np.abs(v).max() <= 0.1
    if has_random_biases:
        values = np.concatenate([v.numpy() for v in biases if v is not attention.bias])
        assert len(np.unique(values)) == len(values)  # No two biases share a seed.
        assert values.min() < -0.09 and values.max() > 0.09 and abs(values.mean()) < 0.01
    np.testing.assert_allclose(attention.scale, PLAIN.width**-0.5)
    assert len({v.numpy().tobytes() for v in network.trainable_variables if v.shape.rank == 2}) == sum(
        v.shape.rank == 2 for v in network.trainable_variables
    )


@wirings
def test_dropout_acts_in_training_only_and_is_drawn_anew_but_repeatable(wiring):
    config = dataclasses.replace(SMALL, **wiring)
    one, two, inputs = build(config), build(config), tensors(batch())
    np.testing.assert_array_equal(one(inputs), one(inputs))
    first, second = (one(inputs, training=True).numpy() for _ in range(2))
    np.testing.assert_array_equal(two(inputs, training=True), first)
    assert np.abs(first - second).max() > 1e-3
    draws = one.non_trainable_variables
    assert len(draws) == (9 if config.wiring == "google" else 8) and all(int(v) == 2 for v in draws)


@wirings
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_precisions_agree_roughly_and_give_full_logits(wiring, name):
    config = configured(wiring)
    reference, network = build(config), build(config, name)
    logits = network(tensors(batch()))
    assert logits.dtype == tf.float32
    tolerance = {"bf16": 0.1, "fp16": 0.02, "fp32": 1e-4}[name]
    assert np.abs(logits.numpy() - reference(tensors(batch())).numpy()).max() < tolerance
