"""Tests the full-size network without its memory: built, and two layers of full width traced and lowered."""

import dataclasses

import tensorflow as tf

from common.distributed.replicas.xla import Xla
from common.hlo import stablehlo_text
from common.layers.chunked_cross_entropy import summed_cross_entropy
from common.layers.precision import precision
from common.layers.rms_norm import rms_normalized
from common.train.describe import describe
from llama31_8b import model
from llama31_8b.presets import PRESETS, hyperparameters
from llama31_8b.task import Task

FULL = PRESETS["h200-1"]
WIDTH, QKV = FULL.width, (FULL.heads + 2 * FULL.kv_heads) * FULL.head_size
LAYER = model.Weights(
    [WIDTH], [WIDTH, QKV], [WIDTH, WIDTH], [WIDTH], [WIDTH, 2 * FULL.hidden], [FULL.hidden, WIDTH]
)


def test_the_network_is_built_without_values_and_has_the_published_sizes() -> None:
    """Parameters: NeMo's log. 3 x 2 x multiply-adds a window: 421.6e12, by which the published logs count FLOPs.

    They count the pairs of a token and its own or an earlier position; we count the masked pairs too.
    """
    description = describe(Task(FULL, None), hyperparameters(FULL))
    assert description["parameters"] == 8_030_261_248
    masked = 2 * FULL.layers * WIDTH * FULL.sequence_length * (FULL.sequence_length - 1) // 2
    assert abs(3 * (description["forward_flops_per_example"] - 2 * masked) - 421.65e12) < 0.1e12


def test_two_layers_of_full_width_lower_for_a_gpu_to_a_short_program() -> None:
    """Neither masks, rotations nor class numbers are written out; attention is one kernel each way and layer."""
    config = dataclasses.replace(FULL, layers=2, attention="fused")
    replicas = Xla(1)
    replicas.platform = "NVIDIA H200"
    parts = model.Parts(config, replicas, precision("bf16"))
    table, head = [config.vocab_size, WIDTH], [WIDTH, config.vocab_size]
    shapes = [table, *LAYER, *LAYER, [WIDTH], head]

    @tf.function(jit_compile=True, autograph=False)
    def gradients(*operands: tf.Tensor) -> list[tf.Tensor]:
        *weights, tokens, cosine, sine = operands
        with tf.GradientTape() as tape:
            tape.watch(weights)
            x = tf.cast(tf.gather(weights[0], tokens[:, :-1]), tf.bfloat16)
            for i in (1, 7):
                x = model.recomputed(
                    lambda x, *matrices: model.decoded(parts, x, model.Weights(*matrices), cosine, sine),
                    x,
                    *weights[i : i + 6],
                )
            x = tf.reshape(rms_normalized(x, weights[-2], model.NORM_EPSILON), [-1, WIDTH])
            labels = tf.reshape(tokens[:, 1:], [-1])
            ones = tf.ones(labels.shape)
            loss = summed_cross_entropy(x, weights[-1], labels, ones, config.logit_chunks, tf.bfloat16)
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]

    length, size = config.sequence_length, config.head_size
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    specs += [tf.TensorSpec([1, length + 1], tf.int32), *[tf.TensorSpec([length, size // 2], tf.float32)] * 2]
    text = gradients.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    _, results = stablehlo_text.signature(stablehlo_text.portable(text))
    assert [list(shape) for shape, _ in results] == shapes
    assert len(text) < 2e6
    # In the forward pass, again behind the barriers, and backward.
    assert (text.count("__cudnn$fmhaSoftmax("), text.count("fmhaSoftmaxBackward(")) == (4, 2)
    assert text.count("stablehlo.optimization_barrier") == 4
