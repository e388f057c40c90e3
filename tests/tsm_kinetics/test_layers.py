"""Tests shift, 3-D convolution and pooling against their naive forms, forward and gradient, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from tsm_kinetics.layers import FrameConv2D, MaxPool, PaddedConv3D, TemporalShift, shift


def noise(*shape: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [len(shape), 5], dtype=tf.float64)


def shifted_by_loops(x: np.ndarray, forward: int, backward: int) -> np.ndarray:
    """Shifts frame by frame and channel by channel; the gradient of `shift` is the opposite shift."""
    out = np.zeros_like(x)
    frames, channels = x.shape[1], x.shape[-1]
    for t in range(frames):
        for c in range(channels):
            source = t + 1 if c < backward else t - 1 if c < backward + forward else t
            if 0 <= source < frames:
                out[:, t, ..., c] = x[:, source, ..., c]
    return out


@pytest.mark.parametrize("frames", [1, 2, 8])
@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (2, 0), (0, 3), (4, 4), (0, 0)])
def test_shift_is_a_roll_and_a_mask(frames: int, forward: int, backward: int) -> None:
    x, dy = noise(2, frames, 3, 2, 8), noise(2, frames, 3, 2, 8) + 1
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = shift(x, forward, backward)
    np.testing.assert_array_equal(y, shifted_by_loops(x.numpy(), forward, backward))
    # The gradient is the same shift on the frames in reverse order.
    backwards = shifted_by_loops(dy.numpy()[:, ::-1], forward, backward)[:, ::-1]
    np.testing.assert_array_equal(tape.gradient(y, x, dy), backwards)


def test_shift_compiles_to_the_same() -> None:
    x = noise(2, 4, 3, 3, 16)
    compiled = tf.function(lambda x: shift(x, 2, 2), jit_compile=True)
    np.testing.assert_array_equal(compiled(x), shift(x, 2, 2))


def test_an_eighth_goes_each_way_and_online_only_forward() -> None:
    x = tf.reshape(tf.range(3.0), [1, 3, 1, 1, 1]) + tf.zeros([1, 3, 1, 1, 16])
    both = TemporalShift(0.125)(x)[0, :, 0, 0]
    online = TemporalShift(0.125, online=True)(x)[0, :, 0, 0]
    assert both[1].numpy().tolist() == [2, 2, 0, 0] + [1] * 12
    assert online[1].numpy().tolist() == [0, 0] + [1] * 14
    assert not TemporalShift(0.125).trainable_weights
    np.testing.assert_array_equal(TemporalShift(0.0)(x), x)


@pytest.mark.parametrize(
    ("kernel", "strides"),
    [
        ((3, 1, 1), (1, 1, 1)),
        ((3, 3, 3), (1, 1, 1)),
        ((3, 3, 3), (2, 2, 2)),
        ((5, 7, 7), (2, 2, 2)),
        ((1, 1, 1), (2, 2, 2)),
    ],
)
@pytest.mark.parametrize("size", [(5, 7, 8), (4, 6, 6)])
def test_convolution_is_stock_conv3d_of_padded_input(kernel: tuple, strides: tuple, size: tuple) -> None:
    x = noise(2, *size, 3)
    layer = PaddedConv3D(4, kernel, strides=strides, dtype="float64")
    assert layer.compute_output_shape(x.shape) == layer(x).shape
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        actual = layer(x)
        padded = tf.pad(x, [[0, 0], *([k // 2] * 2 for k in kernel), [0, 0]])
        want = tf.nn.conv3d(padded, layer.kernel, [1, *strides, 1], "VALID")
    np.testing.assert_allclose(actual, want, rtol=1e-10, atol=1e-10)
    for of in (x, layer.kernel):
        np.testing.assert_allclose(
            tape.gradient(actual, of, actual), tape.gradient(want, of, want), rtol=1e-10, atol=1e-9
        )


def test_frames_are_convolved_one_by_one() -> None:
    x = noise(2, 3, 9, 8, 4)
    layer = FrameConv2D(5, 3, pad=1, strides=2, use_bias=False, dtype="float64")
    whole = layer(x)
    assert layer.compute_output_shape(x.shape) == whole.shape
    padded = tf.pad(x, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]])
    for t in range(3):
        one = tf.nn.conv2d(padded[:, t], layer.kernel, 2, "VALID")
        np.testing.assert_allclose(whole[:, t], one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("space", "time"), [(3, 1), (3, 3), (1, 3)])
@pytest.mark.parametrize("size", [(4, 6, 8), (5, 7, 7), (1, 5, 5)])
def test_pooling_is_a_maximum_over_windows(space: int, time: int, size: tuple) -> None:
    x = noise(2, *size, 3)
    y = MaxPool(Single(), space, time, dtype="float64")(x)
    steps = (1 if time == 1 else 2, 1 if space == 1 else 2, 1 if space == 1 else 2)
    want = np.empty([2, *(-(-n // s) for n, s in zip(size, steps)), 3])
    for place in np.ndindex(want.shape[1:4]):
        low = [max(0, i * s - k // 2) for i, s, k in zip(place, steps, (time, space, space))]
        high = [i * s + k // 2 + 1 for i, s, k in zip(place, steps, (time, space, space))]
        window = x.numpy()[:, low[0] : high[0], low[1] : high[1], low[2] : high[2]]
        want[(slice(None), *place)] = window.max(axis=(1, 2, 3))
    np.testing.assert_array_equal(y, want)
