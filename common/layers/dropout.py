"""Dropout with masks that depend only on the seed, the step and the example."""

import contextlib
import contextvars
import functools
import operator
from collections.abc import Iterator

import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas, UnsupportedError
from common.layers import philox

LEVELS = 1 << 16  # Half a word decides on an element, so a rate is exact to 1 / 131072.
WORDS = 4  # Words that one value of Philox's counter gives.
_MICRO_BATCH: contextvars.ContextVar[tuple[tf.Tensor | int, int]] = contextvars.ContextVar("micro_batch")


@contextlib.contextmanager
def micro_batch(index: tf.Tensor | int, count: int) -> Iterator[None]:
    """Context in which `Dropout` masks the examples of micro-batch `index` of `count` in a replica's step."""
    token = _MICRO_BATCH.set((index, count))
    try:
        yield
    finally:
        _MICRO_BATCH.reset(token)


class Dropout(tf_keras.layers.Layer):
    """In training, zeroes elements of [b, ...] with probability `rate` and scales the others by 1 / (1 - rate).

    tf_keras's layer draws from a generator whose state differs in a resumed run, or with another number of replicas.
    Here an example's mask is part of one Philox stream. The layer's seed is the key; the high half of the counter is
    the number of steps drawn so far. Group g of replicas takes the part of examples g*b ... (g+1)*b - 1. Each replica
    of the group takes that whole part, because they hold the same examples. Micro-batch i takes its own share of the
    part (`micro_batch`).

    An example of n elements has c = n / 8 values of the counter, rounded up. Element e takes half e // c of value
    e % c: first the low halves of the four words, then the high ones. So neighboring elements have neighboring
    values, and the mask is computed in the activation's own shape. If eight neighbors shared a value, they would form
    a dimension of 8, which a TPU pads to 128.

    The device's own generator costs a TPU less, but its numbers depend on the device and the shape. The mask then
    depends on the seed, the step and the number of the group or micro-batch, not on the example.

    Attributes:
      generator: "counter", or "hardware" if the backend's programs can use it (`Replicas.random_words`).
      partitions: replicas of a group, which share their examples (config.partitions).
      draws: steps drawn so far, a scalar of dtype `replicas.counter`, one per replica; part of the model's state and
        so of its checkpoints.
    """

    def __init__(
        self,
        replicas: Replicas,
        rate: float,
        seed: int,
        partitions: int = 1,
        generator: str = "counter",
        **kwargs,
    ):
        """Raises UnsupportedError if the backend's programs cannot use the device's generator."""
        super().__init__(**kwargs)
        self.replicas, self.rate, self.seed, self.partitions = replicas, rate, seed, partitions
        self.generator = generator
        if generator == "hardware" and not replicas.has_random_words:
            raise UnsupportedError(
                f"config.dropout_generator=hardware: TensorFlow has no operation for it on the backend "
                f"{replicas.name}; use counter, or --replicas=pjrt"
            )

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
        return tf.where(self._mask(x, draw, index, count), x * (1 / (1 - self.rate)), tf.zeros_like(x))

    def _mask(self, x: tf.Tensor, draw: tf.Tensor, index: tf.Tensor | int, count: int) -> tf.Tensor:
        """Returns which elements of `x` are kept, in the shape of `x`."""
        batch, *sides = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
        size, hardware = functools.reduce(operator.mul, sides), self.generator == "hardware"
        halves = 2 if hardware else 2 * WORDS
        # If the first side divides by 8, the words have the shape of an eighth of the example.
        cut = isinstance(sides[0], int) and sides[0] % halves == 0
        blocks = [batch, sides[0] // halves, *sides[1:]] if cut else [batch, -(-size // halves)]
        group = self.replicas.replica_id() // self.partitions * count + index
        if hardware:
            state = self.seed % 2**32, group, draw, self.seed >> 32 & 0xFFFFFFFF
            bits = self._halves_kept([self.replicas.random_words(state, blocks)])
        elif self.replicas.narrow:
            bits = self._halves_kept(self._narrow_words(blocks, draw, group))
        else:
            bits = self._kept_by_kernel(blocks, draw, group)
        return bits if cut else tf.reshape(bits[:, :size], tf.shape(x))

    def _kept_by_kernel(
        self, blocks: list[int | tf.Tensor], draw: tf.Tensor, group: tf.Tensor | int
    ) -> tf.Tensor:
        """Returns which halves keep their element, [b, 8 * blocks[1], ...], from TensorFlow's generator."""
        columns = functools.reduce(operator.mul, blocks[1:])
        offset = tf.cast(group, tf.int64) * tf.cast(blocks[0] * columns, tf.int64)
        # Integers, because XLA and TensorFlow's kernels turn the same bits into different floating-point numbers.
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.stack([blocks[0], columns, WORDS]),
            key=tf.constant([self.seed % 2**64], tf.uint64),
            counter=tf.cast(tf.stack([offset, tf.cast(draw, tf.int64)]), tf.uint64),
            alg=tf.random.Algorithm.PHILOX.value,
            dtype=tf.uint32,
        )
        words, bound = tf.transpose(words, [0, 2, 1]), self._bound
        low = tf.bitwise.bitwise_and(words, LEVELS - 1) >= bound
        mask = tf.concat([low, words >= bound * LEVELS], 1)
        return tf.reshape(mask, tf.stack([blocks[0], 2 * WORDS * blocks[1], *blocks[2:]]))

    def _narrow_words(
        self, blocks: list[int | tf.Tensor], draw: tf.Tensor, group: tf.Tensor | int
    ) -> list[tf.Tensor]:
        """Returns the words of `_kept_by_kernel`, each of shape `blocks`, from 32-bit operations."""
        low, high = philox.product(
            tf.cast(group, tf.uint32), tf.cast(functools.reduce(operator.mul, blocks), tf.uint32)
        )
        # Zero, but not a constant: XLA would store the first rounds' results for all numbers, and read them.
        low += tf.cast(draw < 0, tf.uint32)
        number = _numbers(blocks, low)
        key = self.seed % 2**32, self.seed >> 32 & 0xFFFFFFFF
        counter = number, high + tf.cast(number < low, tf.uint32), tf.cast(draw, tf.uint32), 0
        return philox.words(key, counter)

    def _halves_kept(self, words: list[tf.Tensor]) -> tf.Tensor:
        """Returns which halves of the words keep their element, low halves first, along axis 1.

        All decisions of a counter value stand in one byte, so that a program which stores a mask for the gradient moves
        one bit for each element, and the words never leave the kernel that draws them.
        """
        halves = [tf.bitwise.bitwise_and(word, LEVELS - 1) for word in words]
        halves += [tf.bitwise.right_shift(word, tf.constant(16, tf.uint32)) for word in words]
        bits = [tf.constant(1 << i, tf.uint32) for i in range(len(halves))]
        masked_bits = [
            tf.where(tf.cast(half, tf.int32) >= self._bound, bit, tf.zeros_like(bit))
            for half, bit in zip(halves, bits)
        ]
        # Signed, because XLA's fused softmax on a GPU reads no unsigned bytes.
        packed = tf.cast(functools.reduce(tf.bitwise.bitwise_or, masked_bits), tf.int8)
        bit = tf.reshape(tf.cast(tf.stack(bits), tf.int8), [-1, *[1] * (len(packed.shape) - 1)])
        mask = tf.bitwise.bitwise_and(packed[:, None], bit) != 0
        batch, *sides = [tf.shape(packed)[i] if n is None else n for i, n in enumerate(packed.shape)]
        return tf.reshape(mask, [batch, len(halves) * sides[0], *sides[1:]])

    @property
    def _bound(self) -> int:
        """The smallest half that keeps its element."""
        return min(round(self.rate * LEVELS), LEVELS - 1)


