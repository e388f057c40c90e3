"""Chooses how the network computes its causal attention: one kernel of cuDNN, in blocks of queries, or plainly."""

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.errors import UserError
from common.layers import attention, causal_attention
from common.layers.fused_attention import device_has_kernel, fused_attention
from common.layers.precision import Precision
from llama31_8b.config import Config

_BLOCKS = 8  # Of queries, in the form "blocks": one block's scores of 8,192 tokens and 32 heads are 1 GB.


def causal(
    config: Config,
    replicas: Replicas,
    precision: Precision,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
) -> tf.Tensor:
    """Attends to a token's own and earlier positions: [b, n, heads, size] -> the same.

    `key` and `value` are [b, n, kv_heads, size].
    """
    kind = kind_of(config, replicas, precision)
    if kind == "fused":
        return fused_attention(query, key, value, None, config.head_size**-0.5)
    if kind == "blocks":
        return causal_attention.in_blocks(query, key, value, precision.variable, _BLOCKS)
    return causal_attention.plain(query, key, value, precision.variable)


def kind_of(config: Config, replicas: Replicas, precision: Precision) -> str:
    """Returns the kind of attention that `config.attention` means for the function being traced.

    Raises UserError if it is "fused", and the devices do not have the kernel.
    """
    if config.attention == "fused" and not device_has_kernel(replicas):
        device = replicas.platform or f"devices that config.replicas={config.replicas} does not name"
        raise UserError(
            "config.attention=fused: cuDNN's kernel needs --config.replicas=pjrt and NVIDIA GPUs of compute capability "
            f"8.0 or more, not {device}; use blocks"
        )
    if config.attention != "auto":
        return config.attention
    return attention.select(replicas, precision, config.head_size, causal=True)
