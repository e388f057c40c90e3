"""Dropout whose masks depend only on the seed, the step and the example."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import philox

NUMBERS = 1 << 23  # Random integers are below this; fp32 holds them exactly.
_MICRO_BATCH: contextvars.ContextVar[tuple[tf.Tensor | int, int]] = contextvars.ContextVar("micro_batch")


@contextlib.contextmanager
def micro_batch(index: tf.Tensor | int, count: int) -> Iterator[None]:
    """Context in which `Dropout` masks the examples of micro-batch `index` of the `count` in a replica's step."""
    token = _MICRO_BATCH.set((index, count))
    try:
        yield
    finally:
        _MICRO_BATCH.reset(token)


class Dropout(tf_keras.layers.Layer):
    """Zeroes elements of [b, n] with probability `rate` and scales the others by 1 / (1 - rate), in training.

    tf_keras's layer draws from a generator whose state differs in a resumed run, or with another number of replicas.
    Here the mask of an example is a part of one Philox stream, keyed by the layer's seed and the number of steps drawn
    so far. Group g of replicas takes the part of examples g*b ... (g+1)*b - 1; each of its replicas takes all of that
    part, because they hold the same examples. Micro-batch i takes its own share of the part (`micro_batch`).

    Attributes:
      partitions: replicas of a group, which share their examples (config.partitions).
      draws: steps drawn so far, a scalar of dtype `replicas.counter`, one per replica; part of the model's state,
        hence of its checkpoints.
    """

    def __init__(self, replicas: Replicas, rate: float, seed: int, partitions: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.replicas, self.rate, self.seed, self.partitions = replicas, rate, seed, partitions

    def build(self, input_shape: tf.TensorShape) -> None:
        self.draws = self.replicas.per_replica_variable(
            tf.zeros([], self.replicas.counter), f"{self.name}/draws"
        )
        super().build(input_shape)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Masks `x`, [b, n], in training; the identity otherwise."""
        if not training:
            return x
        draw = self.draws.read_value()
        index, count = _MICRO_BATCH.get((0, 1))
        self.draws.assign(draw + tf.cast(tf.equal(index, count - 1), draw.dtype))
        bits = (self._narrow_bits if self.replicas.narrow else self._bits)(tf.shape(x), draw, index, count)
        # fp32 in every precision, so that all drop the same elements.
        numbers = tf.cast(tf.bitwise.bitwise_and(bits, NUMBERS - 1), tf.float32)[:, : tf.shape(x)[1]]
        return tf.where(numbers >= self.rate * NUMBERS, x / (1 - self.rate), tf.zeros_like(x))

    def _bits(self, shape: tf.Tensor, draw: tf.Tensor, index: tf.Tensor | int, count: int) -> tf.Tensor:
        """Random words, uint32 [b, n rounded up to a multiple of 4], of TensorFlow's generator."""
        # Not ...GetKeyCounterAlg: XLA would treat the seed as a constant and recompile at every draw.
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.stack([self.seed, draw]))
        # One value of the counter gives four numbers; every example starts at a new value.
        columns = (shape[1] + 3) // 4
        group = self.replicas.replica_id() // self.partitions
        blocks = tf.cast(shape[0] * columns, tf.int64)
        offset = (tf.cast(group, tf.int64) * count + tf.cast(index, tf.int64)) * blocks
        counter = counter + tf.cast(tf.stack([offset, tf.zeros_like(offset)]), counter.dtype)
        # Integers, because XLA and TensorFlow's kernels make different floating-point numbers of the same bits.
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.stack([shape[0], columns * 4]),
            key=key,
            counter=counter,
            alg=tf.random.Algorithm.PHILOX.value,
            dtype=tf.uint32,
        )

    def _narrow_bits(
        self, shape: tf.Tensor, draw: tf.Tensor, index: tf.Tensor | int, count: int
    ) -> tf.Tensor:
        """As `_bits`, the same words, in 32-bit operations."""
        columns = (shape[1] + 3) // 4
        part = self.replicas.replica_id() // self.partitions * count + index
        low, high = philox.product(tf.cast(part, tf.uint32), tf.cast(shape[0] * columns, tf.uint32))
        number = tf.cast(tf.reshape(tf.range(shape[0] * columns), [shape[0], columns]), tf.uint32)
        block = number + low, high + tf.cast(number + low < number, tf.uint32)
        seed = self.seed % 2**32, self.seed >> 32 & 0xFFFFFFFF, tf.cast(draw, tf.uint32), 0
        return tf.reshape(philox.random_words(seed, block), [shape[0], columns * 4])
