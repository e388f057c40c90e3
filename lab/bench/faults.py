"""Injects every fault into runs of two local processes, under horovod and multiworker, and measures the outcome.

A run trains on handwritten digits. The script injects the fault after the run's first block. It measures the seconds
from the fault to the last process's exit, and records the launcher's message, the status in rank 0's log, and leftover
processes.

    python -m lab.bench.faults [--repeats 3] [--backends horovod multiworker] [--faults ...] [--output FILE]

The full disk is a tmpfs of 1 MB if the user may mount one (root), else a limit on the size of rank 0's files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.bench.harness import ROOT, arguments
from lab.bench.harness.results import head, write

START_SECONDS, END_SECONDS = 180, 120
SLOW_SECONDS = 30  # How long a slow run is watched before it is stopped.
LIMITS = {"frozen": 45.0}  # Seconds from fault to last exit; OTHERS holds for all other faults.
OTHERS = 20.0


@dataclasses.dataclass
class Run:
    """A run under the launcher; `pids` by rank."""

    launcher: subprocess.Popen
    folder: Path
    mark: str
    pids: dict[int, int] = dataclasses.field(default_factory=dict)

    def send(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)


def _kill(rank: int) -> Callable[[Run], None]:
    return lambda run: run.send(rank, signal.SIGKILL)


def _signal(rank: int, number: int) -> Callable[[Run], None]:
    return lambda run: run.send(rank, number)


def _fill(run: Run) -> None:
    if os.path.ismount(run.folder):
        with contextlib.suppress(OSError), open(run.folder / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
    else:
        size = max(path.stat().st_size for path in run.folder.rglob("*.partial"))
        resource.prlimit(run.pids[0], resource.RLIMIT_FSIZE, (size, size))


# Fault -> (how to inject it, what the message must say about it).
FAULTS: dict[str, tuple[Callable[[Run], None], str]] = {
    "worker killed": (_kill(1), r"rank 1 was killed by SIGKILL"),
    "rank 0 killed": (_kill(0), r"rank 0 was killed by SIGKILL"),
    "frozen": (_signal(1, signal.SIGSTOP), r"rank 1 is frozen"),
    "rank 0 frozen": (_signal(0, signal.SIGSTOP), r"rank 0 is frozen"),
    "exception": (_signal(1, signal.SIGUSR1), r"rank 1 failed: ArithmeticError: an injected fault"),
    "rank 0 exception": (_signal(0, signal.SIGUSR1), r"rank 0 failed: .*an injected fault"),
    "SIGTERM to rank 0": (_signal(0, signal.SIGTERM), r"rank 0 received SIGTERM"),
    "SIGTERM to rank 1": (_signal(1, signal.SIGTERM), r"rank 1 received SIGTERM"),
    "full disk on rank 0": (_fill, r"rank 0 failed: .*cannot write the log"),
    "slow worker": (_signal(1, signal.SIGUSR2), r"rank 1 is slow"),
}


@contextlib.contextmanager
def started(backend: str, data: Path, small_disk: bool) -> Iterator[Run]:
    """Starts a run that trains forever; its processes carry a mark in their environment."""
    with tempfile.TemporaryDirectory() as name:
        folder, mark = Path(name), f"{time.time_ns()}"
        if small_disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", name], capture_output=True)
        command = [
            sys.executable,
            "-m",
            "timetotrain",
            "launch",
            f"--replicas={backend}",
            "--processes=2",
            "--",
        ]
        command += [
            sys.executable,
            "-m",
            "lab.bench.processes.faulty",
            "--system=cpu-tiny",
            f"--data_dir={data}",
        ]
        command += [f"--result_dir={name}", f"--replicas={backend}", "--config.num_replicas=2"]
        # A small network and an unreachable target, so that only the fault ends the run.
        command += ["--config.model=mlp", "--config.quality_target=2", "--config.train_epochs=100000"]
        environment = {**os.environ, "FAULT_MARK": mark, "TF_NUM_INTRAOP_THREADS": "1"}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        launcher = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        run = Run(launcher, folder, mark)
        try:
            yield run
        finally:
            for pid in marked(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            launcher.wait()
            if os.path.ismount(name):
                subprocess.run(["umount", "-l", name], capture_output=True)


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Returns the environments of living processes that carry the mark."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            data = (path / "environ").read_bytes().decode(errors="replace")
            if f"FAULT_MARK={mark}" in data:
                found[int(path.name)] = dict(x.partition("=")[::2] for x in data.split("\0"))
    return found


def wait_until_it_trains(run: Run) -> None:
    """Waits until a block has ended and the processes' ids are known."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and run.launcher.poll() is None:
        logs = list(run.folder.rglob("result_0.txt.partial"))
        if logs and "block_stop" in logs[0].read_text():
            for pid, environment in marked(run.mark).items():
                if "HOROVOD_RANK" in environment:
                    run.pids[int(environment["HOROVOD_RANK"])] = pid
                elif "TF_CONFIG" in environment:
                    run.pids[json.loads(environment["TF_CONFIG"])["task"]["index"]] = pid
            if len(run.pids) == 2:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the run did not start: {run.launcher.communicate(timeout=10)[1][-2000:]}")


