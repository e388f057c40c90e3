"""Shampoo in blocks, with grafting: P = L^(-1/4) G R^(-1/4) for each block, with the length of a simpler rule's step.

Sources: "Shampoo: Preconditioned Stochastic Tensor Optimization"; "Scalable Second Order Optimization for Deep
Learning" for the averages L and R of G G' and G' G, the blocks, the roots every `root_interval` steps, the plain steps
before `root_start`, the relative ridge and the coupled Newton iteration with its exits; "A Distributed Data-Parallel
PyTorch Implementation of the Distributed Shampoo Optimizer", sections 2.4 and 3, for grafting each block on its own and
for blocks that belong to replicas. Weight decay joins the grafted step, and momentum follows, as in both.

Kernels are updated so. Embeddings and vectors take the grafted step without preconditioners.
"""

import tensorflow as tf

from common.config.optimizer import Shampoo
from common.optim import cuts
from common.optim.products import exact
from common.optim.rule import (
    Matrices,
    Rule,
    Slots,
    WeightState,
    average,
    bias,
    gathered,
    raw_gradient,
    with_decay,
)

_ROOT = 4  # Each side of a matrix has the root 2 * (number of sides).
_MOST_ITERATIONS = 100  # "Scalable Second Order Optimization", the authors' code: `num_iters`.
# The iteration ends once no element of M - I exceeds this: near the rounding of the products.
_TOLERANCE = {tf.float64: 1e-13, tf.float32: 1e-6}
# The same code's factor of a growing error, and its `failure_threshold` of an error with which a root is refused.
_GROWTH, _CONVERGED = 1.2, 0.1
# Slot [k]: how often a matrix kept its last root, because the new one did not converge.
KEPT_ROOTS = "kept_roots"
_GRAFTS = {"sgd": (), "adagrad": ("graft",), "adam": ("graft",)}


def shampoo(config: Shampoo) -> Rule:
    """Returns Shampoo."""

    return _rule(config, preconditioned=False)._replace(
        matrices=Matrices(cuts.kernel_blocks(config.matrix_block), _rule(config, preconditioned=True))
    )


def _rule(config: Shampoo, preconditioned: bool) -> Rule:
    names = (("momentum",) if config.momentum else ()) + _GRAFTS[config.grafting]
    sides = ("left", "left_root", "right", "right_root", KEPT_ROOTS) if preconditioned else ()

    def init(weight: tf.Tensor) -> Slots:
        slots = {name: tf.zeros_like(weight) for name in names}
        return slots | (_sides(weight) if preconditioned else {})

    def update(state: WeightState) -> tuple[tf.Tensor, Slots]:
        slots, step = state.slots, state.step
        gradient = raw_gradient(config, state)
        direction, after = _grafted(config, gradient, slots, step)
        if preconditioned:
            own = gathered(config.matrix_decay, slots, gradient)
            own |= _roots(config, own, slots, step)
            after |= own
            other = exact(exact(own["left_root"], gradient), own["right_root"])
            length = _norm(other)
            scale = _norm(direction) / tf.where(length > 0, length, tf.ones_like(length))
            direction = tf.where(step < config.root_start, direction, scale * other)
        direction = with_decay(config, state, direction)
        if config.momentum:
            after["momentum"] = config.momentum * slots["momentum"] + direction
            ahead = config.momentum * after["momentum"] + direction
            direction = ahead if config.nesterov else after["momentum"]
        return state.weight - state.learning_rate * direction, after

    return Rule((*names, *sides), init, update)


def _sides(weight: tf.Tensor) -> Slots:
    """Returns the preconditioners' slots of matrices [k, m, n]: sums and counts at 0, roots at the identity."""
    count, rows, columns = weight.shape
    slots = {}
    for side, size in (("left", rows), ("right", columns)):
        slots[side] = tf.zeros([count, size, size], weight.dtype)
        slots[f"{side}_root"] = tf.eye(size, batch_shape=[count], dtype=weight.dtype)
    return slots | {KEPT_ROOTS: tf.zeros([count], weight.dtype)}


