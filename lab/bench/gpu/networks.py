"""The card's ceilings, and our exported steps: compiles, compares with the export's values, times."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.distributed import pjrt_program
from lab.bench.gpu.child import Hits, Turn, jax_of
from lab.bench.harness import figures
from lab.bench.harness.replayed import Replay
from lab.bench.replay import read
from systems.compile import hlo, launches

# A 4 GiB copy and an 8192 x 8192 product saturate a card; a CPU gets small ones.
_SIZES = {"gpu": (1 << 30, 8192, 20), "cpu": (1 << 22, 512, 3)}
_ROUNDS = 3


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
        first, second = (jnp.asarray(x).astype(jnp.bfloat16) for x in sides)
        copy_seconds = _seconds(lambda: copied(words), repeats)
        product_seconds = _seconds(lambda: product(first, second), repeats)
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


class Prepared(Replay):
    """A replay that makes its arguments' first values before it compiles, so that the card never waits for them."""

    def __init__(self, folder: Path, manifest: dict, program: dict):
        super().__init__(folder, manifest, program)
        self._values = {a["name"]: super(Prepared, self)._first(a["name"]) for a in program["arguments"]}

    def _first(self, name: str, replica: int = 0) -> Any:
        return self._values[name]


def _programs(job: dict, values: bool = True) -> tuple[Path, dict, list[dict]]:
    folder = Path(job["export"])
    manifest = read(folder, values)
    return folder, manifest, [p for p in manifest["programs"] if p["kind"] == "train"]


def exported_step(job: dict, values: bool = True) -> tuple[Path, dict, dict]:
    """Returns an export's folder, its manifest and its first training step, as `Replay` takes them."""
    folder, manifest, (program, *_) = _programs(job, values)
    return folder, manifest, program


def compile(job: dict, turn: Turn) -> dict[str, Any]:  # noqa: A001, the job's name
    """Compiles a step into jax's cache, possibly beside other compiling jobs; returns what it launches and moves."""
    jax_of(job)
    replay, hits = Replay(*exported_step(job)), Hits()
    with turn.together():
        replay.compile()
    return {
        "compile_seconds": replay.compile_seconds,
        "from_cache": hits.count > 0,
        **launches.launches(hlo.Program(replay.compiled.as_text())),
    }


def check(job: dict, turn: Turn) -> dict[str, Any]:
    """Compares three steps' losses and the state after the first with the export's, judged as in lab.bench.replay."""
    jax_of(job)
    folder, manifest, programs = _programs(job)
    row: dict[str, Any] = {"precision": manifest["precision"], "programs": []}
    for program in programs:
        prepared = Prepared(folder, manifest, program)
        with turn.together():
            prepared.compile()
            report = {"program": program["name"], "chooses": manifest["chooses"], **prepared.check()}
        report["differs"] = figures.verdict(report, manifest["precision"], False, None)
        row["programs"].append(report)
    row["equal"] = not any(report["differs"] for report in row["programs"])
    for what in ("state_error", "change_error"):
        row[what] = max((r[what] for r in row["programs"]), key=lambda error: error["relative"])
    row["loss_error"] = max(max(report["loss_errors"]) for report in row["programs"])
    return row


def step(job: dict, turn: Turn) -> dict[str, Any]:
    """Measures the milliseconds of a step, memory and bytes of its compiled program, losses of the first steps."""
    jax = jax_of(job)
    folder, manifest, program = exported_step(job)
    prepared, hits = Prepared(folder, manifest, program), Hits()
    with turn.together():
        prepared.compile()
    with turn.alone():
        prepared.reset()
        losses = [float(pjrt_program.first(prepared.step()[0])) for _ in range(3)]
        seconds = _timed(prepared, job)
        row = figures.speed(prepared, seconds, figures.peak_of(jax.devices()[0], manifest["precision"]))
    return {
        "network": manifest["benchmark"],
        "batch": manifest["batch"]["train"],
        "precision": manifest["precision"],
        "losses": losses,
        **row,
        "from_cache": hits.count > 0,
        "spread": (max(seconds) - min(seconds)) / statistics.median(seconds),
    }


def _timed(replayed: Replay, job: dict) -> list[float]:
    """Returns the seconds per step in each round; a round has as many steps as `seconds_of_round` allows."""
    (one,) = replayed.time(1, 1, 2)
    steps = max(2, min(job.get("steps", 20), int(job.get("seconds_of_round", 1.5) / one)))
    return replayed.time(2, job.get("rounds", 3), steps)
