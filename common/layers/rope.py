"""Rotary positions: "RoFormer" (Su et al. 2021), with the scaling of Llama 3.1.

A head's first half and its second half are the two coordinates of each pair that is rotated, as in HF transformers and
Megatron (`rotary_interleaved` false). Meta's own checkpoints have the coordinates of a pair next to each other.
"""

import numpy as np
import tensorflow as tf


def frequencies(
    head_size: int, base: float, factor: float = 1.0, low: float = 1.0, high: float = 4.0, length: int = 8192
) -> np.ndarray:
    """Returns the radians that each pair turns per position, float64 [head_size / 2].

    Pair i turns by f = base^(-2 i / head_size). Wavelengths 2 pi / f above length / low turn by f / factor, those below
    length / high by f, those between by a mean of both that is linear in length / wavelength (NVIDIA/NeMo v2.1.0
    nemo/collections/llm/gpt/model/llama.py apply_rope_scaling).
    """
    plain = base ** (-np.arange(0, head_size, 2) / head_size)
    share = np.clip((length * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    return (1 - share) * plain / factor + share * plain


def tables(length: int, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosine and sine of each position's angles, float64 [length, pairs], from `frequencies`."""
    angles = np.arange(length)[:, None] * turns
    return np.cos(angles), np.sin(angles)


def rotated(x: tf.Tensor, cosine: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
    """Rotates heads by their positions: [b, n, heads, size] -> the same, in the dtype of `x`.

    Args:
      cosine, sine: [n, size / 2]; the rotation is computed in their dtype.
    """
    first, second = tf.split(tf.cast(x, cosine.dtype), 2, -1)
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    turned = tf.concat([first * cosine - second * sine, second * cosine + first * sine], -1)
    return tf.cast(turned, x.dtype)
