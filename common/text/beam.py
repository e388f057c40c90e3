"""Beam search with static shapes, for any decoder that is a function of the last token and a state.

`Search` is tensor2tensor's. Each step takes the 2k best continuations of the k living hypotheses. Those that end
compete by score for the k finished places; of the others, the k most probable live on. `OneBeam` is that of
GNMT (G6 nmt/beam_search_decoder.py, NV7 gnmt seq2seq/inference/beam_search.py): the k most probable hypotheses live on,
finished or not, until all k of a sentence are finished; only then scores rank them. The score is GNMT's ("Google's
Neural Machine Translation System", equations 14 and 15): log P / ((5 + length) / 6)^alpha
+ coverage_weight * sum over source tokens of log(min(attention received, 1)), the second sum in one beam only.
`Margins` is Lingvo's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf


class Step(NamedTuple):
    """A decoder's output for the next token of each hypothesis.

    Attributes:
      logits: [b * k, vocabulary] in the precision of scores.
      state: the new state, with the structure, shapes and dtypes of the previous one.
      attention: [b * k, source], the step's attention to each source token; only the coverage penalty needs it.
    """

    logits: tf.Tensor
    state: Any
    attention: tf.Tensor | None = None


# G7 lingvo: valid_eos_max_logit_delta, and beam_size of tasks/mt/params/mlperf.py.
EOS_MARGIN, PRUNING = 5.0, 4.0
# (tokens int32 [b * k], step number from 0 as an int32 scalar, state) -> Step. Row i * k + j is hypothesis j of
# sentence i. Every tensor in the state has b * k rows, which the search reorders. Tensors that all hypotheses of a
# sentence share (the encoder's output) belong in the function's closure instead.
Decoder = Callable[[tf.Tensor, tf.Tensor, Any], Step]


class Hypotheses(NamedTuple):
    """The k best hypotheses of each sentence, best first.

    Attributes:
      tokens: int32 [b, k, max_length], without the start token, with EOS, then zeros.
      scores: [b, k]; -inf for missing hypotheses.
    """

    tokens: tf.Tensor
    scores: tf.Tensor


def length_penalty(length: tf.Tensor | float, alpha: float, dtype: tf.DType) -> tf.Tensor:
    """Returns ((5 + length) / 6)^alpha; the length includes EOS."""
    return ((5 + tf.cast(length, dtype)) / 6) ** alpha


class _Beams(NamedTuple):
    """The loop's variables, for b sentences, k hypotheses, n = max_length."""

    index: tf.Tensor  # Steps done.
    tokens: tf.Tensor  # int32 [b, k, n] of the living hypotheses.
    last: tf.Tensor  # int32 [b, k], their last token.
    log_probs: tf.Tensor  # [b, k]
    state: Any  # The decoder's, [b * k, ...].
    coverage: tf.Tensor  # [b, k, source], the attention received; source = 0 without the penalty.
    finished: tf.Tensor  # int32 [b, k, n]
    scores: tf.Tensor  # [b, k], scores of the finished; -inf for none yet.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """tensor2tensor's search, for the `beam_size` best sequences of each sentence that end in `eos`.

    The loop ends after `max_length` steps, or when no living hypothesis can still displace a finished one. For a
    sentence without a finished hypothesis, it returns the living ones.

    Attributes:
      decoder: computes the next token's logits.
      sentences: number of sentences b, static.
      beam_size: k.
      max_length: maximum number of steps, static.
      eos: the token that ends a sequence.
      start: the start token, before the first output token.
      alpha: exponent of the length penalty; 0 is off.
      dtype: of the scores.
    """

    decoder: Decoder
    sentences: int
    beam_size: int
    max_length: int
    eos: int
    start: int = 0
    alpha: float = 0.6
    dtype: tf.DType = tf.float32

    def run(self, state: Any) -> Hypotheses:
        """Searches from the decoder's state before the first step, with sentences * beam_size rows."""
        (last,) = tf.while_loop(
            self._goes_on,
            lambda beams: [self._advance(beams)],
            [self._first(state)],
            maximum_iterations=self.max_length,
            parallel_iterations=1,
        )
        return self._best(last)

    def _first(self, state: Any) -> _Beams:
        b, k, n = self.sentences, self.beam_size, self.max_length
        # All k hypotheses start equal, so only the first may have descendants.
        log_probs = tf.tile([[0.0] + [float("-inf")] * (k - 1)], [b, 1])
        return _Beams(
            index=tf.constant(0),
            tokens=tf.zeros([b, k, n], tf.int32),
            last=tf.fill([b, k], self.start),
            log_probs=tf.cast(log_probs, self.dtype),
            state=state,
            coverage=tf.zeros([b, k, 0], self.dtype),
            finished=tf.zeros([b, k, n], tf.int32),
            scores=tf.fill([b, k], tf.constant(float("-inf"), self.dtype)),
        )

    def _best(self, last: _Beams) -> Hypotheses:
        none = tf.reduce_all(tf.math.is_inf(last.scores), axis=1, keepdims=True)
        living = last.log_probs / length_penalty(self.max_length, self.alpha, self.dtype)
        return Hypotheses(
            tf.where(none[..., None], last.tokens, last.finished), tf.where(none, living, last.scores)
        )

    def _goes_on(self, beams: _Beams) -> tf.Tensor:
        """Whether a living hypothesis of any sentence can still displace a finished one.

        A hypothesis's score is at most its current log-probability divided by the largest length penalty.
        """
        most = length_penalty(self.max_length, self.alpha, self.dtype)
        possible = beams.log_probs[:, 0] / most
        is_finished = ~tf.math.is_inf(beams.scores)
        worst = tf.reduce_min(
            tf.where(is_finished, beams.scores, tf.constant(float("inf"), self.dtype)), axis=1
        )
        done = tf.reduce_any(is_finished, axis=1) & (worst > possible)
        return ~tf.reduce_all(done)

    def _next(self, beams: _Beams) -> tuple[Step, tf.Tensor]:
        """Decodes one token of each hypothesis; the second result is its log-probabilities, [b, k, vocabulary]."""
        b, k = self.sentences, self.beam_size
        step = self.decoder(tf.reshape(beams.last, [b * k]), beams.index, beams.state)
        log_probs = tf.nn.log_softmax(tf.cast(step.logits, self.dtype))
        return step, tf.reshape(log_probs, [b, k, log_probs.shape[-1]])

    def _grown(self, log_probs: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the `count` largest of [b, k, vocabulary] with their hypotheses and tokens, each [b, count]."""
        vocabulary = log_probs.shape[-1]
        flat = tf.reshape(log_probs, [self.sentences, self.beam_size * vocabulary])
        best, where = tf.math.top_k(flat, count)
        return best, where // vocabulary, where % vocabulary

    def _follow(self, state: Any, parents: tf.Tensor) -> Any:
        flat = tf.reshape(parents + self.beam_size * tf.range(self.sentences)[:, None], [-1])
        return tf.nest.map_structure(lambda x: tf.gather(x, flat), state)

    def _advance(self, beams: _Beams) -> _Beams:
        k = self.beam_size
        step, log_probs = self._next(beams)
        # At most k of the 2k end, one per parent, so at least k can live on.
        best, parents, tokens = self._grown(beams.log_probs[..., None] + log_probs, 2 * k)
        ends = tokens == self.eos
        sequences = _pick(beams.tokens, parents)
        sequences = tf.where(tf.range(self.max_length) == beams.index, tokens[..., None], sequences)

        never = tf.constant(float("-inf"), self.dtype)
        now = tf.where(ends, best / length_penalty(beams.index + 1, self.alpha, self.dtype), never)
        scores, finished = tf.math.top_k(tf.concat([beams.scores, now], axis=1), k)
        log_probs, order = tf.math.top_k(tf.where(ends, never, best), k)
        return _Beams(
            index=beams.index + 1,
            tokens=_pick(sequences, order),
            last=_pick(tokens, order),
            log_probs=log_probs,
            state=self._follow(step.state, _pick(parents, order)),
            coverage=beams.coverage,
            finished=_pick(tf.concat([beams.finished, sequences], axis=1), finished),
            scores=scores,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneBeam(Search):
    """GNMT's search, for the hypotheses of each sentence in the last beam, unfinished ones too.

    The decoder's attention must be exactly 0 at padding; a token that received exactly 0 has no penalty.

    Attributes:
      source_length: number of source tokens that attention covers, static.
      coverage_weight: factor of the coverage penalty; 0 is off.
      count_start: the length penalty counts the start token, as NVIDIA's code does.
    """

    source_length: int
    coverage_weight: float = 0.1
    count_start: bool = False

    def _first(self, state: Any) -> _Beams:
        shape = [self.sentences, self.beam_size, self.source_length if self.coverage_weight else 0]
        return super()._first(state)._replace(coverage=tf.zeros(shape, self.dtype))

    def _goes_on(self, beams: _Beams) -> tf.Tensor:
        return tf.reduce_any(beams.last != self.eos)

    def _advance(self, beams: _Beams) -> _Beams:
        step, log_probs = self._next(beams)
        done = (beams.last == self.eos)[..., None]
        # A finished hypothesis has one continuation, itself.
        itself = tf.where(tf.range(log_probs.shape[-1]) == self.eos, 0.0, float("-inf"))
        log_probs = tf.where(done, tf.cast(itself, self.dtype), log_probs)
        best, parents, tokens = self._grown(beams.log_probs[..., None] + log_probs, self.beam_size)
        coverage = beams.coverage
        if self.coverage_weight:
            attention = tf.reshape(tf.cast(step.attention, self.dtype), coverage.shape)
            coverage += tf.where(done, tf.zeros_like(attention), attention)
        new = (tf.range(self.max_length) == beams.index) & ~_pick(done, parents)
        return beams._replace(
            index=beams.index + 1,
            tokens=tf.where(new, tokens[..., None], _pick(beams.tokens, parents)),
            last=tokens,
            log_probs=best,
            state=self._follow(step.state, parents),
            coverage=_pick(coverage, parents),
        )

    def _best(self, last: _Beams) -> Hypotheses:
        ends = last.tokens == self.eos
        length = tf.where(tf.reduce_any(ends, -1), tf.argmax(ends, -1, tf.int32) + 1, last.index)
        scores = last.log_probs / length_penalty(length + int(self.count_start), self.alpha, self.dtype)
        if self.coverage_weight:
            received = tf.where(last.coverage == 0, tf.ones_like(last.coverage), last.coverage)
            scores += self.coverage_weight * tf.reduce_sum(tf.math.log(tf.minimum(received, 1)), -1)
        scores, order = tf.math.top_k(scores, self.beam_size)
        return Hypotheses(_pick(last.tokens, order), scores)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margins(Search):
    """Lingvo's search on TPUs, for the best finished sequences of each sentence.

    The k most probable hypotheses without EOS live on. A living one also ends if EOS is among its k + 1 best tokens,
    less than EOS_MARGIN below its best. A sentence's search ends when no living hypothesis is within PRUNING of the
    most probable finished one. The score is log P / ((5 + length) / 5)^alpha. A sentence without a finished hypothesis
    has no tokens. G7 transformer google/ops/beam_search_tpu_ops.py (`beam_search_step`), lingvo/core/ops/
    beam_search_step_op_kernels.cc (`NormalizedScore`).
    """

    alpha: float = 0.5

    def _first(self, state: Any) -> _Beams:
        """The state is the decoder's, and [b], the log-probability of each sentence's best finished hypothesis."""
        best = tf.fill([self.sentences], tf.constant(float("-inf"), self.dtype))
        return super()._first((state, best))

    def _open(self, beams: _Beams) -> tf.Tensor:
        """Whether each sentence's search goes on, bool [b]."""
        return tf.reduce_any(beams.log_probs > beams.state[1][:, None] - PRUNING, 1)

    def _goes_on(self, beams: _Beams) -> tf.Tensor:
        return tf.reduce_any(self._open(beams))

    def _advance(self, beams: _Beams) -> _Beams:
        k, (state, finished_best) = self.beam_size, beams.state
        step, log_probs = self._next(beams._replace(state=state))
        never = tf.constant(float("-inf"), self.dtype)
        top, local = tf.math.top_k(log_probs, min(k + 1, log_probs.shape[-1]))
        end = log_probs[..., self.eos]
        ends = tf.reduce_any(local == self.eos, -1) & (end > top[..., 0] - EOS_MARGIN)
        ended = tf.where(ends & self._open(beams)[:, None], beams.log_probs + end, never)
        at_step = tf.range(self.max_length) == beams.index
        sequences = tf.concat([beams.finished, tf.where(at_step, self.eos, beams.tokens)], axis=1)
        penalty = ((5 + tf.cast(beams.index + 1, self.dtype)) / 5) ** self.alpha
        scores, order = tf.math.top_k(tf.concat([beams.scores, ended / penalty], axis=1), k)
        without = tf.where(tf.range(log_probs.shape[-1]) == self.eos, never, log_probs)
        best, parents, tokens = self._grown(beams.log_probs[..., None] + without, k)
        return _Beams(
            index=beams.index + 1,
            tokens=tf.where(at_step, tokens[..., None], _pick(beams.tokens, parents)),
            last=tokens,
            log_probs=best,
            state=(self._follow(step.state, parents), tf.maximum(finished_best, tf.reduce_max(ended, 1))),
            coverage=beams.coverage,
            finished=_pick(sequences, order),
            scores=scores,
        )

    def _best(self, last: _Beams) -> Hypotheses:
        there = ~tf.math.is_inf(last.scores)
        return Hypotheses(tf.where(there[..., None], last.finished, 0), last.scores)


def _pick(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Gathers along axis 1: [b, k, ...] and [b, j] -> [b, j, ...]."""
    return tf.gather(x, indices, batch_dims=1)
