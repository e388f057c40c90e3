"""TensorFlow's Philox stream in 32-bit operations, for devices that emulate 64-bit integers.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). TensorFlow
defines its constants and how a seed becomes a key (tensorflow/core/lib/random/philox_random.h and
tensorflow/core/kernels/stateless_random_ops.cc, GenerateKey). XLA lowers TensorFlow's own operations to 64-bit words.
"""

from collections.abc import Sequence

import tensorflow as tf

_ROUNDS = 10
_FACTORS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_SEED_KEY = 0x3EC8F720, 0x02461E29

Word = tf.Tensor  # uint32, of any shape.


def random_words(seed: Sequence[Word | int], block: tuple[Word, Word]) -> Word:
    """Returns the four words of each block of the stream of `seed`: uint32 [..., 4].

    The blocks 0, 1, 2, ... of a seed equal the numbers of `tf.random.stateless_uniform([4 * n], seed, None, None,
    tf.uint32, alg="philox")`.

    Args:
      seed: four words, the low and the high word of each number of TensorFlow's seed; they broadcast with the blocks.
      block: the blocks' numbers, as a low and a high word.
    """
    mixed = words(_SEED_KEY, seed)
    return tf.stack(words(mixed[:2], [*block, mixed[2], mixed[3]]), -1)


def words(key: Sequence[Word | int], counter: Sequence[Word | int]) -> list[Word]:
    """Returns the four words of each counter value: `tf.raw_ops.StatelessRandomUniformFullIntV2` of four numbers.

    Args:
      key: two words, low word first; they broadcast with the counter's.
      counter: four words, lowest first.
    """
    return _philox([_word(w) for w in counter], [_word(k) for k in key])


def product(a: Word, b: Word) -> tuple[Word, Word]:
    """Returns the low and the high word of a * b."""
    a, b = _word(a), _word(b)
    (a0, a1), (b0, b1) = _halves(a), _halves(b)
    middle = a1 * b0 + tf.bitwise.right_shift(a0 * b0, _word(16))
    lower, upper = _halves(middle)
    carry = tf.bitwise.right_shift(a0 * b1 + lower, _word(16))
    return a * b, a1 * b1 + upper + carry


def _word(x: tf.Tensor | int) -> Word:
    return tf.cast(x, tf.uint32) if isinstance(x, tf.Tensor) else tf.constant(x, tf.uint32)


def _halves(x: Word) -> tuple[Word, Word]:
    return tf.bitwise.bitwise_and(x, _word(0xFFFF)), tf.bitwise.right_shift(x, _word(16))


def _philox(counter: Sequence[Word], key: Sequence[Word]) -> list[Word]:
    c0, c1, c2, c3 = counter
    for i in range(_ROUNDS):
        keys = [k + _word(w * i % 2**32) for k, w in zip(key, _WEYL)]
        (low0, high0), (low2, high2) = product(_FACTORS[0], c0), product(_FACTORS[1], c2)
        c0, c1, c2, c3 = _xor(high2, c1, keys[0]), low2, _xor(high0, c3, keys[1]), low0
    return [c0, c1, c2, c3]


def _xor(a: Word, b: Word, c: Word) -> Word:
    return tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(a, b), c)
