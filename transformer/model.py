"""Builds the Transformer, big: figure 1 of "Attention Is All You Need" with the normalization before each sublayer.

Encoder and decoder end with a normalization, as in the v0.6 TPU submission and the reference (docs/sources.md, mlperf
2). A row packs several sentences. Each has a segment number (0 is padding) and its own positions from 0. A token sees
only its own segment, so a packed sentence gives the same result as an unpacked one.
"""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import attention
from common.layers.dropout import drop
from common.layers.precision import Precision
from common.text import beam
from transformer.config import Config
from transformer.layers import DecoderLayer, Embedding, EncoderLayer, Heads, Layers, position_signal, same

# Names of the model's inputs, int32 [b, packed_length], in order.
INPUTS = ("inputs", "inputs_segment", "inputs_position", "targets", "targets_segment", "targets_position")
EOS = 1  # End of sentence in the subword vocabulary; 0 is padding.


class Transformer(tf_keras.Model):
    """The network. A call on INPUTS returns the logits of each target token, given the tokens before it."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        super().__init__(name=config.model)
        self.config, self.precision = config, precision
        layers = Layers(config, replicas, precision)
        embedding = Embedding(layers)
        self.source_input = TokenInput(layers, embedding)
        self.target_input = TokenInput(layers, embedding, shift=True)
        self.encoder_layers = [EncoderLayer(layers) for _ in range(config.layers)]
        self.decoder_layers = [DecoderLayer(layers) for _ in range(config.layers)]
        self.encoder_norm, self.decoder_norm = layers.norm(), layers.norm()
        sizes = [config.packed_length], config.micro_batch_size, tf.int32
        self.inputs = [replicas.model_input(*sizes) for _ in INPUTS]
        self(self.inputs)  # Creates the variables.

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> tf.Tensor:
        """Computes the INPUTS' logits, [b, packed_length, vocabulary] in full precision."""
        ids, segments, positions, targets, target_segments, target_positions = inputs
        source = self.encode(ids, segments, positions, training)
        length = targets.shape[1]
        before = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
        allowed, source_allowed = (
            same(target_segments, target_segments) & before,
            same(target_segments, segments),
        )
        x = self.target_input(targets, target_positions, training)
        for layer in self.decoder_layers:
            x, _ = layer(x, allowed, source, source_allowed, training)
        return self.logits(x)

    def encode(
        self, ids: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        """Encodes sources: each argument [b, m] -> [b, m, width]; a token attends to its own segment."""
        x, allowed = self.source_input(ids, positions, training), same(segments, segments)
        for layer in self.encoder_layers:
            x = layer(x, allowed, training)
        return tf.cast(self.encoder_norm(x), self.precision.compute)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Computes the logits as products with the embeddings: [b, n, width] -> [b, n, vocabulary]."""
        return self.target_input.embedding.logits(tf.cast(self.decoder_norm(x), self.precision.compute))

    def translate(self, ids: tf.Tensor, positions: tf.Tensor) -> beam.Hypotheses:
        """Searches for the best translations: [b, m] -> [b, beam, steps]; sentences end in EOS, then 0 as padding.

        `m` and the number of steps are static; the search ends early when it can find no better translation.
        """
        decode = self.config.decode
        segments = tf.cast(ids != 0, tf.int32)
        source = self.encode(ids, segments, positions)
        plain = attention.IMPLEMENTATIONS["plain"]
        memories = [layer.source_attention.memory(source, plain) for layer in self.decoder_layers]
        sentences, steps = ids.shape[0], ids.shape[1] + decode.extra_length
        source_allowed = (segments != 0)[:, None, None, :]

        def step(tokens: tf.Tensor, index: tf.Tensor, caches: list[Heads]) -> beam.Step:
            x = self.target_input.one(tf.reshape(tokens, [sentences, decode.beam_size]), index)
            allowed, after = tf.range(steps) <= index, []
            for layer, memory, cache in zip(self.decoder_layers, memories, caches):
                x, cache = layer(x, allowed, memory, source_allowed, False, cache, index)
                after.append(cache)
            return beam.Step(tf.reshape(self.logits(x), [-1, self.config.vocabulary_size]), after)

        rows = sentences * decode.beam_size
        shape = [rows, self.config.heads, steps, self.config.width // self.config.heads]
        empty = Heads(*[tf.zeros(shape, self.precision.compute)] * 2)
        search = (beam.Margins if decode.search == "lingvo" else beam.Search)(
            decoder=step,
            sentences=sentences,
            beam_size=decode.beam_size,
            max_length=steps,
            eos=EOS,
            alpha=decode.alpha,
            dtype=self.precision.variable,
        )
        return search.run([empty] * self.config.layers)


class TokenInput(tf_keras.layers.Layer):
    """Embeds tokens and adds the position signal, with dropout; `shift` embeds the token before each position."""

    def __init__(self, layers: Layers, embedding: Embedding, shift: bool = False):
        super().__init__(dtype=layers.precision.layer)
        config = layers.config
        self.embedding, self.dropout = embedding, layers.dropout(config.residual_dropout)
        self.shift = shift
        length = max(config.packed_length, config.decode.target_length)
        self.signal = tf.constant(position_signal(length, config.width), layers.precision.compute)

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
