"""Tests one update against what it must be: its rate, the optimizer's count, sums over replicas and micro-batches."""

import dataclasses

import numpy as np
import pytest

from common.config.optimizer import Adam, Sgd
from common.config.schedule import Constant
from common.distributed import replicas as backends
from common.train.programs import Programs
from tests.common.train import toy
from tests.common.train.loops import run

RATE = 0.125
SGD = Sgd(base_learning_rate=RATE, momentum=0.0, weight_decay=0.0)


class Weighted(toy.Task):
    """Training examples of different weights: replicas and micro-batches have different sums of them."""

    def examples(self, first: int, count: int, offset: int) -> dict[str, np.ndarray]:
        examples = super().examples(first, count, offset)
        return examples if offset else examples | {"weight": 1.0 + np.arange(first, first + count) % 16}


def moves(count: int = 1, task: type[toy.Task] = toy.Task, **changes) -> list[np.ndarray]:
    """How far the first `count` updates, each an epoch, move each weight."""
    fields = {
        "precision": "fp64", "replicas": "single", "quality_target": 2.0, "optimizer": SGD,
        "num_train_examples": 16, "train_epochs": count,
        "schedule": Constant(warmup_epochs=0),
    }  # fmt: skip
    config = toy.config(**fields | changes)
    loop = Programs(task(config), backends.make(config))
    local = loop.replicas.local_results
    weights = loop.state.model.trainable_variables
    before = [local(w)[0].numpy() for w in weights]
    run(loop)
    return [local(w)[0].numpy() - b for w, b in zip(weights, before, strict=True)]


def test_the_first_update_takes_the_rate_at_0() -> None:
    """A linear warmup begins at 0: its first update moves nothing, its second moves every weight."""
    warm = Constant(warmup_steps=4, warmup_epochs=0)
    assert not any(move.any() for move in moves(1, schedule=warm))
    assert all(move.any() for move in moves(2, schedule=warm))


def test_adam_s_first_update_moves_every_weight_by_the_rate() -> None:
    """Its averages are of one gradient, corrected for one: g / sqrt(g^2), but for epsilon."""
    adam = Adam(base_learning_rate=RATE, weight_decay=0.0, epsilon=1e-12)
    moved = np.concatenate([m.ravel() for m in moves(optimizer=adam)])
    np.testing.assert_allclose(np.abs(moved[moved != 0]), RATE, rtol=1e-6)
    assert np.count_nonzero(moved) > 0.9 * moved.size


@pytest.mark.parametrize(
    "parts",
    [
        {"accumulation_steps": 4},
        {"replicas": "mirrored", "num_replicas": 2},
        {"replicas": "mirrored", "num_replicas": 2, "accumulation_steps": 2},
    ],
    ids=["micro-batches", "replicas", "both"],
)
def test_an_update_in_parts_is_the_whole_batch_s(parts: dict) -> None:
    """A loss is divided by the weight of the whole batch, not by that of each part."""
    whole = moves(task=Weighted, batch_norm_span=4)
    for mine, other in zip(moves(task=Weighted, batch_norm_span=4, **parts), whole, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-14)


def test_a_factor_is_of_biases_alone() -> None:
    plain = moves()
    factored = moves(optimizer=dataclasses.replace(SGD, bias_gradient_factor=2.0))
    ratios = [
        float(np.median(two[one != 0] / one[one != 0])) for one, two in zip(plain, factored, strict=True)
    ]
    # Kernel, gamma, beta, kernel, bias: batch norm's are no biases.
    np.testing.assert_allclose(ratios, [1, 1, 1, 1, 2])
