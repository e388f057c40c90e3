"""Tests that every `TrainingBlock` keeps the same promises, whoever runs the loop around its steps."""

import math
import types

import numpy as np
import pytest

from common.train import block, fused_block, host_block
from tests.common.train.loops import make

KINDS = {"single": fused_block.FusedBlock, "pjrt": host_block.HostBlock}


@pytest.fixture(scope="module", params=KINDS)
def loop(request):
    loop = make(replicas=request.param)
    assert isinstance(loop.block, KINDS[request.param])
    return loop


def called(loop, steps, evaluations):
    return loop.block(loop.synthetic(True), loop.synthetic(False), steps, evaluations)


def test_a_block_keeps_the_contract(loop):
    one, step = loop.block, int(loop.state.step)
    public = {name for name in vars(block.TrainingBlock) if not name.startswith("_")}
    assert all(callable(getattr(one, name)) for name in public)

    result = called(loop, 3, 2)
    assert result.complete and result.losses.shape == result.times.shape == (3,)
    assert np.isfinite(result.losses).all() and (np.diff(result.times) >= 0).all()
    assert result.times[-1] <= result.eval_start <= result.eval_stop
    assert float(result.sums["seen"]) > 0 and len(result.arrays["label"]) == 16
    assert int(loop.state.step) == step + 3 and one.progress() == (step + 3, pytest.approx(result.losses[-1]))

    assert called(loop, 0, 1).complete and called(loop, 1, 0).complete
    one.forget()
    assert math.isnan(one.progress()[1])
    one.stop()
    stopped = called(loop, 3, 1)
    assert not stopped.complete and len(stopped.losses) == 0 and int(loop.state.step) == step + 4
    one.allow()
    assert called(loop, 1, 1).complete


def test_the_device_never_waits_for_python(monkeypatch):
    """A step that sleeps for 20 while Python works for 15, on a clock of the test's own."""
    steps, python, device = 50, 15.0, 20.0
    clock = {"now": 0.0, "device": 0.0}
    one = object.__new__(host_block.HostBlock)
    one._alone, one._stopping, one._done = True, False, 0
    one._timing = types.SimpleNamespace(step_ended=lambda _: None)

    def start(batches):
        clock["now"] += python
        clock["device"] = max(clock["device"], clock["now"]) + device
        return clock["device"]

    def read(end):
        clock["now"] = max(clock["now"], end)
        return 1.0, False

    monkeypatch.setattr(host_block, "now", lambda: clock["now"])
    one._start, one._read = start, read
    losses, times, stopped = one._train(None, steps)
    assert len(losses) == steps and not stopped
    assert times[-1] == python + steps * device
