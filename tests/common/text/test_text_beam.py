"""Tests beam search against a plain one in numpy and an exhaustive search."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from common.text import beam
from tests import differences

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


def grown(net, sentence, living):
    """All continuations of living hypotheses, the most probable first."""
    following = []
    for log_prob, tokens, state, last, covered in living:
        state = net.next(state, last)
        log_probs, attention = net.log_probs(state, sentence)
        following += [
            (log_prob + p, (*tokens, t), state, t, covered + attention) for t, p in enumerate(log_probs)
        ]
    return sorted(following, key=lambda g: -g[0])


def naive(net, sentence, beam_size, max_length, alpha):
    """Beam search over Python lists: [(score, tokens)], best first, of finished hypotheses, else of unfinished ones."""
    living = [(0.0, (), net.first[sentence], 0, np.zeros(SOURCE))]
    finished = []
    for length in range(1, max_length + 1):
        best = grown(net, sentence, living)[: 2 * beam_size]
        finished += [(p / ((5 + length) / 6) ** alpha, tokens) for p, tokens, _, t, _ in best if t == EOS]
        finished = sorted(finished, key=lambda f: -f[0])[:beam_size]
        living = [g for g in best if g[3] != EOS][:beam_size]
    return finished or [(p / ((5 + max_length) / 6) ** alpha, tokens) for p, tokens, *_ in living]


def one_beam(net, sentence, beam_size, max_length, alpha, weight, counted, follows=True):
    """GNMT's search, step by step as G6 nmt/beam_search_decoder.py 480-620 and NV7 beam_search.py 187-270 do it."""
    living = [(0.0, (), net.first[sentence], 0, np.zeros(SOURCE))]
    for _ in range(max_length):
        ended = [g for g in living if g[3] == EOS]
        if not follows:  # Attention stays at its place in the beam; all places begin alike.
            places = [g[4] if g[3] == EOS else grown(net, sentence, [g])[0][4] for g in living]
            places = places * (beam_size if len(places) == 1 else 1)
        living = ended + grown(net, sentence, [g for g in living if g[3] != EOS])
        living = sorted(living, key=lambda g: -g[0])[:beam_size]
        living = living if follows else [(*g[:4], place) for g, place in zip(living, places)]
    received = [np.where(covered == 0, 1, np.minimum(covered, 1)) for *_, covered in living]
    scores = [
        g[0] / ((5 + len(g[1]) + counted) / 6) ** alpha + weight * np.log(r).sum()
        for g, r in zip(living, received)
    ]
    return sorted(zip(scores, (g[1] for g in living)), reverse=True)


def lingvo(net, sentence, beam_size, max_length, alpha):
    """G7 transformer google/ops/beam_search_tpu_ops.py 570-1005, with lists; the score of ..._op_kernels.cc 778."""
    living, finished, best = [(0.0, (), net.first[sentence], 0, np.zeros(SOURCE))], [], -np.inf
    for length in range(1, max_length + 1):
        if not any(g[0] > best - 4.0 for g in living):
            break
        candidates = []
        for one in living:
            after = grown(net, sentence, [one])[: beam_size + 1]  # The k + 1 best tokens of each hypothesis.
            candidates += after
            ends = [g for g in after if g[3] == EOS and g[0] > after[0][0] - 5.0]
            finished += [(p / ((length + 5) / 5) ** alpha, tokens) for p, tokens, *_ in ends]
            best = max([best, *(g[0] for g in ends)])
        best_of_all = sorted(candidates, key=lambda g: -g[0])[: 2 * beam_size]
        living = [g for g in best_of_all if g[3] != EOS][:beam_size]
    return sorted(finished, key=lambda f: -f[0])[:beam_size]


def results(net, beam_size, max_length, alpha, search=beam.Search, **settings):
    step, state = net.decoder(beam_size)
    settings |= {"sentences": net.sentences, "beam_size": beam_size, "max_length": max_length, "alpha": alpha}
    search = search(decoder=step, eos=EOS, dtype=tf.float64, **settings)
    run = tf.function(lambda: search.run(state), autograph=False)
    return [x.numpy() for x in run()]


def same(tokens, scores, expected, row_of=""):
    for row, score, (best, sequence) in zip(tokens, scores, expected):
        if row_of:
            differences.hold(row_of, "evaluation", abs(score - best))
        np.testing.assert_allclose(score, best, rtol=1e-8)
        assert tuple(row[: len(sequence)]) == sequence and not row[len(sequence) :].any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.6, 0.0, 1.0])
