"""SOAP: Adam in the eigenbases of Shampoo's preconditioners.

Source: "SOAP: Improving and Stabilizing Shampoo using Adam", algorithm 3, and its authors' code
(github.com/nikhilvyas/SOAP): the first step only gathers; the bases are eigenvectors at `root_start`, and one step of
power iteration with a QR decomposition follows every `root_interval` steps; decay follows the step. The first moment is
kept in the weight's own coordinates, which is the same.

Kernels are updated so, in blocks of at most `matrix_block` rows and columns. The rest uses AdamW's step, which SOAP is
without bases.
"""

import tensorflow as tf

from common.config.optimizer import Soap
from common.optim import cuts, decoupled
from common.optim.products import exact
from common.optim.rule import Matrices, Rule, Slots, WeightState, average, bias, gathered, raw_gradient


def soap(config: Soap) -> Rule:
    """Returns SOAP."""

    return decoupled.adamw(config)._replace(
        matrices=Matrices(cuts.kernel_blocks(config.matrix_block), _matrices(config))
    )


def _matrices(config: Soap) -> Rule:
    def init(weight: tf.Tensor) -> Slots:
        count, rows, columns = weight.shape
        slots = {"m": tf.zeros_like(weight), "v": tf.zeros_like(weight)}
        for side, size in (("left", rows), ("right", columns)):
            slots[side] = tf.zeros([count, size, size], weight.dtype)
            slots[f"{side}_basis"] = tf.eye(size, batch_shape=[count], dtype=weight.dtype)
        return slots

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        weight, slots, step, rate = state.weight, state.slots, state.step, state.learning_rate
        gradient = raw_gradient(config, state)
        m, v = average(config.beta_1, slots["m"], gradient), slots["v"]
        left, right = slots["left_basis"], slots["right_basis"]
        rotated = _rotated(gradient, left, right)
        v = average(config.beta_2, v, rotated * rotated)
        # Step 0 only gathers, so step 1 is Adam's first.
        first = step == 0
        count = tf.maximum(step - 1, 0)
        corrected = tf.sqrt(v / bias(config.beta_2, count, v.dtype)) + config.epsilon
        direction = _rotated(m, left, right) / bias(config.beta_1, count, v.dtype) / corrected
        direction = exact(exact(left, direction), right, transpose_b=True)
        moved = weight - rate * direction
        if config.weight_decay and state.segments.adapts:
            moved -= rate * config.weight_decay * moved
        after = {
            "m": tf.where(first, slots["m"], m),
            "v": tf.where(first, slots["v"], v),
            **gathered(config.matrix_decay, slots, gradient),
        }
        return tf.where(first, weight, moved), after | _bases(config, after, slots, step)

    sides = ("left", "left_basis", "right", "right_basis")
    return Rule(("m", "v", *sides), init, update)


def _rotated(x: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns matrices in the bases' coordinates."""
    return exact(exact(left, x, transpose_a=True), right)


def _bases(config: Soap, after: Slots, slots: Slots, step: tf.Tensor) -> Slots:
    """Returns the bases after a step, and the second moment with its rows and columns in their order."""
    names = ("left_basis", "right_basis", "v")
    last = config.root_start - 1  # The step at whose end the first bases are made.

    def same() -> list[tf.Tensor]:
        return [tf.identity(slots["left_basis"]), tf.identity(slots["right_basis"]), tf.identity(after["v"])]

    def eigenvectors() -> list[tf.Tensor]:
        bases = [tf.reverse(_eigenvectors(after[side]), [-1]) for side in ("left", "right")]
        return [*bases, tf.identity(after["v"])]

    def iterated() -> list[tf.Tensor]:
        left, rows = _power_step(after["left"], slots["left_basis"])
        right, columns = _power_step(after["right"], slots["right_basis"])
        v = tf.gather(after["v"], rows, batch_dims=1, axis=1)
        return [left, right, tf.gather(v, columns, batch_dims=1, axis=2)]

    due = (step > last) & (step % config.root_interval == 0)
    bases = tf.cond(step == last, eigenvectors, lambda: tf.cond(due, iterated, same))
    return dict(zip(names, bases, strict=True))


def _eigenvectors(matrices: tf.Tensor) -> tf.Tensor:
    """Returns the eigenvectors; the identity's if an update overflowed: TensorFlow's CPU kernel refuses such matrices.

    The update is skipped then (`WeightUpdate.apply`), and the bases with it.
    """
    sound = tf.reduce_all(tf.math.is_finite(matrices))
    identity = tf.eye(matrices.shape[-1], dtype=matrices.dtype)
    return tf.linalg.eigh(tf.where(sound, matrices, identity))[1]


def _power_step(matrix: tf.Tensor, basis: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a basis after one step of power iteration, and the order of the old basis's columns in it."""
    product = exact(matrix, basis)
    order = tf.argsort(tf.reduce_sum(basis * product, axis=-2), direction="DESCENDING", stable=True)
    return tf.linalg.qr(tf.gather(product, order, batch_dims=1, axis=2))[0], order
