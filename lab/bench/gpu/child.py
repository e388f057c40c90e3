"""Runs measurements as processes, several at a time. If one hangs or dies, only its row is lost.

`python -m lab.bench.gpu.child JOB` is such a process; JOB is JSON. A job first prepares whatever needs no card. Then it
takes the lock: shared to compile, exclusive to measure. It prints JSON lines: {"at": ...} when it waits to measure and
when it begins, and {"result": {...}} at the end. PyTorch's interpreter runs this module, without our dependencies.
"""

import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
# Job -> module of its function.
JOBS = {
    "ceilings": "networks",
    "compile": "networks",
    "check": "networks",
    "step": "networks",
    "flax": "peers",
    "torch": "peers",
    "torch_compiled": "peers",
    "train": "training",
    "loop": "training",
    "attention": "llama",
    "full_step": "llama",
}


class Turn:
    """A lock on the card: one process may measure, or several may compile. It is released when the process ends."""

    def __init__(self, path: str | Path):
        self._path = path

    @contextlib.contextmanager
    def together(self, kind: int = fcntl.LOCK_SH) -> Iterator[None]:
        """Compiling, which tests candidates on the card: other jobs may compile at the same time."""
        with open(self._path, "a", encoding="utf-8") as file:
            fcntl.flock(file, kind)
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Measuring: no other job uses the card."""
        say(at="waiting")
        with self.together(fcntl.LOCK_EX):
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
        jax.monitoring.register_event_listener(self._on_event)

    def _on_event(self, event: str, **_: Any) -> None:
        self.count += event == "/jax/compilation_cache/cache_hits"


_LOOK_SECONDS = 0.1
_LONGEST_MESSAGE = 400


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
      name: name of its row in the results, such as step/resnet; "" for work that has no row.
      job: job for child.py.
      seconds: time limit of each phase: until it waits to measure, and from the start of measuring.
      flags: XLA flags, added to those in the environment.
      environment: other environment variables of the process.
    """

    name: str
    job: Mapping[str, Any]
    seconds: float
    flags: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Child:
    """The process of a row."""

    def __init__(self, row: Row, python: str):
        self.row, self.result, self._at = row, None, ""
        self._began = self._since = time.monotonic()
        flags = f"{os.environ.get('XLA_FLAGS', '')} {row.flags}".strip()
        # Several processes share the card's memory, so none may take it all at its start.
        settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": flags}
        # Files, not pipes: nobody would drain the pipes of a killed process.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [python, "-m", "lab.bench.gpu.child", json.dumps(row.job)],
            cwd=ROOT,
            env={**os.environ, **settings, **row.environment},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            message = json.loads(line)
            if "at" in message:
                self._at, self._since = message["at"], time.monotonic()
            self.result = message.get("result", self.result)

    def ended(self, deadline: float) -> bool:
        """Whether the process has ended; ends it when its phase or the whole time is over."""
        if self._process.poll() is not None:
            self._reader.join(5)
            return True
        now = time.monotonic()
        late = self._at != "waiting" and now - self._since > self.row.seconds
        if late or now > deadline:
            self._kill()
            if self.result is None:
                self.result = {"error": f"not done after {self.row.seconds:.0f} s"} if late else {"cut": True}
            return True
        return False

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def outcome(self) -> dict[str, Any]:
        """Returns the row's figures and seconds, or {"error": ...}, or {"cut": True} if the time was over."""
        result = self.result
        if result is None:
            self._errors.seek(0)
            result = {"error": _message(self._errors.read(), self._process.returncode)}
        self._errors.close()
        return {**result, "wall_seconds": round(time.monotonic() - self._began, 1)}


def _message(errors: str, status: int) -> str:
    """Returns the line of a process's standard error that says why it ended."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [
        line for line in lines if any(w in line for w in ("Error", "error:", "Unknown flag", "RESOURCE"))
    ]
    line = (telling or lines or ["no message"])[-1]
    return f"exit status {status}: {line[:_LONGEST_MESSAGE]}"


def run(
    rows: Iterable[Row], at_a_time: int, deadline: float, done: Callable[[Row, dict], None], python: str = ""
) -> None:
    """Runs the rows in order, `at_a_time` together, and calls `done(row, outcome)` as each ends.

    At `deadline` (of time.monotonic) it ends running rows and starts no more.
    """
    waiting, running = list(rows), []
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time and time.monotonic() < deadline:
                running.append(Child(waiting.pop(0), python or sys.executable))
            for child in [child for child in running if child.ended(deadline)]:
                running.remove(child)
                done(child.row, child.outcome())
            if not running and time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)
    finally:
        for child in running:  # The parent was interrupted.
            child._kill()


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
