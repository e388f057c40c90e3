"""Attention as one kernel of cuDNN's each way, which keeps no attention weights; for XLA:GPU.

XLA knows the kernels as custom calls. Their names, operands, results and settings are those that jax emits for
`jax.nn.dot_product_attention(implementation="cudnn")` (jax/_src/cudnn/fused_attention_stablehlo.py); a test compares
them. The kernel drops weights with its own generator: it counts its calls, so the masks depend on the card and on how
many steps the process has run, and every replica has the same. cuDNN needs a card of compute capability 8.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from common.distributed.replicas.xla import embedded, tensor_type

# A masked score's bias: jax's, because cuDNN subtracts large numbers wrongly ("get_large_negative_number" there).
MASKED = {tf.bfloat16: -float(2 << 40), tf.float16: -float(2 << 14)}
# Contracted dimensions of both operands and their two batch dimensions, for [b, n, heads, size]; see jax's file.
_FORWARD = {"bmm1": (3, 3, "02", "02"), "bmm2": (3, 1, "01", "02")}
_BACKWARD = {
    "bmm1_grad_gemm1": (2, 1, "01", "02"),
    "bmm1_grad_gemm2": (3, 1, "01", "02"),
    "bmm2_grad_gemm1": (2, 1, "01", "02"),
    "bmm2_grad_gemm2": (3, 3, "02", "02"),
}
_NO_LAYOUT = {
    **dict.fromkeys(("dim_level_types", "dim_unique", "dim_ordered", "tiles"), ()),
    **dict.fromkeys(("element_size_in_bits", "memory_space", "dynamic_shape_metadata_prefix_bytes"), "0"),
    **dict.fromkeys(("index_primitive_type", "pointer_primitive_type"), "PRIMITIVE_TYPE_INVALID"),
}


def fused_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    allowed: tf.Tensor,
    scale: float,
    dropout: float = 0.0,
    seed: int = 0,
) -> tf.Tensor:
    """Returns dropout(softmax(scale Q K^T, where allowed)) V, [b, q, heads, size], traced for XLA:GPU.

    Args:
      query: [b, q, heads, size], bfloat16 or float16; all sizes are static.
      key, value: [b, m, heads, size].
      allowed: bool [b, 1, q, m].
      scale: factor of the scores.
      dropout: share of the weights to drop.
      seed: of the kernel's generator.
    """

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Any]:
        b, q, heads, _ = query.shape
        bias = tf.where(allowed, tf.zeros([], query.dtype), tf.constant(MASKED[query.dtype], query.dtype))
        name = "__cudnn$fmhaScaleBiasSoftmax" + ("Dropout" if dropout else "")
        settings = _settings(query, key, scale, dropout, seed)
        statistics = ([b, heads, q], tf.float32)
        output, kept = _called(
            name, settings | _products(_FORWARD), [query, key, value, bias], 1, [statistics]
        )

        def gradient(above: tf.Tensor) -> list[tf.Tensor]:
            operands = [query, key, value, kept, above, bias, output]
            return _called(f"{name}Backward", settings | _products(_BACKWARD), operands, 3)

        return output, gradient

    return attend(query, key, value)


def _settings(query: tf.Tensor, key: tf.Tensor, scale: float, dropout: float, seed: int) -> dict[str, Any]:
    (b, q, heads, _), memory = query.shape, key.shape[1]
    return {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": scale,
        "intermediate_tensor_shape": {
            "element_type": {tf.bfloat16: "BF16", tf.float16: "F16"}[query.dtype],
            "dimensions": [str(side) for side in (b, heads, q, memory)],
            "tuple_shapes": [],
            "layout": {"minor_to_major": ["3", "2", "1", "0"], **_NO_LAYOUT},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "NO_MASK",
        "dropout_rate": dropout,
        "seed": seed,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }


def _products(dimensions: dict[str, tuple[int, int, str, str]]) -> dict[str, Any]:
    sides = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    return {
        f"{name}_dot_dimension_numbers": {
            f"{side}_dimensions": list(str(numbers)) for side, numbers in zip(sides, of_product)
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
    shapes = [x.shape.as_list() for x in operands[:like]]
    results = [([b, heads, n, size], operands[0].dtype) for b, n, heads, size in shapes] + list(more)
    layouts = ["[3, 1, 2, 0]"] * like + [str(list(range(len(s)))[::-1]) for s, _ in more] + ["[0]"]
    ranks = [f"dense<{list(range(len(x.shape)))[::-1]}> : tensor<{len(x.shape)}xindex>" for x in operands]
    kinds = [tensor_type(*result) for result in results] + ["tensor<0xui8>"]
    config = json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": settings}).replace(
        '"', "\\22"
    )
    layouts = [f"dense<{one}> : tensor<{one.count(',') + 1}xindex>" for one in layouts]
    text = (
        f"  %r:{len(kinds)} = stablehlo.custom_call @{name}({', '.join(f'%x{i}' for i in range(len(operands)))}) "
        f'{{api_version = 2 : i32, backend_config = "{config}", operand_layouts = [{", ".join(ranks)}], '
        f"result_layouts = [{', '.join(layouts)}]}} : "
        f"({', '.join(tensor_type(x.shape, x.dtype) for x in operands)}) -> ({', '.join(kinds)})\n"
    )
    names = []
    for i, (kind, shape) in enumerate(zip(kinds, shapes)):
        target = tensor_type(shape, operands[0].dtype)
        text += f"  %t{i} = stablehlo.transpose %r#{i}, dims = [0, 2, 1, 3] : ({kind}) -> {target}\n"
        names.append(f"%t{i}")
    names += [f"%r#{i}" for i in range(like, len(results))]
    return embedded(operands, text, names, [*((s, operands[0].dtype) for s in shapes), *more])
