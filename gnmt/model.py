"""Builds GNMT: four encoder LSTM layers, the first bidirectional, and four decoder layers, the first with attention.

Both wirings follow docs/sources.md, mlperf 2.
"""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.precision import Precision
from common.text import beam
from common.text.bpe import BOS, EOS
from gnmt.config import Config
from gnmt.layers import Decoder, Embedding, Encoder, Layers, Logits, State

# The model's inputs, as named in a batch, in order: int32 [b, m], [b], [b, n].
INPUTS = ("source", "source_length", "target")


def build(config: Config, replicas: Replicas, precision: Precision) -> Gnmt:
    """Builds the network: INPUTS -> logits [n, b, vocabulary] in `precision.variable`."""
    return Gnmt(config, replicas, precision)


class Gnmt(tf_keras.Model):
    """The network. A call on INPUTS returns time-major logits of each target token, given the tokens before it."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        layers = Layers(config, replicas, precision)
        embedding, encoder = Embedding(layers), Encoder(layers)
        decoder, softmax = Decoder(layers), Logits(layers)

        # A bucket sets the lengths, which are known when the model is called.
        source, lengths, target = inputs = [
            replicas.model_input(shape, config.micro_batch_size, tf.int32) for shape in ([None], [], [None])
        ]
        memory = encoder(embedding(source), lengths)
        before = Shift(config, name="shift")(target)
        x = decoder(embedding(before), memory, lengths)
        super().__init__(inputs, softmax(x), name=config.model)

        self.config, self.precision = config, precision
        self.embedding, self.encoder, self.decoder, self.softmax = embedding, encoder, decoder, softmax

    def translate(self, source: tf.Tensor, lengths: tf.Tensor, steps: int = 0) -> beam.Hypotheses:
        """Searches for the best translations: [b, m], [b] -> [b, beam, steps]; all sizes are static.

        `steps` is the configuration's `decode.target_length` by default.
        """
        decode = self.config.decode
        sentences, k = source.shape[0], decode.beam_size
        memory = self.decoder.attention.memory(self.encoder(self.embedding(source), lengths), lengths)

        def step(tokens: tf.Tensor, index: tf.Tensor, state: State) -> beam.Step:
            del index
            x = tf.reshape(self.embedding.rows(tokens), [sentences, k, self.config.width])
            done = self.decoder.step(x, state, memory)
            logits = self.softmax(tf.reshape(done.outputs, [sentences * k, self.config.width]))
            attention = tf.reshape(done.attention, [sentences * k, source.shape[1]])
            return beam.Step(logits, done.state, attention)

        return beam.search_in_one_beam(
            step,
            self.decoder.start(sentences * k),
            sentences=sentences,
            beam_size=k,
            max_length=steps or decode.target_length,
            eos=EOS,
            start=BOS,
            alpha=decode.alpha,
            coverage_weight=decode.coverage,
            count_start=decode.count_start,
            source_length=source.shape[1],
            dtype=self.precision.variable,
        )


class Shift(tf_keras.layers.Layer):
    """Shifts targets by one position, starting with BOS, so the decoder sees the token before the one it predicts."""

    def __init__(self, config: Config, name: str):
        super().__init__(name=name, dtype="int32")
        self.active = config.shift_targets

    def call(self, target: tf.Tensor) -> tf.Tensor:
        """Shifts int32 [b, n] -> [b, n]."""
        if not self.active:
            return target
        return tf.concat([tf.fill([tf.shape(target)[0], 1], BOS), target[:, :-1]], 1)
