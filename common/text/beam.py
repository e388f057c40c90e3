"""Beam search with static shapes, for any decoder that is a function of the last token and a state.

The search is tensor2tensor's. Each step takes the 2k best continuations of the k living hypotheses. Those that end
compete by score for the k finished places; of the others, the k most probable live on. The score is GNMT's ("Google's
Neural Machine Translation System", equations 14 and 15): log P / ((5 + length) / 6)^alpha
+ coverage_weight * sum over source tokens of log(min(attention received, 1)).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

_LEAST = 1e-30  # Minimum attention in the coverage penalty's logarithm.


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


def search(
    decoder: Decoder,
    state: Any,
    *,
    sentences: int,
    beam_size: int,
    max_length: int,
    eos: int,
    start: int = 0,
    alpha: float = 0.6,
    coverage_weight: float = 0.0,
    source_real: tf.Tensor | None = None,
    dtype: tf.DType | None = None,
) -> Hypotheses:
    """Returns the `beam_size` best sequences of each sentence that end in `eos`.

    The loop ends after `max_length` steps, or when no living hypothesis can still displace a finished one. For a
    sentence without a finished hypothesis, it returns the living ones.

    Args:
      decoder: computes the next token's logits.
      state: the decoder's state before the first step, with sentences * beam_size rows.
      sentences: number of sentences b, static.
      beam_size: k.
      max_length: maximum number of steps, static.
      eos: the token that ends a sequence.
      start: the start token, before the first output token.
      alpha: exponent of the length penalty; 0 is off.
      coverage_weight: factor of the coverage penalty; 0 is off.
      source_real: bool [b, source] for the coverage penalty, False at padding.
      dtype: of the scores; float32 if not given.

    Raises:
      ValueError: a coverage penalty without `source_real`.
    """
    if coverage_weight and source_real is None:
        raise ValueError("coverage_weight needs source_real, which tells the source's padding")
    return _Search(
        decoder,
        sentences,
        beam_size,
        max_length,
        eos,
        alpha,
        coverage_weight,
        source_real,
        dtype or tf.float32,
    ).run(state, start)


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


@dataclasses.dataclass(frozen=True)
class _Search:
    decoder: Decoder
    sentences: int
    beam_size: int
    max_length: int
    eos: int
    alpha: float
    coverage_weight: float
    source_real: tf.Tensor | None
    dtype: tf.DType

    def run(self, state: Any, start: int) -> Hypotheses:
        b, k, n = self.sentences, self.beam_size, self.max_length
        never = tf.constant(float("-inf"), self.dtype)
        source = self.source_real.shape[1] if self.coverage_weight else 0
        first = _Beams(
            index=tf.constant(0),
            tokens=tf.zeros([b, k, n], tf.int32),
            last=tf.fill([b, k], start),
            # All k hypotheses start equal, so only the first may have descendants.
            log_probs=tf.tile([[0.0] + [float("-inf")] * (k - 1)], [b, 1]),
            state=state,
            coverage=tf.zeros([b, k, source], self.dtype),
            finished=tf.zeros([b, k, n], tf.int32),
            scores=tf.fill([b, k], never),
        )
        first = first._replace(log_probs=tf.cast(first.log_probs, self.dtype))
        (last,) = tf.while_loop(
            self._goes_on,
            lambda beams: [self._advance(beams)],
            [first],
            maximum_iterations=n,
            parallel_iterations=1,
        )
        none = tf.reduce_all(tf.math.is_inf(last.scores), axis=1, keepdims=True)
        living = self._score(last.log_probs, last.coverage, n)
        return Hypotheses(
            tf.where(none[..., None], last.tokens, last.finished), tf.where(none, living, last.scores)
        )

    def _goes_on(self, beams: _Beams) -> tf.Tensor:
        """Whether a living hypothesis of any sentence can still displace a finished one.

        A hypothesis's score is at most its current log-probability divided by the largest length penalty.
        """
        most = length_penalty(self.max_length, self.alpha, self.dtype)
        possible = beams.log_probs[:, 0] / most
        found = ~tf.math.is_inf(beams.scores)
        worst = tf.reduce_min(tf.where(found, beams.scores, tf.constant(float("inf"), self.dtype)), axis=1)
        done = tf.reduce_any(found, axis=1) & (worst > possible)
        return ~tf.reduce_all(done)

    def _advance(self, beams: _Beams) -> _Beams:
        b, k = self.sentences, self.beam_size
        step = self.decoder(tf.reshape(beams.last, [b * k]), beams.index, beams.state)
        log_probs = tf.nn.log_softmax(tf.cast(step.logits, self.dtype))
        vocabulary = log_probs.shape[-1]
        grown = beams.log_probs[..., None] + tf.reshape(log_probs, [b, k, vocabulary])
        # At most k of the 2k end, one per parent, so at least k can live on.
        best, where = tf.math.top_k(tf.reshape(grown, [b, k * vocabulary]), 2 * k)
        parents, tokens = where // vocabulary, where % vocabulary
        ends = tokens == self.eos

        coverage = beams.coverage
        if self.coverage_weight:
            coverage += tf.reshape(tf.cast(step.attention, self.dtype), coverage.shape)
        sequences = _pick(beams.tokens, parents)
        sequences = tf.where(tf.range(self.max_length) == beams.index, tokens[..., None], sequences)
        finished, scores = self._finish(beams, sequences, best, ends, _pick(coverage, parents))

        never = tf.constant(float("-inf"), self.dtype)
        log_probs, chosen = tf.math.top_k(tf.where(ends, never, best), k)
        parents = _pick(parents, chosen)
        flat = tf.reshape(parents + k * tf.range(b)[:, None], [b * k])
        return _Beams(
            index=beams.index + 1,
            tokens=_pick(sequences, chosen),
            last=_pick(tokens, chosen),
            log_probs=log_probs,
            state=tf.nest.map_structure(lambda x: tf.gather(x, flat), step.state),
            coverage=_pick(coverage, parents),
            finished=finished,
            scores=scores,
        )

    def _finish(
        self, beams: _Beams, sequences: tf.Tensor, log_probs: tf.Tensor, ends: tf.Tensor, coverage: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the k best of the finished hypotheses and those that end now."""
        never = tf.constant(float("-inf"), self.dtype)
        now = tf.where(ends, self._score(log_probs, coverage, beams.index + 1), never)
        scores, chosen = tf.math.top_k(tf.concat([beams.scores, now], axis=1), self.beam_size)
        return _pick(tf.concat([beams.finished, sequences], axis=1), chosen), scores

    def _score(self, log_probs: tf.Tensor, coverage: tf.Tensor, length: tf.Tensor | int) -> tf.Tensor:
        score = log_probs / length_penalty(length, self.alpha, self.dtype)
        if self.coverage_weight:
            # The clip keeps the logarithm finite if a token received no attention.
            logs = tf.math.log(tf.clip_by_value(coverage, _LEAST, 1))
            real = tf.cast(self.source_real, self.dtype)[:, None, :]
            score += self.coverage_weight * tf.reduce_sum(logs * real, axis=-1)
        return score


def _pick(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Gathers along axis 1: [b, k, ...] and [b, j] -> [b, j, ...]."""
    return tf.gather(x, indices, batch_dims=1)
