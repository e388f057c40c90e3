"""Tests PTB's loss against a numpy transcription over a carried state, and every preset: valid, LEGW's rows, a log."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from compliance.api import check
from ptb.config import Config
from ptb.presets import PRESETS
from ptb.task import Task
from tests.benchmarks import (
    assert_follows_legw,
    assert_the_flag_gives,
    assert_the_header_says_what_runs,
    header,
    scripted_log,
)

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


BATCHES = [20 * 2**i for i in range(6)]


@pytest.mark.parametrize("name", PRESETS)
def test_log_passes_the_checker(name: str, tmp_path: pathlib.Path) -> None:
    config = PRESETS[name]
    scripted_log(config, tmp_path / "result_0.txt", missed=1e4)
    errors = [f.rule for f in check([tmp_path / "result_0.txt"]).findings if f.severity == "error"]
    assert not errors
    assert config.division == ("closed" if name.removeprefix("cpu-").isdigit() else "open")


@pytest.mark.parametrize("batch", BATCHES)
def test_batches_of_the_paper_follow_legw(batch: int) -> None:
    config = PRESETS[f"cpu-{batch}"]
    assert config.global_batch_size == batch
    assert_follows_legw(config, PRESETS["cpu-20"], batch / 20)
    assert (config.train_epochs, config.optimizer.momentum) == (13.0, 0.9)
    assert (config.schedule.kind, config.optimizer.name) == ("step", "sgd")
    assert (config.schedule.boundaries, config.schedule.factor) == ((7, 8, 9, 10, 11, 12), 0.5)
    # The range of rates in which runs with the largest batch work (LEGW, section 5.3).
    assert batch < 640 or 0.1 <= config.optimizer.base_learning_rate <= 1.6


def test_the_flag_gives_the_presets() -> None:
    for k in (2, 32):
        assert_the_flag_gives(PRESETS[f"cpu-{20 * k}"], PRESETS["cpu-20"], k)


def test_the_header_says_what_the_run_does() -> None:
    config = PRESETS["cpu-20"]
    assert_the_header_says_what_runs(config)
    assert not [key for key in header(config, "schedule.kind", "poly") if "decay" in key]
    assert header(config, "dropout", "0.25")["dropout"] == 0.25
    assert "dropout" not in header(config)
