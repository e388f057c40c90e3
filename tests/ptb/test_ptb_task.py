"""Compares the language model's loss with a numpy transcription, over two steps of a carried state."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from ptb.config import Config
from ptb.task import Task

CONFIG = Config(
    vocabulary_size=17, units=6, layers=2, num_steps=4, global_batch_size=3, eval_batch_size=3,
    precision="fp64",
)  # fmt: skip


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]


@pytest.mark.parametrize("carry", [True, False])
def test_the_loss_is_summed_over_a_sequence_whose_state_is_the_last_step_s(carry: bool) -> None:
    """ptb_word_lm.py: the sum over the words of a sequence, the mean over sequences."""
    rng = np.random.default_rng(0)
    task = Task(dataclasses.replace(CONFIG, carry=carry), None)
    network = task.build(Single(), precision("fp64"))
    for variable in network.trainable_variables:
        variable.assign(rng.normal(size=variable.shape, scale=0.5))
    state = np.zeros([3, network.carried.train_state.shape[-1]])
    for step in range(2):
        words, targets = rng.integers(0, 17, [2, 3, 4]).astype(np.int32)
        batch = {
            "words": tf.constant(words),
            "targets": tf.constant(targets),
            "weight": tf.ones([3, 4]),
            "stream": tf.range(3),
            "keep": tf.fill([3], float(step > 0)),
        }
        logits, after = network([words, state if carry else 0 * state], training=True)
        term = task.loss(network, batch)["cross_entropy"]
        np.testing.assert_allclose(term.total, cross_entropy(logits.numpy(), targets).sum(), rtol=1e-10)
        np.testing.assert_allclose(term.weight, 3.0)
        state = after.numpy()
