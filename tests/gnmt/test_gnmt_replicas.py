"""One step after another on one replica, on two, and in micro-batches: the same losses, weights and translations; and
a run that is resumed goes on as if it had not ended."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from common import checkpoint, events, replicas
from common.config import Optimizer, Schedule
from common.loop import Loop
from gnmt import tiny
from gnmt.config import PRESETS, Decode
from gnmt.task import Task

pytest.importorskip("subword_nmt", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")


class Here(Task):
    """Scores in this process; keeps what it scored."""

    evaluate_in_worker = False

    def quality(self, sums, arrays):
        self.found = self.translations(arrays)
        return super().quality(sums, arrays)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """(changes) -> a loop on a small pair with two buckets."""
    folder = tmp_path_factory.mktemp("pair")
    counts = tiny.generate(folder, tiny.Tiny(train_pairs=120, eval_pairs=5, merges=500, max_length=16))
    base = dataclasses.replace(
        PRESETS["cpu-tiny"],
        precision="fp64",
        num_train_examples=counts["pairs"],
        num_eval_examples=counts["eval"],
        vocabulary_size=counts["vocabulary"],
        # Two short buckets: what is traced is written out step by step.
        max_sequence_length=16,
        bucket_limits=(13, 16),
        global_batch_size=8,
        eval_batch_size=4,
        train_steps=4,
        steps_per_block=4,
        layers=2,
        width=8,
        dropout=0.2,
        quality_target=0.99,
        schedule=dataclasses.replace(PRESETS["cpu-tiny"].schedule, warmup_steps=2.0),
        decode=Decode(source_length=60, target_length=4, beam_size=2),
    )

    def make(**changes):
        task = Here(dataclasses.replace(base, **changes), folder)
        return Loop(task, replicas.make(task.config))

    return make


def outcome(loop, losses):
    weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
    return losses, weights, loop.task.found


def train(loop):
    return outcome(loop, [x for e in loop.run() if isinstance(e, events.Trained) for x in e.losses])


@pytest.fixture(scope="module", params=["reference", "google"])
def wiring(request):
    return request.param


def check_equal(one, two):
    np.testing.assert_allclose(one[0], two[0], rtol=1e-8)
    for mine, other in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-9)
    assert one[2] == two[2] and len(one[2]) == 5


def test_two_replicas_equal_one(make, wiring):
    """Dropout and all; without clipping, which is each replica's own."""
    optimizer = dataclasses.replace(PRESETS["cpu-tiny"].optimizer, clip_replica_norm=0.0)
    alone = train(make(wiring=wiring, optimizer=optimizer))
    assert len(set(alone[0])) == 4
    both = make(wiring=wiring, optimizer=optimizer, replicas="mirrored", num_replicas=2)
    both.compile()
    check_equal(train(both), alone)


def test_micro_batches_equal_one(make):
    """Without dropout, whose masks a micro-batch draws for itself."""
    check_equal(train(make(dropout=0.0, accumulation_steps=2)), train(make(dropout=0.0)))


def test_clipping_is_each_replica_s_own(make):
    """Clipped to a small norm, two replicas take another step than one that sees both halves."""
    changes = {
        "train_steps": 1,
        "optimizer": Optimizer(name="sgd", base_learning_rate=1.0, clip_replica_norm=0.01),
        "schedule": Schedule(kind="constant", warmup_epochs=0),
    }
    alone = train(make(**changes))
    both = train(make(replicas="mirrored", num_replicas=2, **changes))
    np.testing.assert_allclose(alone[0], both[0], rtol=1e-8)
    assert max(np.abs(a - b).max() for a, b in zip(alone[1], both[1])) > 1e-7


def test_a_resumed_run_goes_on_in_the_same_bucket(make, tmp_path):
    whole = train(make())
    first = make(steps_per_block=3)
    losses = []
    for event in first.run(lambda step: checkpoint.save(first, str(tmp_path)) if step == 3 else None):
        if isinstance(event, events.Trained):
            losses += event.losses
            break
    else:
        raise AssertionError
    checkpoint.save(first, str(tmp_path))
    second = make(steps_per_block=3)
    second.compile()
    assert checkpoint.restore_latest(second, str(tmp_path)) == 3
    rest = train(second)
    np.testing.assert_allclose([*losses, *rest[0]], whole[0], rtol=1e-12)
    for mine, other in zip(rest[1], whole[1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-13)


def test_every_bucket_is_compiled_before_the_clock(make):
    loop = make()
    loop.compile()
    traced = loop._block.experimental_get_tracing_count()
    train(loop)
    assert loop._block.experimental_get_tracing_count() == traced == 1
