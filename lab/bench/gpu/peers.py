"""The same networks as PyTorch and flax users write them, on the same card; the code is in lab/bench/contenders."""

import importlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.gpu.child import Hits, Turn, jax_of


class Flax:
    """A contender's step, compiled with donated state, and its arguments: random numbers, made without a card."""

    def __init__(self, job: dict):
        self.jax = jax_of(job)
        # The contenders are written for jax's default of 32-bit numbers.
        self.jax.config.update("jax_enable_x64", False)
        module = importlib.import_module(f"lab.bench.contenders.{job['module']}")
        step, self._shapes, self._donated = module.make_step(**job["keywords"])
        self._lowered = self.jax.jit(step, donate_argnums=tuple(range(self._donated))).lower(*self._shapes)
        self._arguments: tuple = ()

    def compile(self) -> float:
        """Compiles; returns the seconds that it took."""
        began = time.perf_counter()
        self.compiled = self._lowered.compile()
        return time.perf_counter() - began

    def make(self) -> None:
        """Makes the arguments' values in host memory."""
        random = np.random.default_rng(0)

        def value(shape: Any) -> np.ndarray:
            if np.issubdtype(shape.dtype, np.integer):
                # Labels, tokens and counters, all in range. As segment ids, ones mask nothing.
                return np.ones(shape.shape, shape.dtype)
            # Not negative, because variances and second moments are not, and small enough for sums of products.
            return (random.random(shape.shape, np.float32) * 0.05).astype(shape.dtype)

        self._arguments = self.jax.tree.map(value, self._shapes)

    def time(self, rounds: int, steps: int) -> tuple[list[float], float]:
        """Returns the seconds per step in each round, and the last loss."""
        state = list(self.jax.device_put(self._arguments[: self._donated]))
        rest = self.jax.device_put(self._arguments[self._donated :])
        seconds = []
        for i in range(rounds + 1):
            began = time.perf_counter()
            for _ in range(steps if i else 5):
                *state, loss = self.compiled(*state, *rest)
            loss.block_until_ready()
            seconds.append((time.perf_counter() - began) / steps)
        return seconds[1:], float(loss)


def flax(job: dict, turn: Turn) -> dict[str, Any]:
    """Measures the milliseconds of a contender's step."""
    network, hits = Flax(job), Hits()
    network.make()
    with turn.together():
        compile_seconds = network.compile()
    with turn.alone():
        seconds, loss = network.time(job.get("rounds", 3), job.get("steps", 20))
        memory = (network.jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    analysis = network.compiled.cost_analysis() or {}
    return {
        **_times(seconds, job["keywords"]["batch"]),
        "keywords": job["keywords"],
        "loss": loss,
        "compile_seconds": compile_seconds,
        "from_cache": hits.count > 0,
        "compiler_gb_accessed": analysis.get("bytes accessed", 0.0) / 1e9,
        "peak_memory_gb": memory / 1e9,
    }


def _times(seconds: list[float], batch: int) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "ms": 1000 * median,
        "ms_of_rounds": [round(1000 * s, 3) for s in seconds],
        "examples_per_second": batch / median,
        "batch": batch,
    }


def torch(job: dict, turn: Turn, compiled: bool = False) -> dict[str, Any]:
    """Measures the milliseconds of PyTorch's step for an export's network: eager, or with torch.compile."""
    import torch as pytorch

    from lab.bench.contenders.torch_networks import NETWORKS
    from lab.bench.contenders.torch_step import DTYPES, stepper

    manifest = json.loads((Path(job["export"]) / "manifest.json").read_text())
    if manifest["benchmark"] not in NETWORKS or manifest["precision"] not in DTYPES:
        sys.exit(f"error: {manifest['benchmark']} in {manifest['precision']}: PyTorch's networks lack it")
    cuda = pytorch.cuda.is_available()
    pytorch.backends.cudnn.benchmark = True
    pytorch.set_float32_matmul_precision("high")  # TF32, XLA's default.
    pytorch.manual_seed(0)

    def rounds(number: int, steps: int) -> list[float]:
        seconds = []
        for _ in range(number):
            began = time.perf_counter()
            for _ in range(steps):
                loss = step()
            losses.append(float(loss))
            seconds.append((time.perf_counter() - began) / steps)
        return seconds

    losses: list[float] = []
    device = "cuda" if cuda else "cpu"
    compile_seconds = 0.0
    if compiled:  # The first step compiles, possibly beside other compiling jobs.
        with turn.together():
            network = NETWORKS[manifest["benchmark"]](manifest, device)
            step = stepper(network, manifest, device, True)
            compile_seconds = rounds(1, 1)[0]
    with turn.alone():
        if not compiled:
            network = NETWORKS[manifest["benchmark"]](manifest, device)
            step = stepper(network, manifest, device, False)
        rounds(1, 5)
        seconds = rounds(job.get("rounds", 3), job.get("steps", 20))
    return {
        **_times(seconds, manifest["batch"]["train"]),
        "loss": losses[-1],
        "version": pytorch.__version__,
        "compile_seconds": compile_seconds,
        "parameters": sum(p.numel() for p in network[0].parameters()),
        "parameters_of_the_export": manifest["parameters"],
        "peak_memory_gb": pytorch.cuda.max_memory_allocated() / 1e9 if cuda else None,
    }


def torch_compiled(job: dict, turn: Turn) -> dict[str, Any]:
    """`torch` with torch.compile."""
    return torch(job, turn, compiled=True)
