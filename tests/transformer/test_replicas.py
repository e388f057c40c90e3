"""Tests runs on one replica, on two, and in micro-batches: the same losses, weights and translations."""

import dataclasses

import numpy as np
import pytest

from common.distributed import replicas
from common.train import events
from common.train.programs import Programs
from tests.common.train import loops
from tests.translation import scoring_here
from transformer import tiny
from transformer.config import Decode
from transformer.presets import PRESETS
from transformer.task import Task

pytest.importorskip("official.nlp.metrics.bleu", reason="tf-models-official absent")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    counts = tiny.generate(folder, tiny.Tiny(train_pairs=100, eval_pairs=5, vocabulary_size=300))
    base = dataclasses.replace(
        PRESETS["cpu-tiny"], precision="fp64", num_train_examples=counts["packed"],
        num_eval_examples=counts["eval"], vocabulary_size=counts["vocabulary"], global_batch_size=4,
        eval_batch_size=4, train_steps=3, steps_per_block=3, layers=1, width=16, hidden=32, heads=2,
        residual_dropout=0.0, attention_dropout=0.0, relu_dropout=0.0,
        schedule=dataclasses.replace(PRESETS["cpu-tiny"].schedule, warmup_steps=2.0, width=16),
        decode=Decode(source_length=70, extra_length=0),
    )  # fmt: skip

    def run(**changes):
        task = scoring_here(Task)(dataclasses.replace(base, **changes), folder)
        loop = Programs(task, replicas.make(task.config))
        losses = [e.losses for e in loops.run(loop) if isinstance(e, events.Trained)][0]
        weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
        return losses, weights, task.answers

    return run


@pytest.fixture(scope="module")
def alone(run):
    return run()


@pytest.mark.parametrize(
    "changes",
    [{"replicas": "mirrored", "num_replicas": 2}, {"accumulation_steps": 2}],
    ids=["replicas", "micro-batches"],
)
def test_equal_to_one_replica(run, alone, changes):
    """The loss is per token of the global batch, however its sequences are split."""
    same(run(**changes), alone)


def same(mine, other):
    """Asserts that two runs have the same losses, weights and translations."""
    np.testing.assert_allclose(mine[0], other[0], rtol=1e-8)
    assert mine[0][0] != mine[0][-1]
    for one, two in zip(mine[1], other[1], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-9)
    assert mine[2] == other[2] and len(mine[2]) == 5
