"""Tests beam search against a plain one in numpy, an exhaustive search and tf-models-official's."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from common.text import beam

EOS, SIZE, SOURCE = 1, 5, 4


class Network:
    """A small recurrent decoder whose scores are wrong unless its state follows the hypotheses."""

    def __init__(self, seed: int, vocabulary: int, sentences: int, eos_bias: float = 0.0):
        rng = np.random.default_rng(seed)
        self.vocabulary, self.sentences = vocabulary, sentences
        self.embed = rng.normal(size=[vocabulary, SIZE])
        self.turn = rng.normal(size=[SIZE, SIZE])
        self.out = 2 * rng.normal(size=[SIZE, vocabulary])
        self.bias = np.eye(vocabulary)[EOS] * eos_bias
        self.attend = rng.normal(size=[SIZE, SOURCE])
        self.first = rng.normal(size=[sentences, SIZE])
        self.real = np.arange(SOURCE) < rng.integers(2, SOURCE + 1, [sentences, 1])

    def log_probs(self, state, sentence):
        """(log P of each next token, attention) in numpy."""
        logits = state @ self.out + self.bias
        attention = np.where(self.real[sentence], np.exp(state @ self.attend), 0)
        return logits - np.log(np.exp(logits).sum()), attention / attention.sum()

    def next(self, state, token):
        return np.tanh(state @ self.turn + self.embed[token])

    def decoder(self, beam_size):
        real = tf.repeat(tf.constant(self.real), beam_size, axis=0)

        def step(tokens, index, state):
            state = {"h": tf.tanh(state["h"] @ self.turn + tf.gather(self.embed, tokens))}
            attention = tf.where(real, tf.exp(state["h"] @ self.attend), 0)
            attention /= tf.reduce_sum(attention, -1, keepdims=True)
            return beam.Step(state["h"] @ self.out + self.bias, state, attention)

        return step, {"h": tf.repeat(tf.constant(self.first), beam_size, axis=0)}


def score(log_prob, length, covered, real, alpha, weight):
    coverage = np.log(np.minimum(covered[real], 1)).sum() if weight else 0
    return log_prob / ((5 + length) / 6) ** alpha + weight * coverage


def naive(net, sentence, beam_size, max_length, alpha, weight, start=0):
    """Beam search over Python lists: [(score, tokens)], best first, of finished hypotheses, else of unfinished ones."""
    real = net.real[sentence]
    living = [(0.0, (), net.first[sentence], start, np.zeros(SOURCE))]
    finished = []
    for length in range(1, max_length + 1):
        grown = []
        for log_prob, tokens, state, last, covered in living:
            state = net.next(state, last)
            log_probs, attention = net.log_probs(state, sentence)
            grown += [
                (log_prob + p, (*tokens, t), state, t, covered + attention) for t, p in enumerate(log_probs)
            ]
        grown = sorted(grown, key=lambda g: -g[0])[: 2 * beam_size]
        finished += [
            (score(p, length, covered, real, alpha, weight), tokens)
            for p, tokens, _, t, covered in grown
            if t == EOS
        ]
        finished = sorted(finished, key=lambda f: -f[0])[:beam_size]
        living = [g for g in grown if g[3] != EOS][:beam_size]
    if finished:
        return finished
    return [(score(p, max_length, c, real, alpha, weight), tokens) for p, tokens, _, _, c in living]


def found(net, beam_size, max_length, alpha, weight):
    step, state = net.decoder(beam_size)

    @tf.function(autograph=False)
    def run():
        return beam.search(
            step,
            state,
            sentences=net.sentences,
            beam_size=beam_size,
            max_length=max_length,
            eos=EOS,
            alpha=alpha,
            coverage_weight=weight,
            source_real=tf.constant(net.real),
            dtype=tf.float64,
        )

    return [x.numpy() for x in run()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("alpha", "weight"), [(0.6, 0.0), (0.0, 0.0), (1.0, 0.0), (0.6, 0.1)])
def test_equals_a_plain_search(seed, alpha, weight):
    net = Network(seed, vocabulary=7, sentences=3, eos_bias=[-2.0, 0.0, 1.0, 3.0][seed])
    tokens, scores = found(net, 4, 9, alpha, weight)
    for i in range(3):
        best = naive(net, i, 4, 9, alpha, weight)[0]
        np.testing.assert_allclose(scores[i, 0], best[0], rtol=1e-8)
        assert tuple(tokens[i, 0][: len(best[1])]) == best[1]
        assert not tokens[i, 0][len(best[1]) :].any()


@pytest.mark.parametrize("weight", [0.0, 0.2])
def test_a_wide_beam_is_exhaustive(weight):
    """A beam as wide as the number of sequences finds the best of all."""
    net, length = Network(5, vocabulary=3, sentences=4), 4
    tokens, scores = found(net, 81, length, 0.6, weight)
    for i in range(4):
        best = (-np.inf, ())
        for n in range(length):
            for words in itertools.product([0, 2], repeat=n):
                state, last, log_prob, covered = net.first[i], 0, 0.0, np.zeros(SOURCE)
                for t in (*words, EOS):
                    state = net.next(state, last)
                    log_probs, attention = net.log_probs(state, i)
                    log_prob, covered, last = log_prob + log_probs[t], covered + attention, t
                best = max(best, (score(log_prob, n + 1, covered, net.real[i], 0.6, weight), (*words, EOS)))
        np.testing.assert_allclose(scores[i, 0], best[0], rtol=1e-8)
        assert tuple(tokens[i, 0][: len(best[1])]) == best[1]


def test_a_beam_of_one_is_greedy():
    net = Network(6, vocabulary=9, sentences=2)
    tokens, _ = found(net, 1, 6, 0.6, 0.0)
    for i in range(2):
        best = naive(net, i, 1, 6, 0.6, 0.0)[0][1]
        assert tuple(tokens[i, 0][: len(best)]) == best


A, B, C = 2, 3, 4


def scripted(chances, beam_size, alpha):
    """Hypotheses of one sentence and their scores; `chances` has, for each step, {last token: {next: probability}}."""
    logits = np.full([len(chances), 5, 5], np.log(1e-30))
    for step, rows in enumerate(chances):
        for last, following in rows.items():
            for token, chance in following.items():
                logits[step, last, token] = np.log(chance)
    tokens, scores = beam.search(
        lambda last, step, state: beam.Step(tf.gather(tf.constant(logits)[step], last), state),
        {},
        sentences=1,
        beam_size=beam_size,
        max_length=len(chances),
        eos=EOS,
        alpha=alpha,
        dtype=tf.float64,
    )
    return [tuple(int(t) for t in row if t) for row in tokens[0]], scores[0].numpy()


def test_the_search_goes_on_while_a_living_one_may_displace_the_worst_finished():
    chances = [{0: {A: 0.6, B: 0.4}}, {A: {EOS: 0.9, C: 0.1}, B: {EOS: 0.1, C: 0.9}}, {C: {EOS: 1.0}}]
    tokens, scores = scripted(chances, beam_size=2, alpha=0.0)
    assert tokens == [(A, EOS), (B, C, EOS)]
    np.testing.assert_allclose(scores, np.log([0.54, 0.36]))


def test_the_search_goes_on_while_its_longest_end_may_be_the_best():
    chances = [{0: {EOS: 0.6, A: 0.4}}, *[{A: {A: 1.0}}] * 10, {A: {EOS: 1.0}}]
    tokens, scores = scripted(chances, beam_size=1, alpha=1.0)
    assert tokens == [(*[A] * 11, EOS)]
    np.testing.assert_allclose(scores, [np.log(0.4) / (17 / 6)])


def test_without_an_end_the_living_are_given():
    net = Network(7, vocabulary=5, sentences=2, eos_bias=-100.0)
    tokens, scores = found(net, 2, 5, 0.6, 0.0)
    for i in range(2):
        expected = naive(net, i, 2, 5, 0.6, 0.0)
        np.testing.assert_allclose(scores[i], [s for s, _ in expected], rtol=1e-8)
        assert [tuple(t) for t in tokens[i]] == [t for _, t in expected]


@pytest.mark.parametrize("seed", range(3))
def test_equals_tf_models(seed):
    theirs = pytest.importorskip("official.nlp.modeling.ops.beam_search", reason="tf-models-official absent")
    net, k, length = Network(seed, vocabulary=7, sentences=3), 4, 8
    step, _ = net.decoder(k)

    def symbols_to_logits(ids, index, cache):  # tf-models' search has no float64.
        after = step(ids[:, 0], index, {"h": tf.cast(cache["h"], tf.float64)})
        return tf.cast(after.logits, tf.float32), {"h": tf.cast(after.state["h"], tf.float32)}

    @tf.function(autograph=False)
    def run():
        return theirs.sequence_beam_search(
            symbols_to_logits,
            tf.zeros([3], tf.int32),
            {"h": tf.constant(net.first, tf.float32)},
            net.vocabulary,
            k,
            0.6,
            length,
            EOS,
            padded_decode=True,
        )

    their_tokens, their_scores = run()
    tokens, scores = found(net, k, length, 0.6, 0.0)
    np.testing.assert_allclose(scores[:, 0], their_scores[:, 0], rtol=1e-5)
    np.testing.assert_array_equal(tokens[:, 0], their_tokens[:, 0, 1:])


def test_coverage_needs_the_padding():
    with pytest.raises(ValueError, match="source_real"):
        beam.search(None, {}, sentences=1, beam_size=1, max_length=1, eos=1, coverage_weight=0.1)
