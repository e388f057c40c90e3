"""Names what was not finite first, after a loss that is not finite: a replay up to there looks at every tensor.

A healthy run pays nothing but the copy of its first state on the host, or of its last compared one (guard.py). All
processes replay together, and agree on the first tensor that is not finite in any of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed.weight_update import WholeUpdate
from common.train import events, gradients
from common.train.programs import Programs

_ADVICE = "lower the learning rate or lengthen the warmup"


def reason(loss: float, step: int, cause: str) -> str:
    """Returns why a run ends whose loss is not finite after `step` steps; `cause` of `first_not_finite`, or ""."""
    advice = "fix the data" if cause.startswith("the input") else _ADVICE
    lost = f"{events.NOT_FINITE} {loss} at step {step}"
    return "; ".join([lost, *([f"first not finite: {cause}"] if cause else []), advice])


def first_not_finite(programs: Programs, replay: Callable[[int], int], step: int) -> str:
    """Returns the first tensor that is not finite, its step and the last healthy step; "" if a replay shows none.

    Every process calls it.

    Args:
      replay: `Guard.replay`.
      step: the first step whose loss was not finite.
    """
    # The loss before `step` was finite, so that the weights before `step - 1` were.
    healthy = max(step - 2, replay(step - 2))
    while healthy < step and int(programs.state.step) == healthy:  # Unless a signal stopped the replay.
        cause = _in_variables(programs) or _in_step(programs, healthy)
        if not cause:
            programs.call(programs.train_input(healthy), programs.synthetic(False), 1, 0)
            cause = _in_variables(programs)
        if cause:
            return f"{cause} of step {healthy + 1}, after the healthy step {healthy}"
        healthy += 1
    return ""


def _in_step(programs: Programs, healthy: int) -> str:
    """Looks at the batch after `healthy` steps, then at its loss and gradients."""
    local, model = programs.replicas.local_results, programs.state.model
    batch = next(programs.train_input(healthy))
    inputs = batch if isinstance(batch, Mapping) else {"batch": batch}
    sound = (_finite(local(x)) for x in inputs.values())
    if cause := _first_of(programs, [f"the input {name!r}" for name in inputs], sound):
        return cause
    gradients_of = gradients.make(programs.task, model, programs.replicas)

    def finite(batch: Any) -> tf.Tensor:
        loss, slopes = gradients_of(batch)
        return tf.stack([tf.reduce_all(tf.math.is_finite(x)) for x in (loss, *slopes)])

    def everywhere(batch: Any) -> Any:
        return programs.replicas.run(finite, (batch,))

    started = everywhere if programs.replicas.drives_from_host else tf.function(everywhere, autograph=False)
    whole = np.all([x.numpy() for x in local(started(batch))], 0)
    names = ["the loss itself, of finite inputs and weights,"]
    names += [f"the gradient of {v.name}" for v in model.trainable_variables]
    return _first_of(programs, names, whole)


def _first_of(programs: Programs, names: Sequence[str], sound: Iterable[bool]) -> str:
    """Returns the first name whose tensor is not sound in some process, "" if all are in all."""
    index = next((i for i, fine in enumerate(sound) if not fine), len(names))
    first = -programs.replicas.all_reduce_max(-index)
    return names[first] if first < len(names) else ""


def _in_variables(programs: Programs) -> str:
    """Names the first variable that is not finite: slots first, then weights and moments, as an update writes them."""
    state, variables = programs.state, []
    if isinstance(state.update, WholeUpdate):
        for weight, slots in zip(state.model.trainable_variables, state.update.slots, strict=True):
            variables += [(f"the slot {name!r} of {weight.name}", slot) for name, slot in slots.items()]
    variables += [(f"the weight {v.name}", v) for v in state.model.variables]
    sound = (_finite(programs.replicas.local_results(v)) for _, v in variables)
    return _first_of(programs, [name for name, _ in variables], sound)


def _finite(copies: Iterable[Any]) -> bool:
    arrays = [np.asarray(x.numpy()) for x in copies]
    return all(a.dtype.kind not in "fV" or np.isfinite(a.astype(np.float64)).all() for a in arrays)