def _roots(config: Shampoo, sums: Slots, slots: Slots, step: tf.Tensor) -> Slots:
    """Returns the inverse roots: new ones at `root_start` and every `root_interval` steps from there.

    A matrix whose new root did not converge keeps its last one; "kept_roots" counts that.
    """
    old = [slots["left_root"], slots["right_root"], slots[KEPT_ROOTS]]

    def new() -> list[tf.Tensor]:
        roots, kept_roots = [], old[2]
        for name, last in zip(("left", "right"), old, strict=False):
            root, converged = inverse_root(sums[name], config.matrix_epsilon)
            roots.append(tf.where(converged[:, None, None], root, last))
            kept_roots += tf.cast(~converged, kept_roots.dtype)
        return [*roots, kept_roots]

    since = step - config.root_start
    due = (since >= 0) & (since % config.root_interval == 0)
    after = tf.cond(due, new, lambda: [tf.identity(x) for x in old])
    return dict(zip(("left_root", "right_root", KEPT_ROOTS), after, strict=True))


def inverse_root(a: tf.Tensor, ridge: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns A^(-1/4) for symmetric positive matrices [k, n, n], by products only (Higham, "Functions of Matrices").

    `ridge` times a bound of A's largest eigenvalue (its largest row sum) is added first. A zero matrix counts as the
    ridge of a bound of 1.

    Returns:
      The roots, and whether each of them converged [k]. In exact arithmetic |M - I| never grows, so an iteration whose
      error grows has lost its digits: it ends with the root before.
    """
    dtype, size, p = a.dtype, a.shape[-1], _ROOT
    identity = tf.eye(size, dtype=dtype)
    bound = tf.reduce_max(tf.reduce_sum(tf.abs(a), -1), -1)[:, None, None]
    bound = tf.where(bound > 0, bound, tf.ones_like(bound))
    scale = (1 + p) / (2 * (1 + ridge))  # Keeps the iteration's eigenvalues below p + 1.
    m = scale * (a / bound + ridge * identity)
    h = tf.ones_like(m) * identity * scale ** (1 / p)
    tolerance = _TOLERANCE.get(dtype, _TOLERANCE[tf.float32])

    def far(m: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.abs(m - identity), [-2, -1], keepdims=True) > tolerance

    def going(i: tf.Tensor, goes: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return (i < _MOST_ITERATIONS) & tf.reduce_any(goes)

    def body(
        i: tf.Tensor, goes: tf.Tensor, error: tf.Tensor, m: tf.Tensor, h: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        factor = (1 + 1 / p) * identity - m / p
        power = factor
        for _ in range(p.bit_length() - 1):
            power = exact(power, power)
        m_after, h_after = exact(power, m), exact(h, factor)
        error_after = _norm(m_after - identity)
        goes &= error_after < _GROWTH * error
        m, h = tf.where(goes, m_after, m), tf.where(goes, h_after, h)
        return i + 1, goes & far(m), tf.where(goes, error_after, error), m, h

    start = (tf.constant(0), far(m), _norm(m - identity), m, h)
    _, _, error, _, h = tf.while_loop(going, body, start, parallel_iterations=1)
    return h * bound ** (-1 / p), error[:, 0, 0] < _CONVERGED


def _grafted(config: Shampoo, gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
    """Returns the direction of the simpler rule, and its slots: SGD, Adagrad, or Adam without its first moment."""
    if config.grafting == "sgd":
        return gradient, {}
    if config.grafting == "adagrad":
        total = slots["graft"] + gradient * gradient
        return gradient / (tf.sqrt(total) + config.epsilon), {"graft": total}
    v = average(config.beta_2, slots["graft"], gradient * gradient)
    corrected = v / bias(config.beta_2, step, gradient.dtype)
    return gradient / (tf.sqrt(corrected) + config.epsilon), {"graft": v}


def _norm(x: tf.Tensor) -> tf.Tensor:
    return tf.norm(x, axis=[-2, -1], keepdims=True)
