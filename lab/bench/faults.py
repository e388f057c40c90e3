"""Injects faults into runs of local processes under every backend; the launcher starts each failed run again.

Each run trains on handwritten digits. A fault has a kind, a rank, a moment (while the processes start, at the first
checkpoint after that, between later ones), a backend and a number of processes. Several faults strike a run one after
the other. All of them count as survived if its final weights are those of an undisturbed run, bit for bit, and none if
they are not; a run that SIGTERM ends is started again by the same command to see that. The seconds lost are those from
a fault to the next checkpoint, or to the next fault if that strikes before. "full disk" is the kernel's limit on a
file's size, which the rank meets at its next write; "bit flip" is of a weight, for the guard. "partition" drops all
packets between the ranks for a minute, and needs root.

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.harness import faulty, launched, scripts
from lab.bench.harness.scripts import head, write

EPOCH = launched.Launched.steps_per_block
CHAIN = 8  # Faults that strike a run, one after the other.
STEPS, END_SECONDS = 4 * CHAIN * EPOCH, 1800
START_SECONDS = 4.0  # From the start of a process to a fault at the start.
CUT_SECONDS = 60.0  # Longer than the backends wait for a sign of life, 20 s.
UNDISTURBED = 2 * EPOCH  # A run that goes on for so many steps after a fault is not disturbed.
# Kind -> (signal, what the launcher's message must say; its exit status if it must not start the run again).
KINDS: dict[str, tuple[int, str, int]] = {
    "killed": (signal.SIGKILL, "was killed by SIGKILL", 0),
    "frozen": (signal.SIGSTOP, "is frozen", 0),
    "exception": (faulty.RAISE, "failed: ArithmeticError: an injected fault|ended with exit status", 0),
    "aborted": (signal.SIGABRT, "was killed by SIGABRT", 0),
    "segmentation fault": (signal.SIGSEGV, "was killed by SIGSEGV", 0),
    "terminated": (signal.SIGTERM, "(was killed by|received|failed:) SIGTERM|SIGTERM during", 143),
    "full disk": (0, "failed: .*File too large", 0),
    "input stall": (faulty.STALL, "makes no progress: it waits for its input", 0),
    "wrong clock": (faulty.CLOCK, "", 0),
    "bit flip": (faulty.FLIP, "failed: rank \\d computed wrong", 0),
    "partition": (0, "(lost|failed: |was killed by SIGABRT)", 0),
}
LIMITS = ("--max_restarts=8", "--progress_seconds=60", "--phase_seconds=180")
# Steps that the run has gone on for, since the fault before.
MOMENTS = {"starts": 0, "first checkpoint": 1, "middle": EPOCH + 1}
RUN = (f"--config.train_steps={STEPS}", "--config.seed=1", "--guard_steps=28")


def undisturbed(backend: str, processes: int, data: Path) -> str:
    """Returns the weights' digest of a run without a fault."""
    with tempfile.TemporaryDirectory() as name:
        run = launched.Launched(Path(name), data, backend, processes, [], *RUN, f"--checkpoint_dir={name}/c")
        try:
            run.launcher.wait(END_SECONDS)
            return weights(Path(name, "c"))
        finally:
            run.close()


def weights(folder: Path) -> str:
    """Returns the digest of the arrays of the last step's checkpoint; "" if there is none."""
    path = folder / f"checkpoint_{STEPS:08d}.npz"
    if not path.exists():
        return ""
    with np.load(path) as file:
        arrays = {name: file[name].tobytes() for name in sorted(file.files) if name != "meta"}
    return hashlib.sha256(b"".join(name.encode() + data for name, data in arrays.items())).hexdigest()


def _strike(kind: str, pid: int, network: str) -> None:
    if kind == "partition":
        launched.cut(network, CUT_SECONDS)
    elif kind == "full disk":
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))
    else:
        os.kill(pid, KINDS[kind][0])


