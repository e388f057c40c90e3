"""Attention as one kernel of cuDNN's each way, which keeps no attention weights; for XLA:GPU.

XLA knows the kernels as custom calls. Their names, operands, results and settings are those that jax emits for
`jax.nn.dot_product_attention(implementation="cudnn")` (jax/_src/cudnn/fused_attention_stablehlo.py); a test compares
them. The kernel drops weights with its own generator: it counts its calls, so the masks depend on the card and on how
many steps the process has run, and every replica has the same. cuDNN needs a card of compute capability 8.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.distributed.replicas.xla import embedded, tensor_type

# A masked score's bias: jax's, because cuDNN subtracts large numbers wrongly ("get_large_negative_number" there).
MASKED = {tf.bfloat16: -float(2 << 40), tf.float16: -float(2 << 14)}
# XLA's settings of both kernels, as jax writes them; `_settings` adds what depends on the operands.
_SETTINGS = json.loads(
    """{"algorithm": {"algo_id": "0", "math_type": "TENSOR_OP_MATH", "tuning_knobs": {"17": "1", "24": "0"},
    "is_cudnn_frontend": true, "workspace_size": "0"}, "is_flash_attention": true, "mask_type": "NO_MASK",
    "sliding_window_length": 0, "max_seg_per_batch": 1, "is_paged_attention": false}"""
)
_LAYOUT = json.loads(
    """{"dim_level_types": [], "dim_unique": [], "dim_ordered": [], "minor_to_major": ["3", "2", "1", "0"], "tiles": [],
    "element_size_in_bits": "0", "memory_space": "0", "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
    "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID", "dynamic_shape_metadata_prefix_bytes": "0"}"""
)
# Of each product the contracted and the batch dimensions of both operands, for [b, n, heads, size].
_FORWARD = {"bmm1": ("3", "3", "02", "02"), "bmm2": ("3", "1", "01", "02")}
_BACKWARD = {
    "bmm1_grad_gemm1": ("2", "1", "01", "02"),
    "bmm1_grad_gemm2": ("3", "1", "01", "02"),
    "bmm2_grad_gemm1": ("2", "1", "01", "02"),
    "bmm2_grad_gemm2": ("3", "3", "02", "02"),
}
_SIDES = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")


def kernel_exists(size: int) -> bool:
    """Whether cuDNN has the kernel for heads of `size` (jax/_src/cudnn/fused_attention_stablehlo.py)."""
    return size % 8 == 0 and size <= 128


def device_has_kernel(replicas: Replicas) -> bool:
    """Whether the devices are NVIDIA GPUs of compute capability 8.0 or more (the same file)."""
    return "NVIDIA" in replicas.platform and replicas.compute_capability >= 8.0


def fused_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    allowed: tf.Tensor | None,
    scale: float,
    dropout: float = 0.0,
    seed: int = 0,
) -> tf.Tensor:
    """Returns dropout(softmax(scale Q K^T, where allowed)) V, [b, q, heads, size], traced for XLA:GPU.

    Args:
      query: [b, q, heads, size], bfloat16 or float16; all sizes are static.
      key, value: [b, m, kv_heads, size]; each head serves heads / kv_heads heads of queries.
      allowed: bool [b, 1, q, m]; None for each position's own and earlier ones.
      scale: factor of the scores.
      dropout: share of the weights to drop.
      seed: of the kernel's generator.
    """
    causal = allowed is None
    name = f"__cudnn$fmha{'' if causal else 'ScaleBias'}Softmax{'Dropout' if dropout else ''}"

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Any]:
        b, q, heads, _ = query.shape
        settings = _settings(query, key) | {"fmha_scale": scale, "dropout_rate": dropout, "seed": seed}
        settings |= {"mask_type": "CAUSAL"} if causal else {}
        masked = tf.constant(MASKED[query.dtype], query.dtype)
        bias = [] if causal else [tf.where(allowed, tf.zeros([], query.dtype), masked)]
        more = [([b, heads, q], tf.float32)]  # The softmax's statistics.
        output, residual = _called(name, settings | _products(_FORWARD), [query, key, value, *bias], 1, more)

        def gradient(above: tf.Tensor) -> list[tf.Tensor]:
            operands = [query, key, value, residual, above, *bias, output]
            return _called(f"{name}Backward", settings | _products(_BACKWARD), operands, 3)

        return output, gradient

    return attend(query, key, value)


def _settings(query: tf.Tensor, key: tf.Tensor) -> dict[str, Any]:
    (b, q, heads, _), memory = query.shape, key.shape[1]
    weights = {
        "element_type": {tf.bfloat16: "BF16", tf.float16: "F16"}[query.dtype],
        "dimensions": [str(side) for side in (b, heads, q, memory)],
        "tuple_shapes": [],
        "layout": _LAYOUT,
        "is_dynamic_dimension": [False] * 4,
    }
    return {**_SETTINGS, "intermediate_tensor_shape": weights}


def _products(dimensions: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return {
        f"{name}_dot_dimension_numbers": {
            f"{side}_dimensions": list(numbers) for side, numbers in zip(_SIDES, of_product)
        }
        for name, of_product in dimensions.items()
    }


def _called(
    name: str, settings: dict[str, Any], operands: Sequence[tf.Tensor], like: int, more: Sequence[tuple] = ()
) -> list[tf.Tensor]:
    """Calls a kernel; the first `like` results are [b, n, heads, size] as the first operands, `more` are its others.

    cuDNN's results are [b, heads, n, size] with the heads next to the last dimension in memory. A scratch memory, whose
    size XLA sets, is the last result.
    """
    dtype, shapes = operands[0].dtype, [x.shape.as_list() for x in operands[:like]]
    results = [([b, heads, n, size], dtype) for b, n, heads, size in shapes] + list(more)
    kinds = [tensor_type(*result) for result in results] + ["tensor<0xui8>"]
    layouts = [[3, 1, 2, 0]] * like + [_row_major(len(shape)) for shape, _ in more] + [[0]]
    config = json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": settings}).replace(
        '"', "\\22"
    )
    text = (
        f"  %r:{len(kinds)} = stablehlo.custom_call @{name}({', '.join(f'%x{i}' for i in range(len(operands)))}) "
        f'{{api_version = 2 : i32, backend_config = "{config}", '
        f"operand_layouts = [{_dense(_row_major(len(x.shape)) for x in operands)}], "
        f"result_layouts = [{_dense(layouts)}]}} : "
        f"({', '.join(tensor_type(x.shape, x.dtype) for x in operands)}) -> ({', '.join(kinds)})\n"
    )
    for i, shape in enumerate(shapes):
        kind = f"({kinds[i]}) -> {tensor_type(shape, dtype)}"
        text += f"  %t{i} = stablehlo.transpose %r#{i}, dims = [0, 2, 1, 3] : {kind}\n"
    names = [f"%t{i}" for i in range(like)] + [f"%r#{i}" for i in range(like, len(results))]
    return embedded(operands, text, names, [*((shape, dtype) for shape in shapes), *more])


def _row_major(rank: int) -> list[int]:
    return list(reversed(range(rank)))


def _dense(layouts: Iterable[list[int]]) -> str:
    return ", ".join(f"dense<{layout}> : tensor<{len(layout)}xindex>" for layout in layouts)
