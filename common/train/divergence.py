"""Names what was not finite first, after a loss that is not finite: a replay up to there looks at every tensor.

A healthy run pays nothing but the copy of its first state on the host, or of its last compared one (guard.py). All
processes replay together, and agree on the first tensor that is not finite in any of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.weight_update import WholeUpdate
from common.train import events, gradients

_ADVICE = "lower the learning rate or lengthen the warmup"


def reason(loop: Any, loss: float, step: int) -> str:
    """Returns why the run of a `Loop` ends whose loss is not finite after `step` steps: what was so first, what helps.

    Every process calls it. A run whose replay may take more than `guard.REPLAY_SECONDS` learns no cause.
    """
    lost, cause = f"{events.NOT_FINITE[0]} {loss} at step {step}", ""
    if not loop.replicas.agree(int(not loop.guard.can_replay)):
        cause = _first(loop, step)
        loop.state.step.assign(step)
    advice = "mend the data" if cause.startswith("the input") else _ADVICE
    return "; ".join([lost, *([f"first not finite: {cause}"] if cause else []), advice])


def _first(loop: Any, step: int) -> str:
    """Returns the first tensor that is not finite, its step and the last healthy step; "" if a replay shows none."""
    # The loss before `step` was finite, so that the weights before `step - 1` were.
    healthy = max(step - 2, loop.guard.replay(step - 2))
    while healthy < step and int(loop.state.step) == healthy:  # Unless a signal stopped the replay.
        cause = _in_variables(loop) or _in_step(loop, healthy)
        if not cause:
            loop.call(loop.train_input(healthy), loop.synthetic(False), 1, 0)
            cause = _in_variables(loop)
        if cause:
            return f"{cause} of step {healthy + 1}, after the healthy step {healthy}"
        healthy += 1
    return ""


def _in_step(loop: Any, healthy: int) -> str:
    """Looks at the batch after `healthy` steps, then at its loss and gradients."""
    local, model = loop.replicas.local_results, loop.state.model
    batch = next(
        iter(loop.dataset(lambda shard: loop.task.train_input(shard, loop.batch_size(True), healthy)))
    )
    inputs = batch if isinstance(batch, Mapping) else {"batch": batch}
    sound = (_finite(local(x)) for x in inputs.values())
    if cause := _first_of(loop, [f"the input {name!r}" for name in inputs], sound):
        return cause
    gradients_of = gradients.make(loop.task, model, loop.replicas, loop.state.loss_scale)

    def finite(batch: Any) -> tf.Tensor:
        loss, slopes = gradients_of(batch)
        return tf.stack([tf.reduce_all(tf.math.is_finite(x)) for x in (loss, *slopes)])

    def everywhere(batch: Any) -> Any:
        return loop.replicas.run(finite, (batch,))

    started = everywhere if loop.replicas.drives_from_host else tf.function(everywhere, autograph=False)
    whole = np.all([x.numpy() for x in local(started(batch))], 0)
    names = ["the loss itself, of finite inputs and weights,"]
    names += [f"the gradient of {v.name}" for v in model.trainable_variables]
    return _first_of(loop, names, whole)


def _first_of(loop: Any, names: Sequence[str], sound: Iterable[bool]) -> str:
    """Returns the first name whose tensor is not sound in some process, "" if all are in all."""
    own = next((i for i, fine in enumerate(sound) if not fine), len(names))
    first = -loop.replicas.agree(-own)
    return names[first] if first < len(names) else ""


def _in_variables(loop: Any) -> str:
    """Names the first variable that is not finite: slots first, then weights and moments, as an update writes them."""
    state, named = loop.state, []
    if isinstance(state.update, WholeUpdate):
        for weight, slots in zip(state.model.trainable_variables, state.update.slots, strict=True):
            named += [(f"the slot {name!r} of {weight.name}", slot) for name, slot in slots.items()]
    named += [(f"the weight {v.name}", v) for v in state.model.variables]
    sound = (_finite(loop.replicas.local_results(v)) for _, v in named)
    return _first_of(loop, [name for name, _ in named], sound)


def _finite(copies: Iterable[Any]) -> bool:
    arrays = [np.asarray(x.numpy()) for x in copies]
    return all(a.dtype.kind not in "fV" or np.isfinite(a.astype(np.float64)).all() for a in arrays)
