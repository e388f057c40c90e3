"""Dropout whose masks depend only on the seed, the step and the example."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
from collections.abc import Iterator

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers import philox

LEVELS = 1 << 16  # A half of a word decides on an element, so that a rate is exact to 1 / 131072.
HALVES = 8  # Halves of the four words that one value of Philox's counter gives.
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
    """Zeroes elements of [b, ...] with probability `rate` and scales the others by 1 / (1 - rate), in training.

    tf_keras's layer draws from a generator whose state differs in a resumed run, or with another number of replicas.
    Here the mask of an example is a part of one Philox stream, whose key is the layer's seed and whose counter has the
    number of steps drawn so far in its high half. Group g of replicas takes the part of examples g*b ... (g+1)*b - 1;
    each of its replicas takes all of that part, because they hold the same examples. Micro-batch i takes its own share
    of the part (`micro_batch`).

    An example of n elements has c = n / 8 values of the counter, rounded up. Element e takes half e // c of value
    e % c: the low halves of the four words, then the high ones. Neighbours so have neighbouring values, and the mask
    is computed in the activation's own shape; eight neighbours of one value would be a dimension of 8, which a TPU
    pads to 128.

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
        """Masks `x`, [b, ...], in training; the identity otherwise."""
        if not training:
            return x
        draw = self.draws.read_value()
        index, count = _MICRO_BATCH.get((0, 1))
        self.draws.assign(draw + tf.cast(tf.equal(index, count - 1), draw.dtype))
        return tf.where(self._kept(x, draw, index, count), x * (1 / (1 - self.rate)), tf.zeros_like(x))

    def _kept(self, x: tf.Tensor, draw: tf.Tensor, index: tf.Tensor | int, count: int) -> tf.Tensor:
        """Which elements of `x` are kept, of its shape."""
        batch, *sides = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
        size = functools.reduce(operator.mul, sides)
        # Values of the counter in the shape of an eighth of the example, if that is one.
        cut = isinstance(sides[0], int) and sides[0] % HALVES == 0
        blocks = [batch, sides[0] // HALVES, *sides[1:]] if cut else [batch, -(-size // HALVES)]
        group = self.replicas.replica_id() // self.partitions * count + index
        make = self._narrow_halves if self.replicas.narrow else self._halves
        kept = make(blocks, draw, group)
        return kept if cut else tf.reshape(kept[:, :size], tf.shape(x))

    def _halves(self, blocks: list[int | tf.Tensor], draw: tf.Tensor, group: tf.Tensor | int) -> tf.Tensor:
        """Which halves keep their element, [b, 8 * blocks[1], ...], by TensorFlow's generator."""
        columns = functools.reduce(operator.mul, blocks[1:])
        offset = tf.cast(group, tf.int64) * tf.cast(blocks[0] * columns, tf.int64)
        # Integers, because XLA and TensorFlow's kernels make different floating-point numbers of the same bits.
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.stack([blocks[0], columns, 4]),
            key=tf.constant([self.seed % 2**64], tf.uint64),
            counter=tf.cast(tf.stack([offset, tf.cast(draw, tf.int64)]), tf.uint64),
            alg=tf.random.Algorithm.PHILOX.value,
            dtype=tf.uint32,
        )
        words, bound = tf.transpose(words, [0, 2, 1]), self._bound
        low = tf.bitwise.bitwise_and(words, LEVELS - 1) >= bound
        kept = tf.concat([low, words >= bound * LEVELS], 1)
        return tf.reshape(kept, tf.stack([blocks[0], HALVES * blocks[1], *blocks[2:]]))

    def _narrow_halves(
        self, blocks: list[int | tf.Tensor], draw: tf.Tensor, group: tf.Tensor | int
    ) -> tf.Tensor:
        """As `_halves`, from the same words, in 32-bit operations."""
        low, high = philox.product(
            tf.cast(group, tf.uint32), tf.cast(functools.reduce(operator.mul, blocks), tf.uint32)
        )
        number = tf.cast(_numbers(blocks), tf.uint32)
        key = self.seed % 2**32, self.seed >> 32 & 0xFFFFFFFF
        counter = number + low, high + tf.cast(number + low < number, tf.uint32), tf.cast(draw, tf.uint32), 0
        words = philox.words(key, counter)
        halves = [tf.bitwise.bitwise_and(word, LEVELS - 1) for word in words]
        halves += [tf.bitwise.right_shift(word, tf.constant(16, tf.uint32)) for word in words]
        return tf.concat([tf.cast(half, tf.int32) >= self._bound for half in halves], 1)

    @property
    def _bound(self) -> int:
        """The least half that keeps its element."""
        return min(round(self.rate * LEVELS), LEVELS - 1)


def _numbers(sides: list[int | tf.Tensor]) -> tf.Tensor:
    """Numbers the elements of a tensor of these sides in their order, int32."""
    number, stride = tf.zeros([1] * len(sides), tf.int32), 1
    for axis in reversed(range(len(sides))):
        place = tf.reshape(tf.range(sides[axis]), [-1 if i == axis else 1 for i in range(len(sides))])
        number, stride = number + place * stride, stride * sides[axis]
    return number