class Chain:
    """A run, and faults that strike it one after the other; `outcomes` has what came of each by its name."""

    def __init__(self, folder: Path, data: Path, backend: str, processes: int, network: str = ""):
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._folder, self._network = folder / "c", network
        flags = *RUN, f"--checkpoint_dir={self._folder}"
        prefix = ("ip", "netns", "exec", network) if network else ()
        self._start = lambda: launched.Launched(
            folder, data, backend, processes, LIMITS, *flags, prefix=prefix
        )
        self.run = self._start()
        self._began = time.monotonic()
        # Of the last fault: its name, its time, and the newest checkpoint then.
        self._last: tuple[str, float, int] | None = None

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Waits until a condition holds, the run has ended, or time is up; returns whether the condition holds."""
        while not condition():
            if self.run.launcher.poll() is not None or time.monotonic() - self._began > END_SECONDS:
                return False
            time.sleep(0.1)
        return True

    def strike(self, name: str, kind: str, rank: int, moment: str) -> bool:
        """Injects a fault, and waits until the run starts again, ends or goes on; returns whether it still runs."""
        _, message, status = KINDS[kind]
        who = r"\d+" if kind == "partition" else rank  # It strikes all ranks alike.
        start, began, pids = self.run.newest(), time.monotonic(), dict[int, int]()

        def ready() -> bool:
            nonlocal began
            pids.clear()
            pids.update(self.run.pids())
            if rank not in pids:
                began = time.monotonic()
            waited = time.monotonic() - began > START_SECONDS
            return rank in pids and (
                self.run.newest() >= start + MOMENTS[moment] if MOMENTS[moment] else waited
            )

        if not self._until(ready):
            return False
        before, at, struck = len(self.run.text), self.run.newest(), time.monotonic()
        self._end_of_the_last(struck)
        try:
            _strike(kind, pids[rank], self._network)
        except ProcessLookupError:
            return False
        restarted = lambda: "\nrestart " in self.run.text[before:]  # noqa: E731
        runs = self._until(lambda: restarted() or self.run.newest() >= at + UNDISTURBED)
        text = self.run.text[before:]
        self._last = name, struck, at
        self.outcomes[name] = {
            "named": re.search(rf"error: rank {who} ({message})", text) is not None,
            "came_back": restarted(),
            "expected": status,
            "message": next((line for line in text.splitlines() if line.startswith("error: ")), ""),
        }
        return runs and time.monotonic() - self._began < END_SECONDS

    def recovered(self) -> None:
        """Waits until the run has saved a checkpoint after the last fault."""
        if self._last:
            self._until(lambda: self.run.newest() > self._last[2])
            self._end_of_the_last(time.monotonic())

    def _end_of_the_last(self, now: float) -> None:
        if self._last and "seconds_lost" not in (outcome := self.outcomes[self._last[0]]):
            outcome["seconds_lost"] = round(now - self._last[1], 1)

    def end(self, usual: str) -> None:
        """Waits for the run's end, and adds to every outcome whether the weights are `usual`."""
        self._until(lambda: False)
        code = self.run.launcher.poll()
        self.run.close()
        if code == KINDS["terminated"][2]:
            self.run = self._start()
            self._until(lambda: False)
            self.run.close()
        equal, survivors = weights(self._folder) == usual != "", len(launched.marked(self.run.mark))
        for outcome in self.outcomes.values():
            expected = outcome.pop("expected")
            as_expected = equal and code in (1, KINDS["terminated"][2]) and (not expected or code == expected)
            outcome |= {
                "hung": code is None,
                "status": code,
                "equal": equal,
                "left": survivors,
                "as_it_should": as_expected,
            }


def inject(backend: str, processes: int, faults: dict[str, tuple], data: Path, usual: str) -> dict[str, Any]:
    """Runs once with several faults, {name: (kind, rank, moment)}; returns the outcomes of those that struck."""
    cuts = any(kind == "partition" for kind, _, _ in faults.values())
    with (
        tempfile.TemporaryDirectory() as name,
        launched.network() if cuts else contextlib.nullcontext("") as net,
    ):
        chain = Chain(Path(name), data, backend, processes, net)
        for key, (kind, rank, moment) in faults.items():
            if MOMENTS[moment]:
                chain.recovered()
            if not chain.strike(key, kind, rank, moment):
                break
        chain.recovered()
        chain.end(usual)
        return chain.outcomes


def main() -> None:
    parser = scripts.parser(__doc__, "faults.json")
    parser.add_argument("--count", type=int, default=1000, help="faults to inject at most (%(default)s)")
    parser.add_argument("--backends", nargs="+", default=list(launched.BACKENDS), choices=launched.BACKENDS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="partition needs root")
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    options = parser.parse_args()
    result: dict[str, Any] = {**head("horovod"), "steps": STEPS, "undisturbed": {}, "matrix": {}}
    if options.output.exists():
        # Not the undisturbed runs: other code or another processor has other bits.
        result["matrix"] = json.loads(options.output.read_text())["matrix"]
    faults = list(itertools.product(options.kinds, (0, 1), MOMENTS))
    usual, matrix = result["undisturbed"], result["matrix"]
    with launched.digits() as data:
        for number in itertools.count():
            random.Random(number).shuffle(faults)
            for backend, processes in itertools.product(options.backends, options.processes):
                run = f"{backend}/{processes}"
                chain = {
                    f"{backend}/{k}/{r}/{m}/{processes}/{number}": (k, r, m) for k, r, m in faults[:CHAIN]
                }
                if not chain.keys() & matrix.keys():
                    if len(matrix) >= options.count:
                        return
                    usual[run] = usual.get(run) or undisturbed(backend, processes, data)
                    # Nothing follows a signal that stops the run.
                    order = sorted(chain, key=lambda name: chain[name][0] == "terminated")
                    chain = {name: chain[name] for name in order}
                    outcomes = inject(backend, processes, chain, data, usual[run])
                    if not outcomes:
                        raise SystemExit(
                            f"{run}: none of {', '.join(chain)} struck; does it run without faults?"
                        )
                    for name, outcome in outcomes.items():
                        matrix[name] = outcome
                        print(name, json.dumps(outcome), flush=True)
                    write(result, options.output)


if __name__ == "__main__":
    main()
