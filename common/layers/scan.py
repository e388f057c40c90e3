"""Applies a step function along the first axis of sequences: unrolled if that pays, else as a `tf.while_loop`.

Under XLA a loop stays a loop: unrolled, 48 steps of four layers make a program that takes XLA minutes to compile. One
iteration of the loop, a turn, computes several steps. A GPU then launches fewer kernels: one kernel writes each result
of a turn, one the counter, and values that pass from step to step within a turn are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from common.layers.xla import under_xla

Tensors = tuple[tf.Tensor, ...]
Steps = tf.Tensor | list[tf.Tensor]  # [T, ...], or T of [...].
# Loops of a known length up to this are unrolled. That saves tf.while_loop's cost per step and lets steps overlap.
UNROLLED_STEPS = 64
# The same limit under XLA.
UNROLLED_IN_XLA = 4
# Maximum number of steps in a turn of a loop under XLA. lab/bench/compiled_step.py counts the kernels.
STEPS_OF_A_TURN = 17


def scan(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    state: Sequence[tf.Tensor],
    sequences: Sequence[Steps],
    reverse: bool = False,
    stack: bool = True,
) -> tuple[Tensors, tuple[Steps, ...]]:
    """Returns (last state, outputs) of `step(state, inputs) -> (state, outputs)` along axis 0 of `sequences`.

    Args:
      step: computes one step.
      state: the initial state.
      sequences: tensors [T, ...], or lists of T tensors, as an unrolled loop returns them; for lists, T is at most
        `UNROLLED_STEPS`.
      reverse: whether to go from the last element to the first; outputs keep their inputs' positions.
      stack: False leaves the outputs of an unrolled loop as lists of T tensors, which saves a copy if another loop
        reads them.
    """
    state = tuple(state)
    lists = [s for s in sequences if isinstance(s, list)]
    length = len(lists[0]) if lists else sequences[0].shape[0]
    compiled = under_xla()
    if length is None or (not lists and length > (UNROLLED_IN_XLA if compiled else UNROLLED_STEPS)):
        turn = steps_of_a_turn(length) if compiled else 1
        return _while(step, state, sequences, reverse, turn)
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
    """Returns `steps` delayed by one step: `first`, then all but the last."""
    return [first, *steps[:-1]] if isinstance(steps, list) else tf.concat([first[None], steps[:-1]], 0)


def steps_of_a_turn(length: int | None) -> int:
    """Steps per turn: the largest divisor of the length up to STEPS_OF_A_TURN; 1 if the length is unknown."""
    return max(n for n in range(1, STEPS_OF_A_TURN + 1) if length % n == 0) if length else 1


def _while(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    state: Tensors,
    sequences: Sequence[tf.Tensor],
    reverse: bool,
    turn: int,
) -> tuple[Tensors, Tensors]:
    """Runs a loop whose turns compute `turn` steps each; `turn` divides the length."""
    static = sequences[0].shape[0]
    length = tf.shape(sequences[0])[0] if static is None else static
    turns = length // turn
    arrays = []
    for s in sequences:
        s = s if turn == 1 else tf.reshape(s, [turns, turn, *s.shape[1:]])
        arrays.append(tf.TensorArray(s.dtype, turns, element_shape=s.shape[1:]).unstack(s))
    like = _outputs_of(step, state, sequences)
    shapes = [x.shape if turn == 1 else [turn, *x.shape] for x in like]
    results = tuple(tf.TensorArray(x.dtype, turns, element_shape=shape) for x, shape in zip(like, shapes))

    def body(i: tf.Tensor, state: Tensors, results: tuple) -> tuple:
        at = turns - 1 - i if reverse else i
        state, outputs = _steps(step, state, [a.read(at) for a in arrays], reverse, turn)
        return i + 1, state, tuple(r.write(at, o) for r, o in zip(results, outputs))

    _, state, results = tf.while_loop(
        lambda i, *_: i < turns,
        body,
        (tf.constant(0), state, results),
        parallel_iterations=1,
        maximum_iterations=turns,  # XLA differentiates only bounded loops.
    )
    stacks = [
        r.stack() if turn == 1 else tf.reshape(r.stack(), [static, *s[1:]]) for r, s in zip(results, shapes)
    ]
    # Keeps a static length static.
    return state, tuple(tf.ensure_shape(x, [static, *one.shape]) for x, one in zip(stacks, like))


def _outputs_of(step: Callable, state: Tensors, sequences: Sequence[tf.Tensor]) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of a step's outputs; traces it in a graph of its own, which no program holds."""
    before = tuple(tf.TensorSpec(x.shape, x.dtype) for x in state)
    inputs = tuple(tf.TensorSpec(x.shape[1:], x.dtype) for x in sequences)
    return tf.function(step, autograph=False).get_concrete_function(before, inputs).structured_outputs[1]


def _steps(step: Callable, state: Tensors, inputs: Sequence[tf.Tensor], reverse: bool, turn: int) -> tuple:
    """Computes one turn: (state, results); with several steps, the results have an axis for them."""
    if turn == 1:
        return step(state, tuple(inputs))
    parts = list(zip(*(tf.unstack(x, turn) for x in inputs)))
    outputs = []
    for part in reversed(parts) if reverse else parts:
        state, output = step(state, part)
        outputs.append(output)
    return state, tuple(tf.stack(o) for o in zip(*(outputs[::-1] if reverse else outputs)))
