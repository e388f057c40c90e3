"""Applies a step function along the first axis of sequences: unrolled where that pays, else as a `tf.while_loop`.

Under XLA a loop stays a loop: written out, 48 steps of four layers make a program that takes its compiler minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from common.layers.xla import under_xla

Tensors = tuple[tf.Tensor, ...]
Steps = tf.Tensor | list[tf.Tensor]  # [T, ...], or T of [...].
# Loops of a known length up to this are unrolled, which saves tf.while_loop's cost per step and lets steps overlap.
UNROLLED_STEPS = 64
# The same under XLA.
UNROLLED_IN_XLA = 4


def scan(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    state: Sequence[tf.Tensor],
    sequences: Sequence[Steps],
    widths: Sequence[int],
    reverse: bool = False,
    stack: bool = True,
) -> tuple[Tensors, tuple[Steps, ...]]:
    """Returns (last state, outputs) of `step(state, inputs) -> (state, outputs)` along axis 0 of `sequences`.

    Args:
      step: computes one step.
      state: the initial state.
      sequences: tensors [T, ...], or lists of T tensors, as an unrolled loop returns them; T of lists is at most
        `UNROLLED_STEPS`.
      widths: last dimensions of the outputs.
      reverse: goes from the last element to the first; outputs keep the place of their inputs.
      stack: False leaves the outputs of an unrolled loop as lists of T tensors, which saves a copy if another loop
        reads them.
    """
    state = tuple(state)
    lists = [s for s in sequences if isinstance(s, list)]
    length = len(lists[0]) if lists else sequences[0].shape[0]
    compiled = under_xla()
    if length is None or (not lists and length > (UNROLLED_IN_XLA if compiled else UNROLLED_STEPS)):
        return _while(step, state, sequences, widths, reverse)
    parts = list(zip(*(s if isinstance(s, list) else tf.unstack(s, length) for s in sequences)))
    outputs = []
    for inputs in reversed(parts) if reverse else parts:
        state, output = step(state, inputs)
        outputs.append(output)
    ordered = outputs[::-1] if reverse else outputs
    return state, tuple(tf.stack(o) if stack else list(o) for o in zip(*ordered))


def stacked(steps: Steps) -> tf.Tensor:
    """Returns `steps` as one tensor [T, ...]."""
    return tf.stack(steps) if isinstance(steps, list) else steps


def delayed(first: tf.Tensor, steps: Steps) -> Steps:
    """Returns `steps` one step later: `first`, then all but the last."""
    return [first, *steps[:-1]] if isinstance(steps, list) else tf.concat([first[None], steps[:-1]], 0)


def _while(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    state: Tensors,
    sequences: Sequence[tf.Tensor],
    widths: Sequence[int],
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    static, batch = sequences[0].shape[:2]
    length = tf.shape(sequences[0])[0] if static is None else static
    arrays = [tf.TensorArray(s.dtype, length, element_shape=s.shape[1:]).unstack(s) for s in sequences]
    results = tuple(tf.TensorArray(state[0].dtype, length, element_shape=[batch, n]) for n in widths)

    def body(i: tf.Tensor, state: Tensors, results: tuple) -> tuple:
        at = length - 1 - i if reverse else i
        state, outputs = step(state, tuple(a.read(at) for a in arrays))
        return i + 1, state, tuple(r.write(at, o) for r, o in zip(results, outputs))

    _, state, results = tf.while_loop(
        lambda i, *_: i < length,
        body,
        (tf.constant(0), state, results),
        parallel_iterations=1,
        maximum_iterations=length,  # XLA differentiates no loop without a bound.
    )
    # Keeps a static length static.
    return state, tuple(tf.ensure_shape(r.stack(), [static, batch, n]) for r, n in zip(results, widths))