def test_equals_a_plain_search(seed, alpha):
    net = Network(seed, vocabulary=7, sentences=3, eos_bias=[-2.0, 0.0, 1.0, 3.0][seed])
    tokens, scores = results(net, 4, 9, alpha)
    for i in range(3):
        same(tokens[i], scores[i], naive(net, i, 4, 9, alpha)[:1], "transformer/tpu-v3-32")


@pytest.mark.parametrize("seed", range(12))
def test_the_search_with_margins_equals_lingvo_s(seed):
    """Rare ends are out of the margin, frequent ones prune, and a sentence may have no end at all."""
    net = Network(seed, vocabulary=9, sentences=3, eos_bias=[-9.0, -3.0, 0.0, 4.0][seed % 4])
    tokens, scores = results(net, 4, 9, 0.5, beam.Margins)
    for i in range(3):
        expected = lingvo(net, i, 4, 9, 0.5)
        same(tokens[i], scores[i], expected, "transformer/tpu-v4-128")
        assert np.isinf(scores[i][len(expected) :]).all() and not tokens[i][len(expected) :].any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [0.0, 0.1])
@pytest.mark.parametrize("counted", [False, True])
def test_one_beam_equals_the_sources_search(seed, weight, counted):
    net = Network(seed, vocabulary=7, sentences=3, eos_bias=[-2.0, 0.0, 1.0, 3.0][seed])
    settings = {"coverage_weight": weight, "count_start": counted, "source_length": SOURCE}
    tokens, scores = results(net, 4, 9, 0.6, beam.OneBeam, **settings)
    for i in range(3):
        row = "gnmt/dgx-1" if counted else "gnmt/tpu-v3-32"
        same(tokens[i], scores[i], one_beam(net, i, 4, 9, 0.6, weight, counted), row)


def test_a_coverage_that_stays_in_its_place_changes_some_translations():
    """NV7 beam_search.py 215-260 reorders lengths and states, and leaves the attention where it was."""
    changed = []
    for seed in range(100):
        net = Network(seed, vocabulary=7, sentences=3, eos_bias=1.0)
        for i in range(3):
            ours, theirs = (
                one_beam(net, i, 5, 9, 0.6, 0.1, True, follows)[0][1] for follows in (True, False)
            )
            changed.append(ours != theirs)
    differences.hold("gnmt/dgx-1", "coverage", np.mean(changed))


def test_a_wide_beam_is_exhaustive():
    """A beam as wide as the number of sequences finds the best of all."""
    net, length = Network(5, vocabulary=3, sentences=4), 4
    tokens, scores = results(net, 81, length, 0.6)
    for i in range(4):
        best = (-np.inf, ())
        for n in range(length):
            for words in itertools.product([0, 2], repeat=n):
                state, last, log_prob = net.first[i], 0, 0.0
                for t in (*words, EOS):
                    state = net.next(state, last)
                    log_prob, last = log_prob + net.log_probs(state, i)[0][t], t
                best = max(best, (log_prob / ((6 + n) / 6) ** 0.6, (*words, EOS)))
        same(tokens[i], scores[i], [best])


def test_a_beam_of_one_is_greedy():
    net = Network(6, vocabulary=9, sentences=2)
    tokens, scores = results(net, 1, 6, 0.6)
    for i in range(2):
        same(tokens[i], scores[i], naive(net, i, 1, 6, 0.6))


A, B, C = 2, 3, 4


def scripted(chances, beam_size, alpha):
    """Hypotheses of one sentence and their scores; `chances` has, for each step, {last token: {next: probability}}."""
    logits = np.full([len(chances), 5, 5], np.log(1e-30))
    for step, rows in enumerate(chances):
        for last, following in rows.items():
            for token, chance in following.items():
                logits[step, last, token] = np.log(chance)
    tokens, scores = beam.Search(
        decoder=lambda last, step, state: beam.Step(tf.gather(tf.constant(logits)[step], last), state),
        sentences=1, beam_size=beam_size, max_length=len(chances), eos=EOS, alpha=alpha, dtype=tf.float64,
    ).run({})  # fmt: skip
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
    tokens, scores = results(net, 2, 5, 0.6)
    for i in range(2):
        same(tokens[i], scores[i], naive(net, i, 2, 5, 0.6))
