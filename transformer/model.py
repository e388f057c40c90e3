"""Builds the Transformer, big: figure 1 of "Attention Is All You Need" with the normalisation before each sublayer.

Encoder and decoder end with a normalisation, as in the v0.6 TPU submission and the reference (docs/sources.md, mlperf
2). A row packs several sentences. Each has a segment number (0 is padding) and its own positions from 0. A token sees
only its own segment, so a packed sentence gives the same result as an unpacked one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.dropout import drop
from common.layers.precision import Precision
from common.text import beam
from transformer.config import Config
from transformer.layers import Cache, DecoderLayer, Embedding, EncoderLayer, Layers, position_signal

# Names of the model's inputs, int32 [b, packed_length], in order.
INPUTS = ("inputs", "inputs_segment", "inputs_position", "targets", "targets_segment", "targets_position")
EOS = 1  # End of sentence in the subword vocabulary; 0 is padding.


def build(config: Config, replicas: Replicas, precision: Precision) -> Transformer:
    """Builds the network: the six INPUTS -> logits [b, packed_length, vocabulary] in `precision.variable`."""
    return Transformer(config, replicas, precision)


class Transformer(tf_keras.Model):
    """The network. A call on INPUTS returns the logits of each target token, given the tokens before it."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        layers = Layers(config, replicas, precision)
        embedding = Embedding(layers)
        source_input, target_input = TokenInput(layers, embedding), TokenInput(layers, embedding, shift=True)
        encoder = [EncoderLayer(layers) for _ in range(config.layers)]
        decoder = [DecoderLayer(layers) for _ in range(config.layers)]
        encoder_norm, decoder_norm, softmax = layers.norm(), layers.norm(), Logits(embedding, precision)

        ids, segments, positions, targets, target_segments, target_positions = inputs = [
            replicas.model_input([config.packed_length], config.micro_batch_size, tf.int32) for _ in INPUTS
        ]
        x = source_input(ids, positions)
        for layer in encoder:
            x = layer(x, segments)
        source = encoder_norm(x)

        x = target_input(targets, target_positions)
        for layer in decoder:
            x = layer(x, source, target_segments, segments)
        super().__init__(inputs, softmax(decoder_norm(x)), name=config.model)

        self.config, self.precision = config, precision
        self.source_input, self.target_input = source_input, target_input
        self.encoder_layers, self.decoder_layers = encoder, decoder
        self.encoder_norm, self.decoder_norm, self.softmax = encoder_norm, decoder_norm, softmax

    def encode(self, ids: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Encodes sources without dropout: each argument [b, m] -> [b, m, width]."""
        x = self.source_input(ids, positions)
        for layer in self.encoder_layers:
            x = layer(x, segments)
        return tf.cast(self.encoder_norm(x), self.precision.compute)

    def translate(self, ids: tf.Tensor, positions: tf.Tensor) -> beam.Hypotheses:
        """Searches for the best translations: [b, m] -> [b, beam, steps]; sentences end in EOS, then 0 as padding.

        `m` and the number of steps are static; the search ends early when it can find no better translation.
        """
        decode = self.config.decode
        segments = tf.cast(ids != 0, tf.int32)
        source = self.encode(ids, segments, positions)
        memories = [layer.source_cache(source) for layer in self.decoder_layers]
        sentences, steps = ids.shape[0], ids.shape[1] + decode.extra_length
        allowed = (segments != 0)[:, None, None, :]

        def step(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> beam.Step:
            tokens = tf.reshape(tokens, [sentences, decode.beam_size])
            logits, caches = self._step(tokens, index, caches, memories, allowed)
            return beam.Step(tf.reshape(logits, [-1, logits.shape[-1]]), caches)

        rows = sentences * decode.beam_size
        return beam.search(
            step,
            [layer.empty_cache(rows, steps) for layer in self.decoder_layers],
            sentences=sentences,
            beam_size=decode.beam_size,
            max_length=steps,
            eos=EOS,
            alpha=decode.alpha,
            dtype=self.precision.variable,
        )

    def _step(
        self,
        tokens: tf.Tensor,
        index: tf.Tensor,
        caches: list[Cache],
        memories: list[Cache],
        allowed: tf.Tensor,
    ) -> tuple[tf.Tensor, list[Cache]]:
        """Computes the next token's logits [b, k, vocabulary] from the last tokens [b, k] of k hypotheses."""
        x = self.target_input.one(tokens, index)
        after = []
        for layer, cache, memory in zip(self.decoder_layers, caches, memories):
            x, cache = layer.step(x, index, cache, memory, allowed)
            after.append(cache)
        return self.softmax(self.decoder_norm(x)), after


class TokenInput(tf_keras.layers.Layer):
    """Embeds tokens and adds the position signal, with dropout; `shift` embeds the token before each position."""

    def __init__(self, layers: Layers, embedding: Embedding, shift: bool = False):
        super().__init__(dtype=layers.precision.layer)
        config = layers.config
        self.embedding, self.dropout = embedding, layers.dropout(config.residual_dropout)
        self.shift = shift and config.shift_targets
        length = max(config.packed_length, config.decode.target_length)
        signal = position_signal(length, config.width) * config.positions
        self.signal = tf.constant(signal, layers.precision.compute)

    def call(self, ids: tf.Tensor, positions: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Embeds [b, n] at positions [b, n] -> [b, n, width]."""
        if self.shift:
            # Id 0, whose embedding is zero, precedes every sentence, even one that follows another sentence.
            ids = tf.where(positions > 0, tf.pad(ids, [[0, 0], [1, 0]])[:, :-1], 0)
        x = self.embedding(ids) + tf.gather(self.signal, positions)
        return drop(self.dropout, x, training)

    def one(self, tokens: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Embeds tokens [b, k] at one position -> [b, k, width]."""
        return self.embedding(tokens) + tf.gather(self.signal, position)

    def multiply_adds(self, input_shape: Any, output_shape: Any) -> int:
        """Returns 0, because a lookup multiplies no matrices."""
        return 0


class Logits(tf_keras.layers.Layer):
    """Computes the logits as products with the embeddings."""

    def __init__(self, embedding: Embedding, precision: Precision):
        super().__init__(dtype=precision.full, autocast=False)
        self.embedding, self.precision = embedding, precision

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Computes [b, n, width] -> [b, n, vocabulary]."""
        return self.embedding.logits(tf.cast(x, self.precision.compute))

    def multiply_adds(self, input_shape: tuple[int, int], output_shape: tuple[int, int]) -> int:
        return input_shape[0] * input_shape[1] * output_shape[1]
