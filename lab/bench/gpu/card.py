"""Describes the card, and measures its ceilings: the rate of copies and of matrix products."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.gpu.child import Turn, jax_of
from lab.bench.harness import ROOT

_ASKED = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit")
_PACKAGES = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "optax", "numpy", "torch", "triton"),
    *("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cublas", "tensorflow", "tensorflow-cpu", "tf-keras"),
)
# A 4 GiB copy and an 8192 x 8192 product saturate a card; a CPU gets small ones.
_SIZES = {"gpu": (1 << 30, 8192, 20), "cpu": (1 << 22, 512, 3)}
_ROUNDS = 3


def described() -> dict[str, Any]:
    """Returns card and driver from nvidia-smi, the host's processors, and versions, without starting jax."""
    found: dict[str, Any] = {}
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
        with_gpu = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        rows = [line.split(", ") for line in with_gpu.stdout.strip().splitlines()]
        if with_gpu.returncode == 0 and rows:
            found = dict(zip(_ASKED, rows[0])) | {"count": len(rows)}
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"nvidia_smi": found, "cores": os.cpu_count(), "versions": versions}


def ceilings(job: dict, turn: Turn) -> dict[str, Any]:
    """Measures bytes per second of a copy (reads plus writes), FLOPs per second of a bf16 product of random numbers."""
    jax = jax_of(job)
    import jax.numpy as jnp

    device = jax.devices()[0]
    length, side, repeats = _SIZES["cpu" if device.platform == "cpu" else "gpu"]
    copied, product = jax.jit(lambda x: x + 1), jax.jit(lambda x, y: x @ y)
    random = np.random.default_rng(0)
    sides = [random.standard_normal([side, side], np.float32) for _ in range(2)]
    with turn.alone():
        # float32: 4 bytes per element. A copy could use ones, but a product of zeros or ones runs faster.
        words = jnp.asarray(random.integers(0, 1 << 30, 1 << 20, np.int32))
        words = jnp.tile(words, length >> 20)
        left, right = (jnp.asarray(x).astype(jnp.bfloat16) for x in sides)
        copy_seconds = _seconds(lambda: copied(words), repeats)
        product_seconds = _seconds(lambda: product(left, right), repeats)
        stats = device.memory_stats() or {}
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "copy_gb_per_second": 2 * 4 * length / copy_seconds / 1e9,
        "copy_gb": 2 * 4 * length / 1e9,
        "product_tflops": 2 * side**3 / product_seconds / 1e12,
        "product_side": side,
        "memory_limit_gb": stats.get("bytes_limit", 0) / 1e9,
    }


def forecast(job: dict, turn: Turn) -> dict[str, Any]:
    """Returns the minutes of `timetotrain forecast` on one such card, and the step's time that they imply."""
    from systems.forecast.convergence import EXAMPLES

    manifest = json.loads((Path(job["export"]) / "manifest.json").read_text())
    name, batch = manifest["benchmark"], manifest["batch"]["train"]
    system = "h100-1" if "H100" in described()["nvidia_smi"].get("name", "") else "h200-1"
    command = [sys.executable, "-m", "timetotrain", "forecast", name, f"--system={system}", "--json"]
    told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout)
    rate = told["epochs"] * EXAMPLES[name] / told["minutes"] / 60
    minutes = {"minutes": told["minutes"], "interval_minutes": told["interval_minutes"], "system": system}
    return {**minutes, "ms": 1000 * batch / rate, "examples_per_second": rate}


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    """Returns the seconds per call in the best of several rounds: other work only adds time."""
    call().block_until_ready()
    rounds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(repeats):
            result = call()
        result.block_until_ready()
        rounds.append((time.perf_counter() - began) / repeats)
    return min(rounds)
