"""Tests the custom calls of cuDNN's attention against those that jax emits; no CPU can run them."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.stablehlo import lower
from common.layers.fused_attention import MASKED, fused_attention

QUERY, MEMORY = (2, 8, 3, 16), (2, 24, 3, 16)
SCALE, SEED = 0.25, 7


def calls(text: str) -> list[dict]:
    """The custom calls of a program: name, operands and results with their layouts, settings."""
    actual = []
    for name, attributes, kinds in re.findall(r"custom_call @(__cudnn\S+)\(.*?\) \{(.*)\} : (.*)", text):
        config = re.search(r'backend_config = "(.*?)"', attributes)[1].replace("\\22", '"')
        layouts = [
            re.findall(r"dense<(.*?)>", re.search(rf"{side}_layouts = \[(.*?>)\]", attributes)[1])
            for side in ("operand", "result")
        ]
        kinds = re.findall(r"tensor<(\S+?)>", kinds)
        actual.append({"name": name, "kinds": kinds, "layouts": layouts, "settings": json.loads(config)})
    return actual


def ours(dtype: tf.DType, dropout: float) -> list[dict]:
    q, k, v = (tf.zeros(shape, dtype) for shape in (QUERY, MEMORY, MEMORY))
    allowed = tf.ones([2, 1, 8, 24], tf.bool)

    @tf.function(jit_compile=True, autograph=False)
    def gradients(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(fused_attention(*inputs, allowed, SCALE, dropout, SEED))
        return tape.gradient(loss, inputs)

    return calls(lower(gradients, [q, k, v], "attention").text)


def of_jax(dtype: tf.DType, dropout: float, monkeypatch) -> list[dict]:
    jax = pytest.importorskip("jax")
    attention = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(attention, "check_cudnn_version", lambda: 91000)  # There is no card to ask.
    monkeypatch.setattr(attention, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(attention, "should_export_dbias", lambda *_: False)  # The mask needs no gradient.

    def loss(q, k, v, bias):
        settings = {"scale": SCALE, "dropout_rate": dropout, "seed": SEED}
        return attention.dot_product_attention(q, k, v, bias=bias, **settings).sum()

    kinds = [jax.ShapeDtypeStruct(s, dtype.name) for s in (QUERY, MEMORY, MEMORY, (2, 1, 8, 24))]
    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*kinds)
    return calls(traced.lower(lowering_platforms=("cuda",)).as_text())


@pytest.mark.parametrize("dropout", [0.0, 0.125])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_the_calls_are_those_of_jax(dtype, dropout, monkeypatch):
    expected = of_jax(dtype, dropout, monkeypatch)
    assert len(expected) == 2
    assert ours(dtype, dropout) == expected


def test_the_causal_calls_with_grouped_heads_are_those_of_jax(monkeypatch):
    jax = pytest.importorskip("jax")
    attention = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(attention, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(attention, "check_compute_capability", lambda _: True)
    shapes = [(2, 16, 6, 16), (2, 16, 2, 16), (2, 16, 2, 16)]

    def loss(q, k, v):
        causal = attention.MaskType.CAUSAL
        return attention.dot_product_attention(q, k, v, scale=SCALE, mask_type=causal, seed=0).sum()

    kinds = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]
    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*kinds)
    expected = calls(traced.lower(lowering_platforms=("cuda",)).as_text())

    @tf.function(jit_compile=True, autograph=False)
    def gradients(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(fused_attention(*inputs, None, SCALE))
        return tape.gradient(total, inputs)

    actual = calls(lower(gradients, [tf.zeros(shape, tf.bfloat16) for shape in shapes], "attention").text)
    assert len(expected) == 2 and "CAUSAL" in str(expected)
    assert actual == expected


def test_masked_scores_are_those_of_jax():
    attention = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    for dtype, value in MASKED.items():
        assert np.float32(attention.get_large_negative_number(np.dtype(dtype.name))) == np.float32(value)
