"""Tests that a program's artifact depends on the program alone: results of compilers are kept by its digest."""

import tensorflow as tf

from common.distributed import stablehlo


def lowered():
    def step(batch):
        with tf.name_scope("network/dense"):
            square = tf.matmul(batch, batch)
        for _ in tf.range(3):
            square = tf.tanh(square)
        return {"loss": tf.reduce_sum(square)}

    return stablehlo.lower(tf.function(step, jit_compile=True), tf.ones([4, 4]), "step")


def test_the_same_step_has_the_same_artifact():
    assert lowered().artifact() == lowered().artifact()  # Though TensorFlow has numbered the functions.


def test_an_artifact_names_layers_and_no_file():
    artifact = lowered().artifact()
    assert b"network/dense/MatMul" in artifact and b".py" not in artifact
