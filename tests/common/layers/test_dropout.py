"""Tests dropout under XLA: one program makes a new mask at every draw."""

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.distributed.replicas.xla import Xla
from common.errors import UserError
from common.layers import philox
from common.layers.dropout import Dropout, TimeDropout, micro_batch


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_masks_under_xla(dtype):
    """The counter is an argument of the program, so that one compilation serves all draws."""
    layer, x = Dropout(Single(), 0.4, seed=3, dtype=dtype.name), tf.ones([5, 7], dtype)
    step = tf.function(lambda x: layer(x, training=True), jit_compile=True, autograph=False)
    text = step.experimental_get_compiler_ir(x)(stage="stablehlo")
    masks = [step(x).numpy() > 0 for _ in range(3)]
    assert len({mask.tobytes() for mask in masks}) == 3
    assert step.experimental_get_compiler_ir(x)(stage="stablehlo") == text
    assert int(layer.draws) == 3
    layer.draws.assign(1)
    assert np.array_equal(step(x).numpy() > 0, masks[1])
    assert np.isclose(np.mean(masks), 0.6, atol=0.15)


@pytest.mark.parametrize("length", [5, 8])
def test_time_first_equals_the_mask_of_batch_first(length):
    """Exact: the same numbers decide on the same elements."""
    x = tf.random.stateless_normal([length, 3, 6], [1, 2], dtype=tf.float64)
    timed, plain = (kind(Single(), 0.4, seed=3, dtype="float64") for kind in (TimeDropout, Dropout))
    for _ in range(2):
        want = tf.transpose(plain(tf.transpose(x, [1, 0, 2]), training=True), [1, 0, 2])
        np.testing.assert_array_equal(timed(x, training=True), want)
    np.testing.assert_array_equal(timed(x), x)
    assert int(timed.draws) == 2


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.75])
def test_what_is_kept_is_scaled_so_that_the_mean_stays_and_an_evaluation_changes_nothing(rate):
    layer, x = Dropout(Single(), rate, seed=1), tf.random.stateless_uniform([64, 64], [1, 2], 1.0, 2.0)
    actual = layer(x, training=True).numpy()
    mask = actual != 0
    np.testing.assert_allclose(actual[mask], x.numpy()[mask] / (1 - rate), rtol=1e-6)
    assert np.mean(mask) == pytest.approx(1 - rate, abs=0.03)
    assert np.mean(actual) == pytest.approx(np.mean(x), rel=0.05)
    np.testing.assert_array_equal(layer(x, training=False), x)


@pytest.mark.parametrize(
    ("shape", "rate"),
    [((6, 32), 0.1), ((3, 7), 0.75), ((2, 8, 5), 1 / 3), ((2, 4, 3, 5), 0.5), ((1, 16, 2, 3), 0.1)],
)
def test_masks_are_halves_of_the_counter_stream_in_planes(shape, rate):
    """With and without XLA: the naive form asks of each element where it stands in the stream."""
    layers = [Dropout(Single(), rate, seed=5) for _ in range(2)]
    step = tf.function(lambda: layers[1](tf.ones(shape), training=True), jit_compile=True, autograph=False)
    for draw in range(3):
        plain = layers[0](tf.ones(shape), training=True).numpy()
        np.testing.assert_array_equal(step(), plain)
        np.testing.assert_array_equal(plain > 0, naive_mask(shape, rate, seed=5, draw=draw))


def naive_mask(shape, rate, seed, draw, first=0):
    """Element e of an example: half e // c of the value e % c of the example's c values of the counter."""
    size = int(np.prod(shape[1:]))
    values, key = -(-size // 8), tf.constant([seed % 2**64], tf.uint64)
    mask = np.zeros([shape[0], size], bool)
    for example in range(shape[0]):
        counter = [(first + example) * values, draw]
        stream = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[values, 4], key=key, counter=counter, alg=1, dtype=tf.uint32
        ).numpy()
        for element in range(size):
            half, value = divmod(element, values)
            word = int(stream[value, half % 4])
            mask[example, element] = (word >> 16 if half >= 4 else word & 0xFFFF) >= round(rate * 65536)
    return mask.reshape(shape)


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5])
def test_the_rate_is_met_and_halves_of_a_word_are_independent(rate):
    """Within four standard deviations, over 2^20 elements and over pairs of one counter's value."""
    mask = Dropout(Single(), rate, seed=1)(tf.ones([4, 2**18]), training=True).numpy().reshape(4, 8, -1) > 0
    assert abs(mask.mean() - (1 - rate)) < 4 * (rate / mask.size) ** 0.5
    for plane in range(1, 8):
        both = (~mask[:, 0] & ~mask[:, plane]).mean()
        assert abs(both - rate**2) < 4 * rate / mask[:, 0].size ** 0.5


