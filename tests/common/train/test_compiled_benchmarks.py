"""Every benchmark's small network under Horovod: a compiled step of two processes equals the uncompiled one."""

import dataclasses
import functools
import importlib
import json
from unittest import mock

import numpy as np
import pytest

from common.config.schema import Communication
from common.distributed import replicas as backends
from common.train import compilation
from common.train.programs import Programs
from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.common.export.test_export import SMALL
from tests.common.export.test_pods import EACH

NUMBER, STEPS = 2, 2
BENCHMARKS = ("mnist", "ptb", "resnet", "tsm_kinetics", "transformer", "gnmt", "ssd", "maskrcnn")
SECONDS = 3000
# XLA's CPU compiler takes most of the time, and less if LLVM optimizes nothing. The other process may wait for long.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": str(SECONDS),
}
QUICK = ("mnist",)  # In `make test` too; XLA's CPU compiler makes the others minutes long.


def stepped(benchmark, how):
    """(losses, weights, what is compiled) of two steps on synthetic data, in float64."""
    batch = NUMBER * EACH.get(benchmark, 2)
    presets = importlib.import_module(f"{benchmark}.presets").PRESETS
    sizes = {"global_batch_size": batch, "eval_batch_size": batch, "precision": "fp64"}
    config = dataclasses.replace(
        presets["cpu-tiny"], replicas="horovod", num_replicas=NUMBER, compile="off" if how == "off" else "on",
        communication=Communication(), **{**SMALL[benchmark], **sizes},
    )  # fmt: skip
    config.validate()
    task = importlib.import_module(f"{benchmark}.task").Task(config, None)
    segments = mock.patch.object(compilation, "ON_CPUS", 3 if how == "segments" else 1)
    with updates.buckets_of(2**14), segments:  # These networks have several.
        loop = Programs(task, backends.make(config))
        losses = loop.call(loop.synthetic(True), loop.synthetic(False), STEPS, 0).losses
    local = loop.replicas.local_results
    weights = [local(v)[0].numpy() for v in loop.state.model.variables]
    return losses, weights, str(loop.compiled)


@pytest.mark.parametrize("how", ["on", "segments"])
@pytest.mark.parametrize(
    "benchmark", [pytest.param(b, marks=() if b in QUICK else pytest.mark.e2e) for b in BENCHMARKS]
)
def test_a_compiled_step_equals_the_uncompiled_one(benchmark, how):
    calls = {how: functools.partial(stepped, benchmark, how) for how in ("off", how)}
    results = processes.run("horovod", NUMBER, calls, SECONDS, ENVIRONMENT)
    for compiled, plain in zip(results[how], results["off"], strict=True):
        print(json.dumps({benchmark: compiled[2]}))
        assert compiled[2].startswith("forward and backward, and the update")
        np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-9)
        for mine, other in zip(compiled[1], plain[1], strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-11)
