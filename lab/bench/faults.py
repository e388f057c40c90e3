"""Injects faults into runs of local processes under every backend; the launcher starts each failed run again.

Each run trains on handwritten digits. A fault has a kind, a rank, a moment (at the start, at the first checkpoint, in
the middle), a backend and a number of processes. The script measures whether the run came back by itself to the weights
of an undisturbed run, bit for bit, or ended as somebody asked, and how many seconds it took longer. "full disk" is the
kernel's limit on a file's size, which the rank meets at its next write; "bit flip" is of a weight, for the guard.

    python -m lab.bench.faults [--count N] [--backends multiworker pjrt horovod] [--kinds ...] [--processes 2 4]

It is resumable: the file keeps each fault's outcome, and a fault with one is not injected again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.harness import launched, scripts
from lab.bench.harness.scripts import head, write
from lab.bench.processes import faulty

STEPS, END_SECONDS = 420, 600
# Kind -> (signal, what the launcher's message must say; its exit status if it must not start the run again).
KINDS: dict[str, tuple[int, str, int]] = {
    "killed": (signal.SIGKILL, "was killed by SIGKILL", 0),
    "frozen": (signal.SIGSTOP, "is frozen", 0),
    "exception": (signal.SIGUSR1, "failed: ArithmeticError: an injected fault|ended with exit status", 0),
    "aborted": (signal.SIGABRT, "was killed by SIGABRT", 0),
    "segmentation fault": (signal.SIGSEGV, "was killed by SIGSEGV", 0),
    "terminated": (signal.SIGTERM, "received SIGTERM|SIGTERM during|failed: SIGTERM", 143),
    "full disk": (0, "failed: .*File too large", 0),
    "input stall": (faulty.STALL, "makes no progress: it waits for its input", 0),
    "wrong clock": (faulty.CLOCK, "", 0),
    "bit flip": (faulty.FLIP, "failed: rank \\d computed wrong", 0),
}
LIMITS = ("--max_restarts=1", "--progress_seconds=20", "--phase_seconds=180")
# The least step of the newest checkpoint then.
MOMENTS = {"starts": 0, "first checkpoint": 1, "middle": 200}
RUN = (f"--config.train_steps={STEPS}", "--config.seed=1", "--guard_steps=28")


def undisturbed(backend: str, processes: int, data: Path) -> tuple[str, float]:
    """Returns the weights' digest and the seconds of a run without a fault."""
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        run = launched.Launched(Path(name), data, backend, processes, [], *RUN, f"--checkpoint_dir={name}/c")
        try:
            run.launcher.wait(END_SECONDS)
            return weights(Path(name, "c")), time.monotonic() - began
        finally:
            run.close()


def newest(folder: Path) -> int:
    """Returns the step of the newest checkpoint; 0 without one."""
    return max((int(path.stem.rpartition("_")[2]) for path in folder.glob("checkpoint_*.npz")), default=0)


def weights(folder: Path) -> str:
    """Returns the digest of the arrays of the last step's checkpoint; "" if there is none."""
    path = folder / f"checkpoint_{STEPS:08d}.npz"
    if not path.exists():
        return ""
    with np.load(path) as file:
        arrays = {name: file[name].tobytes() for name in sorted(file.files) if name != "meta"}
    return hashlib.sha256(b"".join(name.encode() + data for name, data in arrays.items())).hexdigest()


def _strike(pid: int, number: int) -> None:
    if number:
        os.kill(pid, number)
    else:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))


def inject(
    backend: str, processes: int, kind: str, rank: int, moment: str, data: Path, usual: Any
) -> dict[str, Any]:
    """Runs once with one fault; `usual` is of `undisturbed`. Returns the outcome."""
    number, message, status = KINDS[kind]
    with tempfile.TemporaryDirectory() as name:
        began, folder = time.monotonic(), Path(name, "c")
        run = launched.Launched(
            Path(name), data, backend, processes, LIMITS, *RUN, f"--checkpoint_dir={folder}"
        )
        try:
            while time.monotonic() - began < END_SECONDS and run.launcher.poll() is None:
                ready = newest(folder) >= MOMENTS[moment]
                if (
                    ready
                    and rank in (pids := run.pids())
                    and (MOMENTS[moment] or time.monotonic() - began > 4)
                ):
                    _strike(pids[rank], number)
                    break
                time.sleep(0.1)
            with contextlib.suppress(Exception):
                run.launcher.wait(END_SECONDS)
            hung, code, text = run.launcher.poll() is None, run.launcher.poll(), run.text
        finally:
            run.close()
        ended = weights(folder)
        equal = ended == usual[0] != ""
        return {
            "hung": hung,
            "status": code,
            "named": re.search(rf"error: rank {rank} ({message})", text) is not None,
            "came_back": "restart 1 of 1" in text and bool(ended),
            "equal": equal,
            "as_it_should": not hung and (code == status if status else code == 1 and equal),
            "seconds_lost": round(time.monotonic() - began - usual[1], 1),
            "left": len(launched.marked(run.mark)),
            "message": next((line for line in text.splitlines() if line.startswith("error: ")), ""),
        }


def main() -> None:
    parser = scripts.parser(__doc__, "faults.json")
    parser.add_argument("--count", type=int, default=1000, help="faults to inject at most (%(default)s)")
    parser.add_argument("--backends", nargs="+", default=list(launched.BACKENDS), choices=launched.BACKENDS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    options = parser.parse_args()
    result: dict[str, Any] = {**head("horovod"), "steps": STEPS, "undisturbed": {}, "matrix": {}}
    if options.output.exists():
        result = {**result, **json.loads(options.output.read_text())}
    faults = list(itertools.product(options.backends, options.processes, options.kinds, (0, 1), MOMENTS))
    random.Random(0).shuffle(faults)  # The first few cover all of them.
    usual = result["undisturbed"]
    with launched.digits() as data:
        for repeat in itertools.count():
            for backend, processes, kind, rank, moment in faults:
                key = f"{backend}/{kind}/{rank}/{moment}/{processes}/{repeat}"
                if key in result["matrix"]:
                    continue
                if len(result["matrix"]) >= options.count:
                    print(summary(result["matrix"]))
                    return
                if (same := f"{backend}/{processes}") not in usual:
                    usual[same] = undisturbed(backend, processes, data)
                outcome = inject(backend, processes, kind, rank, moment, data, usual[same])
                result["matrix"][key] = outcome
                print(key, json.dumps(result["matrix"][key]), flush=True)
                write(result, options.output)


def summary(matrix: dict[str, dict[str, Any]]) -> str:
    """Returns the sentence of docs/reliability.md about the injected faults."""
    restarted = [each for key, each in matrix.items() if "/terminated/" not in key]
    equal = [each for each in restarted if each["equal"]]
    lost = [each["seconds_lost"] for each in equal] or [0.0]
    seconds = f"median {np.median(lost):.0f}, 99th {np.percentile(lost, 99):.0f}"
    return (
        f"{len(matrix)} faults: {sum(e['as_it_should'] for e in matrix.values())} ended as they should, "
        f"{sum(e['hung'] for e in matrix.values())} hung; of {len(restarted)} that nobody asked for, {len(equal)} came "
        f"back by themselves to equal weights; seconds lost: {seconds}"
    )


if __name__ == "__main__":
    main()
