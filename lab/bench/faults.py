"""Injects faults into runs of local processes under every backend; the launcher starts each failed run again.

Each run trains on handwritten digits. A fault has a kind, a rank, a moment (at the start, at the first checkpoint, in
the middle) and a backend. The script measures whether the run came back by itself to the weights of an undisturbed run,
bit for bit, or ended as somebody asked, and how many seconds it took longer.

    python -m lab.bench.faults [--count N] [--backends multiworker pjrt horovod] [--kinds ...] [--output FILE]

It is resumable: the file keeps each fault's outcome, and a fault with one is not injected again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.harness import launched, scripts
from lab.bench.harness.scripts import head, write

STEPS, END_SECONDS = 420, 600
# Kind -> (signal, what the launcher's message must say; its exit status if it must not start the run again).
KINDS: dict[str, tuple[int, str, int]] = {
    "killed": (signal.SIGKILL, "was killed by SIGKILL", 0),
    "frozen": (signal.SIGSTOP, "is frozen", 0),
    "exception": (signal.SIGUSR1, "failed: ArithmeticError: an injected fault|ended with exit status", 0),
    "aborted": (signal.SIGABRT, "was killed by SIGABRT", 0),
    "segmentation fault": (signal.SIGSEGV, "was killed by SIGSEGV", 0),
    "terminated": (signal.SIGTERM, "received SIGTERM|SIGTERM during|failed: SIGTERM", 143),
}
# The least step of the newest checkpoint then.
MOMENTS = {"starts": 0, "first checkpoint": 1, "middle": 200}
RUN = (f"--config.train_steps={STEPS}", "--config.seed=1")


def undisturbed(backend: str, data: Path) -> tuple[dict[str, np.ndarray], float]:
    """Returns the weights and the seconds of a run without a fault."""
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        run = launched.Launched(Path(name), data, backend, 2, [], *RUN, f"--checkpoint_dir={name}/c")
        try:
            run.launcher.wait(END_SECONDS)
            return weights(Path(name, "c")), time.monotonic() - began
        finally:
            run.close()


def newest(folder: Path) -> int:
    """Returns the step of the newest checkpoint; 0 without one."""
    return max((int(path.stem.rpartition("_")[2]) for path in folder.glob("checkpoint_*.npz")), default=0)


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the last step's checkpoint; {} if there is none."""
    path = folder / f"checkpoint_{STEPS:08d}.npz"
    if not path.exists():
        return {}
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "meta"}


def inject(backend: str, kind: str, rank: int, moment: str, data: Path, usual: Any) -> dict[str, Any]:
    """Runs once with one fault; `usual` is of `undisturbed`. Returns the outcome."""
    number, message, status = KINDS[kind]
    with tempfile.TemporaryDirectory() as name:
        began, folder = time.monotonic(), Path(name, "c")
        flags = ["--max_restarts=1"]
        run = launched.Launched(Path(name), data, backend, 2, flags, *RUN, f"--checkpoint_dir={folder}")
        try:
            while time.monotonic() - began < END_SECONDS and run.launcher.poll() is None:
                ready = newest(folder) >= MOMENTS[moment]
                if (
                    ready
                    and rank in (pids := run.pids())
                    and (MOMENTS[moment] or time.monotonic() - began > 4)
                ):
                    os.kill(pids[rank], number)
                    break
                time.sleep(0.1)
            with contextlib.suppress(Exception):
                run.launcher.wait(END_SECONDS)
            hung, code, text = run.launcher.poll() is None, run.launcher.poll(), run.text
        finally:
            run.close()
        ended = weights(folder)
        equal = ended.keys() == usual[0].keys() and all(
            np.array_equal(value, usual[0][key]) for key, value in ended.items()
        )
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
    options = parser.parse_args()
    result: dict[str, Any] = {**head("horovod"), "processes": 2, "steps": STEPS, "matrix": {}}
    if options.output.exists():
        result = {**result, **json.loads(options.output.read_text())}
    faults = list(itertools.product(options.backends, options.kinds, (0, 1), MOMENTS))
    random.Random(0).shuffle(faults)  # The first few cover all of them.
    usual: dict[str, Any] = {}
    with launched.digits() as data:
        for repeat in itertools.count():
            for backend, kind, rank, moment in faults:
                key = f"{backend}/{kind}/{rank}/{moment}/{repeat}"
                if key in result["matrix"]:
                    continue
                if len(result["matrix"]) >= options.count:
                    print(summary(result["matrix"]))
                    return
                if backend not in usual:
                    usual[backend] = undisturbed(backend, data)
                result["matrix"][key] = inject(backend, kind, rank, moment, data, usual[backend])
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
