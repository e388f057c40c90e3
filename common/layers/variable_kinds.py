"""What a variable is - kernel, bias, norm or embedding - as the layer that owns it says.

Weight decay, LARS and freezing select by kind. The submissions they come from select by a substring of the
variable's name, which a renamed layer silently breaks (mlperf_facts 5.1).
"""

from __future__ import annotations

from collections.abc import Hashable

import tensorflow as tf
import tf_keras

from common.errors import UserError

KINDS = ("kernel", "bias", "norm", "embedding")

_NORMALISATIONS = (
    tf_keras.layers.BatchNormalization,
    tf_keras.layers.LayerNormalization,
    tf_keras.layers.GroupNormalization,
    tf_keras.layers.UnitNormalization,
)
_BIASES = ("bias", "bias_v")
_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel")


def kind_of(model: tf_keras.layers.Layer) -> dict[Hashable, str]:
    """The kind of every trainable variable of `model`, by the variable's `ref()`.

    A layer of ours names its variables' kinds in an attribute `kinds`, {attribute: kind}; for the stock
    layers the class and the attribute that holds the variable tell.

    Raises:
      UserError: a layer owns a trainable variable whose kind nothing tells; it needs an attribute `kinds`.
    """
    found: dict[Hashable, str] = {}
    for layer in [model, *(m for m in model.submodules if isinstance(m, tf_keras.layers.Layer))]:
        for attribute, value in vars(layer).items():
            if isinstance(value, tf.Variable) and value.trainable:
                kind = _kind(layer, attribute)
                if kind:
                    found[value.ref()] = kind
    missing = [v.name for v in model.trainable_variables if v.ref() not in found]
    if missing:
        raise UserError(f"no kind for {missing[0]}: give the layer that owns it an attribute `kinds`")
    return {v.ref(): found[v.ref()] for v in model.trainable_variables}


def _kind(layer: tf_keras.layers.Layer, attribute: str) -> str | None:
    kinds = getattr(layer, "kinds", {})
    if attribute in kinds:
        return kinds[attribute]
    if isinstance(layer, _NORMALISATIONS):
        return "norm"
    if isinstance(layer, tf_keras.layers.Embedding):
        return "embedding"
    name = attribute.lstrip("_")
    if name in _BIASES:
        return "bias"
    return "kernel" if name in _KERNELS else None
