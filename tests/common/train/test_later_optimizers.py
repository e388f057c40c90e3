"""Tests runs with the rules of docs/optimizers.md: checkpoints and 16-bit precisions."""

import numpy as np
import pytest

from common.config.schema import Communication
from common.distributed import replicas as backends
from common.train import checkpoint, events
from common.train.programs import Programs
from tests.common.distributed import updates
from tests.common.distributed.test_sharded_update import LATER
from tests.common.train import toy
from tests.common.train.loops import run, saves, stops
from tests.common.train.loops import weights_and_slots as values

SHARDED = {
    "replicas": "mirrored",
    "num_replicas": 4,
    "communication": Communication(shard_weight_update=True),
}


def make(optimizer, **changes):
    fields = {"quality_target": 2.0, "optimizer": updates.OPTIMIZERS[optimizer], "train_epochs": 2}
    config = toy.config(**{**fields, "batch_norm_span": 16, **changes})
    return Programs(toy.Task(config), backends.make(config))


def weights(loop):
    local = loop.replicas.local_results
    loop.replicas.refresh()
    return [local(v)[0].numpy() for v in loop.state.model.trainable_variables]


def first_epoch(loop, folder):
    """Trains one epoch, saves, and stops."""
    run(loop, stops(lambda e: isinstance(e, events.BlockStarted) and e.block.index == 1), save=saves(folder))


@pytest.mark.parametrize("optimizer", LATER)
def test_a_run_resumes_bitwise_and_on_other_replicas(tmp_path, optimizer):
    whole = make(optimizer, precision="fp64")
    run(whole)
    first = make(optimizer, precision="fp64")
    first_epoch(first, tmp_path)
    resumed = make(optimizer, precision="fp64")
    resumed.compile()
    assert checkpoint.restore_latest(resumed, tmp_path).step == 4
    run(resumed)
    for mine, theirs in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    many = make(optimizer, precision="fp64", **SHARDED)
    assert checkpoint.restore_latest(many, tmp_path).step == 4
    run(many)
    for mine, theirs in zip(weights(many), weights(whole), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", LATER)
def test_slots_are_fp32_in_16_bits_and_the_run_follows_fp32(optimizer, precision):
    loop = make(optimizer, precision=precision, train_epochs=5, loss_scale=128.0)
    losses = [x for e in run(loop) if isinstance(e, events.Trained) for x in e.losses]
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in values(loop))
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
