"""Runs one measurement in its own process: `python -m lab.bench.gpu.child JOB`. JOB is JSON; children.py starts it.

A job first prepares whatever needs no card. Then it takes the lock: shared to compile, exclusive to measure. It prints
JSON lines: {"at": ...} when it waits to measure and when it begins, and {"result": {...}} at the end.
"""

import contextlib
import fcntl
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Job -> module of its function.
JOBS = {
    "ceilings": "card",
    "forecast": "card",
    "compile": "networks",
    "check": "networks",
    "step": "networks",
    "flax_compile": "peers",
    "flax": "peers",
    "torch": "peers",
    "torch_compiled": "peers",
    "train": "training",
    "loop": "training",
}


class Turn:
    """A lock on the card: one process may measure, or several may compile. It is released when the process ends."""

    def __init__(self, path: str | Path):
        self._path = path

    def _held(self, kind: int) -> Iterator[None]:
        with open(self._path, "a", encoding="utf-8") as file:
            fcntl.flock(file, kind)
            yield

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Compiling, which tests candidates on the card: other jobs may compile at the same time."""
        yield from self._held(fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Measuring: no other job uses the card."""
        say(at="waiting")
        for _ in self._held(fcntl.LOCK_EX):
            say(at="measuring")
            yield


def say(**what: Any) -> None:
    """Prints a line for the parent."""
    print(json.dumps(what), flush=True)


def jax_of(job: dict) -> Any:
    """Returns jax, set up with 64-bit numbers and the job's compilation cache."""
    import jax

    jax.config.update("jax_enable_x64", True)
    if job.get("cache"):
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", job["cache"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # XLA's own cache of measured kernels ignores the flags under which they were measured.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    return jax


class Hits:
    """Counts the programs that jax takes from its cache after this object is created."""

    def __init__(self) -> None:
        import jax

        self.count = 0
        jax.monitoring.register_event_listener(self._heard)

    def _heard(self, event: str, **_: Any) -> None:
        self.count += event == "/jax/compilation_cache/cache_hits"


def main() -> None:
    job = json.loads(sys.argv[1])
    began = time.monotonic()
    module = importlib.import_module(f"lab.bench.gpu.{JOBS[job['job']]}")
    result = getattr(module, job["job"])(job, Turn(job["lock"]))
    say(result={**result, "process_seconds": round(time.monotonic() - began, 1)})
    sys.stdout.flush()
    # Shutting down an accelerator's runtime can take seconds, or hang.
    os._exit(0)


if __name__ == "__main__":
    main()
