"""Builds the layers of GNMT: embedding, encoder, decoder with attention, logits.

The network is figure 1 of "Google's Neural Machine Translation System" at the benchmark's size. Activations between
layers are time-major, [length, b, width], in full precision; matrix products run in the precision of products. The
decoder can also run one step at a time, from the previous step's states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.dense import product, rows
from common.layers.dropout import TimeDropout, drop
from common.layers.lstm import LSTM, inputs_part, side_by_side
from common.layers.precision import Precision
from common.layers.seeds import seeds
from common.layers.xla import for_gpu, under_xla
from gnmt.attention import Attention, Memory
from gnmt.config import Config
from gnmt.recurrent import attend_in_turn
from gnmt.wavefront import wavefront

# State of the hypotheses: {"lstms": [(h, c), ...], and in Google's wiring "context": [rows, width]}.
State = dict[str, Any]


class Layers:
    """Creates layers and initializers, each with its own seed."""

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        self.config, self.replicas, self.precision = config, replicas, precision
        self._seeds = seeds(config.seed)

    def uniform(self) -> tf_keras.initializers.Initializer:
        scale = self.config.init_scale
        return tf_keras.initializers.RandomUniform(-scale, scale, seed=next(self._seeds))

    def uniform_bias(self) -> tf_keras.initializers.Initializer:
        """Creates the initializer for the biases of LSTMs and logits."""
        scale = self.config.bias_scale
        if not scale:
            return tf_keras.initializers.Zeros()
        return tf_keras.initializers.RandomUniform(-scale, scale, seed=next(self._seeds))

    def lstm(self) -> LSTM:
        return LSTM(
            self.config.width,
            self.precision,
            kernel_initializer=self.uniform(),
            recurrent_initializer=self.uniform(),
            bias_initializer=self.uniform_bias(),  # No forget bias: docs/sources.md, mlperf 1.5
        )

    def dropout(self) -> TimeDropout | None:
        seed = next(self._seeds)
        rate, dtype = self.config.dropout, self.precision.full
        return TimeDropout(self.replicas, rate, seed, dtype=dtype) if rate else None


class Embedding(tf_keras.layers.Layer):
    """The embedding table that source and target share."""

    kinds = {"table": "embedding"}

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.full, autocast=False)
        shape = [layers.config.vocabulary_size, layers.config.width]
        self.table = self.add_weight("table", shape=shape, initializer=layers.uniform())

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up [b, n] -> [n, b, width]."""
        return tf.gather(tf.convert_to_tensor(self.table), tf.transpose(ids))

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up [r] -> [r, width]."""
        return tf.gather(tf.convert_to_tensor(self.table), ids)


class Encoder(tf_keras.layers.Layer):
    """A bidirectional LSTM layer, an LSTM layer over both directions, then layers with residual connections."""

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.full, autocast=False)
        self.forward, self.backward = layers.lstm(), layers.lstm()
        self.lstms = [layers.lstm() for _ in range(layers.config.layers - 1)]
        self.dropouts = [layers.dropout() for _ in range(layers.config.layers)]
        self.replicas = layers.replicas

    def call(self, x: tf.Tensor, lengths: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes [m, b, width] with `lengths`, int32 [b] -> [m, b, width].

        Outputs after the end of a sentence are meaningless; no output before it depends on them.
        """
        first, *rest = self.dropouts
        x = drop(first, x, training)
        # Reverses each sentence within its length, so that the backward LSTM starts at its end, not in the padding.
        both = side_by_side([self.forward, self.backward], [x, _reversed(x, lengths)])
        x = tf.concat([both[0], _reversed(both[1], lengths)], -1)
        if len(self.lstms) > 1 and for_gpu(self.replicas) and in_one_loop(self.lstms, x):
            return self._in_one_loop(x, rest, training)
        for i, (lstm, dropout) in enumerate(zip(self.lstms, rest)):
            y, _ = lstm(drop(dropout, x, training))
            x = y + x if i else y
        return x

    def _in_one_loop(self, x: tf.Tensor, dropouts: list[TimeDropout | None], training: bool) -> tf.Tensor:
        """Runs the layers after the first; the first of them reads only the backward half of `x` in the loop."""
        forward, backward = tf.split(x, 2, -1)
        masks, scale = keep_masks(dropouts, [x, *[forward] * (len(dropouts) - 1)], training)
        if masks:
            of_forward, masks[0] = tf.split(masks[0], 2, -1)
            forward = tf.where(of_forward, forward * scale, tf.zeros_like(forward))
        first = self.lstms[0]
        z = inputs_part(forward, first.kernel[: forward.shape[-1]], first.precision)
        residual = [i > 0 for i in range(len(self.lstms))]
        return wavefront(self.lstms, backward, residual, masks, scale, z)[0]


def in_one_loop(lstms: Sequence[LSTM], *inputs: tf.Tensor) -> bool:
    """Whether a `wavefront` can run the layers: under XLA, if they are built and all sizes known."""
    usable = all(lstm.built for lstm in lstms)
    return usable and under_xla() and all(None not in x.shape for x in inputs)


def keep_masks(
    dropouts: Sequence[TimeDropout | None], inputs: Sequence[tf.Tensor], training: bool
) -> tuple[list[tf.Tensor] | None, float]:
    """Returns which elements of each input its dropout keeps, None for all, and the factor of those kept."""
    ones = [tf.ones_like(x) for x in inputs]
    dropped = [drop(dropout, one, training) for dropout, one in zip(dropouts, ones)]
    if any(after is one for after, one in zip(dropped, ones)):
        return None, 1.0
    return [after > 0 for after in dropped], 1 / (1 - dropouts[0].rate)


