"""Runs functions of a test module in several local processes, under horovod, multiworker or pjrt.

    results = processes.run("horovod", 4, {"sum": functools.partial(check_sum, 3.0), "other": check_other})
    assert results["sum"][2] == 12.0        # what process 2 returned: anything that pickles

Processes take seconds to start: put all calls of a module for one number of processes into one `run`, in a
module-scoped fixture. Every process makes the calls in the given order; the first exception ends it.
"""

import contextlib
import ctypes
import importlib.util
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from common.distributed.replicas import multiworker, pjrt_client
from timetotrain.launch import local, plan

ROOT = pathlib.Path(__file__).resolve().parents[4]
# Time for the other processes to learn from their backend that one has failed, before they are killed.
GRACE_SECONDS = 20
# A machine that other work stops for 20 s, the program's own limit, has lost no process.
_HEARTBEAT_SECONDS = 240
_SHOWN = 4000  # Characters of a process's output that a report shows from its start, and from its end.


class Results(Mapping):
    """The results of the calls by name: a list with one value per process.

    Looking up a call that failed, or was not reached, raises an AssertionError that shows why.
    """

    def __init__(self, names: Sequence[str], by_process: list[dict[str, Any]], report: str):
        self._names, self._by_process, self.report = list(names), by_process, report

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self._names:
            raise KeyError(name)
        assert all(name in values for values in self._by_process), f"{name!r} did not finish\n{self.report}"
        return [values[name] for values in self._by_process]

    def of(self, process: int, name: str) -> Any:
        """The result of one process, also where others failed."""
        assert name in self._by_process[process], f"{name!r} did not finish\n{self.report}"
        return self._by_process[process][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def require(backend: str) -> None:
    """Skips the test where the backend is not installed."""
    if backend == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed (make horovod)")
    if backend == "pjrt" and importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed (make setup)")


def run(
    backend: str,
    processes: int,
    calls: Mapping[str, Callable[[], Any]],
    timeout: float = 300,
    environment: Mapping[str, str] | None = None,
    grace: float = GRACE_SECONDS,
) -> Results:
    """Runs all `calls` (functions of modules, or functools.partial of them) in each of `processes` processes.

    Args:
      backend: "horovod", "multiworker" or "pjrt".
      processes: their number, all on this machine.
      calls: by name; made in this order.
      timeout: seconds after which all are killed; the report then has their stacks.
      environment: further variables, the same for all processes.
      grace: seconds that the others have to end after one has failed, before they are killed.
    """
    require(backend)
    job = local.Job(backend, [], [plan.Host("localhost", processes)])
    launched = local.environments(job, plan.ranks(job.hosts))
    with tempfile.TemporaryDirectory() as folder, launched as environments:
        path = pathlib.Path(folder)
        (path / "calls").write_bytes(pickle.dumps(dict(calls)))
        started = [_start(path, i, {**e, **(environment or {})}) for i, e in enumerate(environments)]
        late = _wait(path, started, timeout, grace)
        by_process = [_read(path / f"result{i}") for i in range(processes)]
        report = _report(path, [p.returncode for p in started], timeout if late else None)
    return Results(list(calls), by_process, report)


def _start(path: pathlib.Path, index: int, environment: Mapping[str, str]) -> subprocess.Popen:
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("HOROVOD_")}
    # One thread per process: there are at least as many processes as cores.
    common = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    with open(path / f"output{index}", "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.common.distributed.replicas.processes", str(path), str(index)],
            cwd=ROOT,
            env={**inherited, **common, "TF_USE_LEGACY_KERAS": "1", **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(path: pathlib.Path, started: list[subprocess.Popen], timeout: float, grace: float) -> bool:
    """Waits until all processes have ended, and kills those left; returns whether the time was up."""
    deadline, failed = time.monotonic() + timeout, False
    while _running(started):
        for i, process in enumerate(started):
            if process.returncode:
                (path / f"done{i}").touch()
        if not failed and any(p.returncode for p in started):
            failed, deadline = True, min(deadline, time.monotonic() + grace)
        if time.monotonic() > deadline:
            for number, seconds in ((signal.SIGABRT, 2), (signal.SIGKILL, 30)):
                _end(started, number, seconds)
            return not failed
        time.sleep(0.05)
    return False


def _running(started: list[subprocess.Popen]) -> int:
    return sum(process.poll() is None for process in started)


def _end(started: list[subprocess.Popen], number: signal.Signals, seconds: float) -> None:
    for process in started:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
    until = time.monotonic() + seconds
    while _running(started) and time.monotonic() < until:
        time.sleep(0.05)


def _read(path: pathlib.Path) -> dict[str, Any]:
    """Reads the results that a process appended, one pickle after another."""
    values: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, EOFError), open(path, "rb") as file:
        while True:
            values.update(pickle.load(file))
    return values


def _report(path: pathlib.Path, codes: Sequence[int], timeout: float | None) -> str:
    lines = [f"killed after {timeout} s"] if timeout else []
    for i, code in enumerate(codes):
        output = (path / f"output{i}").read_text(errors="replace")
        if len(output) > 2 * _SHOWN:  # C++ says why it aborts before the stacks, Python after them.
            output = f"{output[:_SHOWN]}\n[...]\n{output[-_SHOWN:]}"
        lines.append(f"--- process {i}, exit status {code} ---\n{output}")
    return "\n".join(lines)


# -- in each process ------------------------------------------------------------------------------------------------


def _main(path: pathlib.Path, index: int) -> int:
    # It has a session of its own, so that a signal to the test's process group does not end it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG of <linux/prctl.h>.
    multiworker.HEARTBEAT_SECONDS = pjrt_client._HEARTBEAT_SECONDS = _HEARTBEAT_SECONDS
    calls = pickle.loads((path / "calls").read_bytes())
    status = 0
    with open(path / f"result{index}", "wb") as file:
        for name, call in calls.items():
            try:
                pickle.dump({name: call()}, file)
                file.flush()
            except BaseException:
                print(f"in {name!r}:\n{traceback.format_exc()}", flush=True)
                status = 1
                break
    # Some backends treat the end of a process as a fault, so that all stay until all have finished.
    (path / f"done{index}").touch()
    while not status and len(list(path.glob("done*"))) < len(list(path.glob("output*"))):
        time.sleep(0.02)
    return status


if __name__ == "__main__":
    status = _main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
    # Threads of the backends can keep a finished process alive.
    sys.stdout.flush()
    os._exit(status)
