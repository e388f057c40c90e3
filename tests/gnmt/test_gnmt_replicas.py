"""Tests runs on one replica, on two, and resumed: the same losses, weights and translations."""

import dataclasses

import pytest

from common.distributed import replicas
from common.layers import scan
from common.train.programs import Programs
from gnmt import tiny
from gnmt.config import Decode
from gnmt.presets import PRESETS
from gnmt.task import Task
from tests.common.train import loops
from tests.translation import scoring_here

pytest.importorskip("subword_nmt", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Returns make(**changes), a loop on a small language pair with two buckets."""
    folder = tmp_path_factory.mktemp("pair")
    counts = tiny.generate(folder, tiny.Tiny(train_pairs=120, eval_pairs=5, merges=500, max_length=16))
    base = dataclasses.replace(
        PRESETS["cpu-tiny"],
        precision="fp64",
        wiring="google",
        num_train_examples=counts["pairs"],
        num_eval_examples=counts["eval"],
        vocabulary_size=counts["vocabulary"],
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
        # Each replica clips its own gradient, so that with clipping two replicas differ from one.
        optimizer=dataclasses.replace(PRESETS["cpu-tiny"].optimizer, clip_replica_norm=0.0),
        schedule=dataclasses.replace(PRESETS["cpu-tiny"].schedule, warmup_steps=2.0),
        decode=Decode(source_length=60, target_length=4),
    )

    def make(**changes):
        task = scoring_here(Task)(dataclasses.replace(base, **changes), folder)
        return Programs(task, replicas.make(task.config))

    # Loops trace faster than unrolled steps.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "UNROLLED_STEPS", 0)
        yield make


@pytest.fixture(scope="module")
def alone(make):
    return loops.train(make())


def test_two_replicas_equal_one_and_compile_nothing_on_the_clock(make, alone):
    """Dropout is on."""
    loop = make(replicas="mirrored", num_replicas=2)
    both = loops.train_compiled(loop)
    assert loop.block._block.experimental_get_tracing_count() == 1
    assert len(set(both[0])) == 4
    loops.assert_alike(both, alone, 1e-8, 1e-6, 1e-9)
    assert both[2] == alone[2] and len(both[2]) == 5


def test_a_resumed_run_goes_on_in_the_same_buckets(make, alone, tmp_path):
    loops.assert_alike(loops.train_resumed(make, tmp_path), alone, 1e-12, 1e-10, 1e-13)