def inject(backend: str, fault: str, data: Path) -> dict[str, Any]:
    """Runs once with one fault; returns the measurements."""
    act, expected = FAULTS[fault]
    with started(backend, data, small_disk="disk" in fault) as run:
        wait_until_it_trains(run)
        slow = fault == "slow worker"
        injected = time.monotonic()
        act(run)
        if slow:
            time.sleep(SLOW_SECONDS)
            lived = run.launcher.poll() is None
            run.launcher.terminate()
            injected = time.monotonic()
        until, ended = injected + END_SECONDS, None
        while time.monotonic() < until:
            if not any(alive(pid) for pid in run.pids.values()):
                ended = time.monotonic() - injected
                break
            time.sleep(0.02)
        text = run.launcher.communicate(timeout=END_SECONDS)[1]
        left = len(marked(run.mark))
        kind = "warning: " if slow else "error: "
        messages = [line for line in text.splitlines() if line.startswith(kind)]
        # The launcher's line comes after rank 0's own last words.
        message = re.sub(r"; \S*result_0", "; result_0", messages[-1]) if messages else ""
        limit = LIMITS["frozen"] if "frozen" in fault else OTHERS
        return {
            "seconds": round(ended, 1) if ended is not None else None,
            "exit_status": run.launcher.returncode,
            "message": re.sub(r"rank 0 failed: \S*result_0", "rank 0 failed: result_0", message),
            "messages": len(messages),
            "named": bool(messages) and re.search(expected, messages[-1]) is not None,
            "log": log_status(run.folder),
            "orphans": left,
            "in_time": ended is not None and ended <= limit,
            **({"lived_on": lived} if slow else {}),
        }


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def log_status(folder: Path) -> str:
    """Returns the status of run_stop in the one finished log, or a description of what is there instead."""
    logs = sorted(path.name for path in folder.rglob("result_0.txt*"))
    if logs != ["result_0.txt"]:
        return f"files {', '.join(logs) or 'none'}"
    last = json.loads(next(folder.rglob("result_0.txt")).read_text().splitlines()[-1].partition(" ")[2])
    return last["metadata"].get("status", "") if last["key"] == "run_stop" else f"ends in {last['key']}"


def main() -> None:
    parser = arguments.parser(__doc__, "faults.json")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=["horovod", "multiworker"])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    options = parser.parse_args()
    about = {**head("horovod"), "processes": 2}
    found: dict[str, dict[str, list]] = {}
    if options.output.exists():  # Faults that are not requested keep their results.
        found = json.loads(options.output.read_text())["runs"]
    with tempfile.TemporaryDirectory() as data:
        subprocess.run([sys.executable, "-m", "mnist.tiny", data], cwd=ROOT, check=True, capture_output=True)
        for fault in options.faults:
            for backend in options.backends:
                runs = found.setdefault(backend, {})[fault] = []
                for _ in range(options.repeats):
                    runs.append(inject(backend, fault, Path(data)))
                    print(backend, fault, json.dumps(runs[-1]), flush=True)
                write({**about, "runs": found}, options.output)
    print(table(found))


def table(found: dict[str, dict[str, list]]) -> str:
    """Returns the rows of the table in docs/reliability.md."""
    lines = ["| fault | backend | seconds | message | log |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        for backend, faults in found.items():
            if runs := faults.get(fault):
                seconds = ", ".join("hung" if r["seconds"] is None else f"{r['seconds']:.1f}" for r in runs)
                logs = ", ".join(sorted({r["log"] for r in runs}))
                lines.append(f"| {fault} | {backend} | {seconds} | {runs[0]['message']} | {logs} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
