"""Finds a variable's kind (kernel, bias, norm or embedding) from the layer that owns it.

Weight decay, LARS and freezing select variables by kind. The submissions behind them select by a substring of the
variable's name, which breaks silently when a layer is renamed (docs/sources.md, mlperf 5.1).
"""

from collections.abc import Hashable

import tensorflow as tf
import tf_keras

from common.errors import UserError

KINDS = ("kernel", "bias", "norm", "embedding")

_NORMALIZATIONS = (
    tf_keras.layers.BatchNormalization,
    tf_keras.layers.LayerNormalization,
    tf_keras.layers.GroupNormalization,
    tf_keras.layers.UnitNormalization,
)
_BIASES = ("bias", "bias_v")
_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel")


def kind_of(model: tf_keras.layers.Layer) -> dict[Hashable, str]:
    """Returns {`ref()` of a variable: its kind} for every trainable variable of `model`.

    This project's layers name their variables' kinds in an attribute `kinds`, {attribute: kind}. For tf_keras's layers,
    the class and the name of the attribute that holds the variable decide. Raises UserError if a trainable variable's
    kind is unknown; the layer that owns it needs an attribute `kinds`.
    """
    kinds: dict[Hashable, str] = {}
    for layer in [model, *(m for m in model.submodules if isinstance(m, tf_keras.layers.Layer))]:
        for attribute, value in vars(layer).items():
            if isinstance(value, tf.Variable) and value.trainable:
                kind = _kind(layer, attribute)
                if kind:
                    kinds[value.ref()] = kind
    missing = [v.name for v in model.trainable_variables if v.ref() not in kinds]
    if missing:
        raise UserError(f"no kind for {missing[0]}: give the layer that owns it an attribute `kinds`")
    return {v.ref(): kinds[v.ref()] for v in model.trainable_variables}


def _kind(layer: tf_keras.layers.Layer, attribute: str) -> str | None:
    kinds = getattr(layer, "kinds", {})
    if attribute in kinds:
        return kinds[attribute]
    if isinstance(layer, _NORMALIZATIONS):
        return "norm"
    if isinstance(layer, tf_keras.layers.Embedding):
        return "embedding"
    name = attribute.lstrip("_")
    if name in _BIASES:
        return "bias"
    return "kernel" if name in _KERNELS else None
