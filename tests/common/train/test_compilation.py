"""Tests what XLA compiles of a run: the plan's words, and compiled runs of two processes against uncompiled ones."""

import functools
from unittest import mock

import numpy as np
import pytest

from common.config.schema import Communication
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.train import compilation, events
from common.train.compilation import Compiled, plan
from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.common.train import loops, toy
from tests.common.train.loops import run, slots_of

NUMBER = 2
CASES = {
    "whole": {},
    "lars": {"optimizer": updates.OPTIMIZERS["lars"]},
    "sharded": {
        "optimizer": updates.OPTIMIZERS["adam"],
        "communication": Communication(weight_update="sharded"),
    },
    "sharded lars": {
        "optimizer": updates.OPTIMIZERS["lars"],
        "communication": Communication(weight_update="sharded"),
    },
    "accumulated": {"accumulation_steps": 2},
    "segments": {},
    "sharded segments": {
        "optimizer": updates.OPTIMIZERS["adam"],
        "communication": Communication(weight_update="sharded"),
    },
    "scaled": {"loss_scale": 8.0},
}


make = functools.partial(loops.make, precision="fp64", train_epochs=2)


# -- called in every process -------------------------------------------------------------------------------------


def trained(backend, how, case):
    """(losses, evaluations, weights, moments and slots, what is compiled)."""
    segments, bucket_bytes = (3, 64) if "segments" in case else (1, updates.BUCKET_BYTES)
    with updates.buckets_of(bucket_bytes), mock.patch.object(compilation, "ON_CPUS", segments):
        loop = make(replicas=backend, num_replicas=NUMBER, compile=how, **CASES[case])
        loop.compile()
        history = run(loop)
    losses = [x for e in history if isinstance(e, events.Trained) for x in e.losses]
    values = [e.value for e in history if isinstance(e, events.Evaluated)]
    slots = slots_of(loop)
    local = loop.replicas.local_results
    weights = [local(v)[0].numpy() for v in loop.state.model.variables]
    return losses, values, weights, slots, loop.compiled.compiled.name


def refused(backend):
    with pytest.raises(UserError) as caught:
        make(replicas=backend, num_replicas=NUMBER, compile="on", batch_norm_span=16)
    auto = make(replicas=backend, num_replicas=NUMBER, compile="auto", batch_norm_span=16)
    return str(caught.value), str(auto.compiled)


# -- the tests -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["horovod", "multiworker"])
def results(request):
    backend = request.param
    calls = {
        f"{case} {how}": functools.partial(trained, backend, how, case)
        for case in CASES
        for how in ("on", "off")
    }
    return processes.run(backend, NUMBER, {**calls, "refused": functools.partial(refused, backend)})


@pytest.mark.parametrize("case", CASES)
def test_programs_between_exchanges_equal_the_uncompiled_step(results, case):
    for compiled, plain in zip(results[f"{case} on"], results[f"{case} off"], strict=True):
        assert (compiled[-1], plain[-1]) == ("BETWEEN", "NOTHING")
        np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-9)
        assert compiled[1] == plain[1]
        for mine, other in zip([*compiled[2], *compiled[3]], [*plain[2], *plain[3]], strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


def test_a_network_that_exchanges_in_its_forward_pass_is_refused_in_one_line(results):
    for message, auto in results["refused"]:
        assert message.startswith("config.compile=on: nothing of this run can be compiled (config.replicas=")
        assert "batch norm over 16 images exchanges in the forward pass" in message
        assert auto == "nothing (config.compile=auto, which is off on a CPU)"


@pytest.mark.parametrize(
    "how, gpus, expected",
    [("auto", 0, "NOTHING"), ("auto", 1, "STEP"), ("on", 0, "STEP"), ("off", 1, "NOTHING")],
)
def test_one_replica_compiles_its_whole_step(monkeypatch, how, gpus, expected):
    config = toy.config(compile=how)
    model = toy.Task(config).build(Single(), precision("fp32"))
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [kind] * gpus)
    decision = plan(config, Single(), model)
    assert decision.compiled is Compiled[expected] and bool(decision.why) == (expected == "NOTHING")


def test_mirrored_replicas_say_that_nothing_is_compiled():
    with pytest.raises(
        UserError, match=r"config\.replicas=mirrored: its programs cannot stand between exchanges"
    ):
        make(replicas="mirrored", num_replicas=NUMBER, compile="on")
