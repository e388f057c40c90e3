"""Tests runs with the rules of docs/optimizers.md in 16-bit precisions."""

import numpy as np
import pytest

from tests.common.distributed import updates
from tests.common.distributed.test_sharded_update import LATER
from tests.common.train.loops import losses, make, run, weights_and_slots


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", LATER)
def test_slots_are_fp32_in_16_bits_and_the_run_follows_fp32(optimizer, precision):
    settings = {"precision": precision, "train_epochs": 5, "batch_norm_span": 16, "loss_scale": 128.0}
    loop = make(optimizer=updates.OPTIMIZERS[optimizer], **settings)
    curve = losses(run(loop))
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in weights_and_slots(loop))
    assert np.mean(curve[-4:]) < 0.9 * np.mean(curve[:4])