def _reversed(x: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    return tf.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)


class Step(NamedTuple):
    """Result of a decoder step: outputs [b, k, width], attention weights [b, k, m], states for b * k hypotheses."""

    outputs: tf.Tensor
    attention: tf.Tensor
    state: State


class Decoder(tf_keras.layers.Layer):
    """LSTM layers: the first queries the attention, the others see its context; the third and later are residual."""

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.full, autocast=False)
        config = layers.config
        self.config, self.precision, self.replicas = config, layers.precision, layers.replicas
        self.attention = Attention(config, layers.precision, layers.uniform)
        self.first = layers.lstm()
        self.lstms = [layers.lstm() for _ in range(config.layers - 1)]
        self.dropouts = [layers.dropout() for _ in range(config.layers)]
        self.context_dropout = layers.dropout() if self.feeds_back else None

    @property
    def feeds_back(self) -> bool:
        return self.config.wiring == "google"

    def call(self, x: tf.Tensor, source: tf.Tensor, lengths: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Decodes: [n, b, width], the encoder's [m, b, width], int32 [b] -> [n, b, width]; states begin at zero."""
        memory = self.attention.memory(source, lengths)
        if self.feeds_back and in_one_loop([self.first, *self.lstms], x, source):
            x, context = self._in_one_loop(x, memory, training)
            return x if context is None else self._rest(x, context, training)[0]
        x = drop(self.dropouts[0], x, training)
        if self.feeds_back:
            ones = tf.ones_like(x)
            masks = drop(self.context_dropout, ones, training)
            masks = None if masks is ones else masks
            x, context = attend_in_turn(self.first, self.attention, memory, x, masks)
        else:
            x, _ = self.first(x)
            contexts, _ = self.attention(tf.transpose(x, [1, 0, 2]), memory)
            context = tf.transpose(contexts, [1, 0, 2])
        return self._rest(x, context, training)[0]

    def _rest(
        self, x: tf.Tensor, context: tf.Tensor, training: bool, states: Sequence | None = None
    ) -> tuple[tf.Tensor, list]:
        """Runs the layers after the first, one after the other, from `states` or zeros; returns their states too."""
        after = []
        for i, (lstm, dropout) in enumerate(zip(self.lstms, self.dropouts[1:])):
            read = drop(dropout, tf.concat([x, context], -1), training)
            y, state = lstm(read, states[i] if states else None)
            x = y + x if i else y
            after.append(state)
        return x, after

    def _in_one_loop(
        self, x: tf.Tensor, memory: Memory, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Runs all layers on a GPU; elsewhere the first, and returns the contexts too."""
        if not for_gpu(self.replicas):
            x = drop(self.dropouts[0], x, training)
            z = inputs_part(x, self.first.kernel[: x.shape[-1]], self.precision)
            masks, scale = keep_masks([self.context_dropout], [x], training)
            return wavefront([self.first], None, [False], masks, scale, z, self.attention, memory)
        inputs = [x, *[tf.concat([x, x], -1)] * len(self.lstms), x]
        masks, scale = keep_masks([*self.dropouts, self.context_dropout], inputs, training)
        if masks:
            masks[0] = tf.concat([masks[0], masks.pop()], -1)
        residual = [i > 1 for i in range(len(self.dropouts))]
        return wavefront([self.first, *self.lstms], x, residual, masks, scale, None, self.attention, memory)

    def start(self, rows: int) -> State:
        """Creates the states of `rows` hypotheses before their first token."""
        zeros = tf.zeros([rows, self.config.width], self.precision.variable)
        state: State = {"lstms": [(zeros, zeros)] * self.config.layers}
        return {**state, "context": zeros} if self.feeds_back else state

    def step(self, x: tf.Tensor, state: State, memory: Memory) -> Step:
        """Decodes one token, [b, k, width], for each of k hypotheses of b sentences."""
        shape, (before, *rest) = tf.shape(x), state["lstms"]
        x = tf.reshape(x, [1, -1, x.shape[-1]])
        if self.feeds_back:
            x = tf.concat([x, state["context"][None]], -1)
        x, after = self.first(x, before)
        context, weights = self.attention(tf.reshape(x, shape), memory)
        context = tf.reshape(context, tf.shape(x))
        x, states = self._rest(x, context, False, rest)
        new: State = {"lstms": [after, *states]}
        return Step(tf.reshape(x, shape), weights, {**new, "context": context[0]} if self.feeds_back else new)


class Logits(tf_keras.layers.Layer):
    """Computes the logits with a separate matrix, not the embeddings."""

    kinds = {"kernel": "kernel", "bias": "bias"}

    def __init__(self, layers: Layers):
        super().__init__(dtype=layers.precision.full, autocast=False)
        config, self.precision = layers.config, layers.precision
        size = config.vocabulary_size
        uniform: Callable = layers.uniform
        self.kernel = self.add_weight("kernel", shape=[config.width, size], initializer=uniform())
        bias = layers.uniform_bias()
        self.bias = (
            self.add_weight("bias", shape=[size], initializer=bias) if config.wiring == "reference" else None
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Multiplies [..., width] -> [..., vocabulary] in full precision."""
        flat = tf.cast(rows(x), self.precision.compute)
        logits = product(flat, tf.cast(self.kernel, self.precision.compute))
        logits = tf.cast(logits, self.precision.variable)
        if self.bias is not None:
            logits += self.bias
        lead = [tf.shape(x)[i] if size is None else size for i, size in enumerate(x.shape[:-1])]
        return tf.reshape(logits, [*lead, logits.shape[-1]])
