"""One measurement in a process of its own: `python -m lab.bench.gpu.child JOB`, JOB being JSON; children.py starts it.

A job prepares what needs no card, then takes the lock: together with others to compile, alone to measure. It prints a
line of JSON when it waits to measure, when it begins to, and last the result: {"at": ...}, {"result": {...}}.
"""

from __future__ import annotations

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

# What a job is, and the function that does it.
JOBS = {
    "ceilings": "card",
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
    """Who may use the card: one process to measure, or several to compile. The lock ends with the process."""

    def __init__(self, path: str | Path):
        self._path = path

    def _held(self, kind: int) -> Iterator[None]:
        with open(self._path, "a", encoding="utf-8") as file:
            fcntl.flock(file, kind)
            yield

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Compiling, which measures candidates on the card: beside others that compile."""
        yield from self._held(fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Measuring: no other job is on the card."""
        say(at="waiting")
        for _ in self._held(fcntl.LOCK_EX):
            say(at="measuring")
            yield


def say(**what: Any) -> None:
    """A line for the parent."""
    print(json.dumps(what), flush=True)


def jax_of(job: dict) -> Any:
    """jax, with 64-bit numbers and the job's cache of compiled programs."""
    import jax

    jax.config.update("jax_enable_x64", True)
    if job.get("cache"):
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", job["cache"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # XLA's own cache of measured kernels does not ask under which flags they were measured.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    return jax


class Hits:
    """Counts the programs that jax takes from its cache, from the moment this is made."""

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
    # Taking an accelerator's runtime down can take seconds, or hang.
    os._exit(0)


if __name__ == "__main__":
    main()