class TimeDropout(Dropout):
    """Dropout of [n, b, width], time first, that masks each element of every step separately."""

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Masks `x` in training; the identity otherwise."""
        if not training:
            return x
        shape, width = tf.shape(x), x.shape[-1]
        length, batch = shape[0], shape[1]
        # An example's mask is one row of the draw. Transposing it costs less than transposing the activations twice.
        flat = super().call(tf.ones([batch, length * width], x.dtype), training=True)
        return x * tf.transpose(tf.reshape(flat, [batch, length, width]), [1, 0, 2])


def _numbers(sides: list[int | tf.Tensor], first: tf.Tensor) -> tf.Tensor:
    """Numbers a tensor's elements in order, starting at `first`; uint32, modulo 2^32. `sides` is the shape.

    `first` depends on the replica. So the lowering to StableHLO makes a constant only of the numbers within one
    example, which a TPU reads faster than it computes them. A constant of all examples' numbers would fill a desktop's
    memory.
    """
    within, stride = tf.zeros([1] * len(sides), tf.int32), 1
    for axis in reversed(range(1, len(sides))):
        place = tf.reshape(tf.range(sides[axis]), [-1 if i == axis else 1 for i in range(len(sides))])
        within, stride = within + place * stride, stride * sides[axis]
    example = tf.reshape(tf.range(sides[0]) * stride, [-1] + [1] * (len(sides) - 1))
    return first + tf.cast(example, tf.uint32) + tf.cast(within, tf.uint32)


def drop(layer: tf_keras.layers.Layer | None, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Applies a dropout layer in training; the identity if `layer` is None."""
    # The call that builds the network is not training, but it must create the layer's variable.
    if layer is None or (layer.built and not training):
        return x
    return layer(x, training=training)
