"""Tests of exported programs: no 64-bit operation that a device would emulate, and artifacts of the program alone."""

import dataclasses
import importlib

import pytest
import tensorflow as tf

from common.distributed import stablehlo
from common.export import cost
from common.export.steps import Steps, batch_of, to_export
from tests.common.export.test_export import SMALL

TO_WORDS = "convert"  # What remains: ids of images, which arrive as int64; one conversion of a batch's ids.


def unexpected(benchmark):
    """The 64-bit operations of a benchmark's first training program on two replicas that are neither."""
    presets = importlib.import_module(f"{benchmark}.presets").PRESETS
    number = {"num_replicas": 2, "replicas": "mirrored", "global_batch_size": 4, "eval_batch_size": 4}
    config = dataclasses.replace(presets["cpu-tiny"], **{**SMALL[benchmark], "precision": "fp32", **number})
    config.validate()
    task = importlib.import_module(f"{benchmark}.task").Task(to_export(config), None)
    steps = Steps(task, config)
    lowered = stablehlo.lower(steps.train, batch_of(steps.batches(True)[0]), "training step")
    operations = cost.wide(lowered.text)
    print(benchmark, len(lowered.text), operations)
    words = [name.split() for name in operations]
    return {(operation, kind) for operation, kind in words if operation != TO_WORDS}


@pytest.mark.parametrize(
    "benchmark", [pytest.param(b, marks=[] if b == "mnist" else [pytest.mark.e2e]) for b in SMALL]
)
def test_a_step_has_no_64_bit_arithmetic(benchmark):
    assert unexpected(benchmark) == set()


def test_64_bit_operations_are_counted():
    text = (
        '    %1 = stablehlo.add %a, %b : tensor<3xi64> loc("x")\n'
        "    %2 = stablehlo.convert %1 : (tensor<3xi64>) -> tensor<3xf32>\n"
        '    %3 = "stablehlo.all_reduce"(%2) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({\n'
        "    %4 = stablehlo.constant dense<0> : tensor<i64>\n"
        "    %5 = stablehlo.multiply %c, %c : tensor<f64>\n"
    )
    assert cost.wide(text) == {"add 3xi64": 1, "convert 3xi64": 1, "multiply f64": 1}


def lowered_step():
    def step(batch):
        with tf.name_scope("network/dense"):
            square = tf.matmul(batch, batch)
        for _ in tf.range(3):
            square = tf.tanh(square)
        return {"loss": tf.reduce_sum(square)}

    return stablehlo.lower(tf.function(step, jit_compile=True), tf.ones([4, 4]), "step")


def test_the_same_step_has_the_same_artifact():
    # Though TensorFlow has numbered the functions.
    assert lowered_step().artifact() == lowered_step().artifact()


def test_an_artifact_names_layers_and_no_file():
    artifact = lowered_step().artifact()
    assert b"network/dense/MatMul" in artifact and b".py" not in artifact
