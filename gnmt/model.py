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


class Gnmt(tf_keras.Model):
    """The network. A call on INPUTS returns time-major logits of each target token, given the tokens before it."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        super().__init__(name=config.model)
        self.config, self.precision = config, precision
        layers = Layers(config, replicas, precision)
        self.embedding, self.encoder = Embedding(layers), Encoder(layers)
        self.decoder, self.softmax = Decoder(layers), Logits(layers)
        # A bucket sets the lengths, which are known when the model is called.
        self.inputs = [
            replicas.model_input(shape, config.micro_batch_size, tf.int32) for shape in ([None], [], [None])
        ]
        self(self.inputs)  # Creates the variables.

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> tf.Tensor:
        """Computes the INPUTS' logits, [n, b, vocabulary] in full precision."""
        source, lengths, target = inputs
        memory = self.encoder(self.embedding(source), lengths, training)
        return self.softmax(self.decoder(self.embedding(shifted(target)), memory, lengths, training))

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

        search = beam.OneBeam(
            decoder=step,
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
        return search.run(self.decoder.start(sentences * k))


def shifted(target: tf.Tensor) -> tf.Tensor:
    """Shifts int32 [b, n] by one, starting with BOS, so that the decoder sees the token before the one it predicts."""
    return tf.concat([tf.fill([tf.shape(target)[0], 1], BOS), target[:, :-1]], 1)