class Numbered(Single):
    """Stands for one replica of several."""

    def __init__(self, number, narrow):
        self.number, self.narrow = number, narrow

    def replica_id(self):
        return tf.constant(self.number)


@pytest.mark.parametrize("shape", [(2, 6), (3, 7), (1, 1), (2, 16, 3), (2, 4, 5)])
def test_masks_in_32_bit_operations_are_those_of_the_counter_stream(shape):
    """For every replica and micro-batch, negative and large seeds included."""
    for seed in (5, -3, 2**31 + 7, 2**40 + 1):
        for number in (0, 1, 5, 4096):
            layers = [Dropout(Numbered(number, narrow), 0.25, seed, partitions=2) for narrow in (False, True)]
            for index in (0, 1):
                with micro_batch(index, 2):
                    masks = [layer(tf.ones(shape), training=True).numpy() for layer in layers]
                np.testing.assert_array_equal(*masks)
                first = (number // 2 * 2 + index) * shape[0]
                np.testing.assert_array_equal(masks[0] > 0, naive_mask(shape, 0.25, seed, 0, first))
            assert [layer.draws.dtype for layer in layers] == [tf.int64, tf.int32]


@pytest.mark.parametrize("shape", [(3, 7), (2, 16, 3)])
def test_a_compiled_mask_in_32_bit_operations_is_the_same(shape):
    """One byte holds a counter value's decisions; the eighth one is its sign."""
    layers = [Dropout(Numbered(5, True), 0.25, 2**31 + 7) for _ in range(2)]
    step = tf.function(lambda: layers[0](tf.ones(shape), training=True), jit_compile=True, autograph=False)
    for _ in range(2):
        np.testing.assert_array_equal(step(), layers[1](tf.ones(shape), training=True))


def test_blocks_count_beyond_32_bits():
    """The stream of a seed is read from block 2^32 - 2 on, across the carry."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=[7, 3])
    start = 2**32 - 2
    expected = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4, 4], key=key, counter=counter + [start, 0], alg=1, dtype=tf.uint32
    )
    numbers = np.arange(start, start + 4, dtype=np.uint64)
    words = [tf.constant(part.astype(np.uint32)) for part in (numbers & 0xFFFFFFFF, numbers >> 32)]
    np.testing.assert_array_equal(philox.random_words((7, 0, 3, 0), words), expected)


def test_products_of_two_words():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, [2, 1000], np.uint64)
    low, high = philox.product(tf.constant(a.astype(np.uint32)), tf.constant(b.astype(np.uint32)))
    np.testing.assert_array_equal(low, (a * b & 0xFFFFFFFF).astype(np.uint32))
    np.testing.assert_array_equal(high, (a * b >> 32).astype(np.uint32))


def test_the_devices_own_generator():
    """A program asks for it; the rate is met, and masks differ from step to step and from layer to layer."""
    x = tf.ones([2, 64, 128])
    layers = [Dropout(Xla(1), 0.1, seed, generator="hardware") for seed in (5, 6)]
    step = tf.function(
        lambda: [layer(x, training=True) for layer in layers], jit_compile=True, autograph=False
    )
    text = step.experimental_get_compiler_ir()(stage="stablehlo")
    assert text.count("rng_bit_generator") == 2 and "PHILOX" not in text
    masks = [mask.numpy() > 0 for _ in range(2) for mask in step()]
    assert len({mask.tobytes() for mask in masks}) == 4
    assert np.mean(masks) == pytest.approx(0.9, abs=0.01)


def test_a_backend_without_it_is_one_line():
    with pytest.raises(UserError, match=r"config\.dropout_generator=hardware: .* backend single"):
        Dropout(Single(), 0.1, 5, generator="hardware")
