"""Contenders as processes that train when asked to, in alternating rounds, for the scripts about small networks."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Contender:
    """A process that answers each line "N" with the seconds of N training steps, as JSON."""

    def __init__(self, name: str, command: Sequence[str]):
        self.name = name
        # Not a pipe: nobody would empty it while the process warns.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        # "version", and what else it says of itself.
        self.about = self._answer()

    def seconds(self, steps: int) -> float:
        """Of `steps` training steps."""
        print(steps, file=self._process.stdin, flush=True)
        return self._answer()["seconds"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        errors = self._errors.read().strip().splitlines() or ["no message"]
        sys.exit(f"{self.name} ended: {errors[-1]}")


def alternate(contenders: Mapping[Hashable, Callable[[], float]], rounds: int) -> dict[Hashable, list[float]]:
    """What each contender's function says it took, round by round."""
    times: dict[Hashable, list[float]] = {key: [] for key in contenders}
    for i in range(rounds):
        # Every second round goes backwards: no contender always follows the same one.
        for key in list(contenders) if i % 2 == 0 else reversed(list(contenders)):
            times[key].append(contenders[key]())
    return times


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The median over rounds of their seconds over ours in the same round."""
    return statistics.median(t / o for t, o in zip(theirs, ours, strict=True))


def compare(commands: Mapping[str, Sequence[str]], steps: int, rounds: int) -> dict[str, dict[str, Any]]:
    """{contender: seconds of `steps` steps, median over rounds, and its median ratio to "ours" in the same round}."""
    contenders = [Contender(name, command) for name, command in commands.items()]
    for contender in contenders:
        contender.seconds(min(steps, 20))  # Traces, compiles, warms up.
    times = alternate({c.name: functools.partial(c.seconds, steps) for c in contenders}, rounds)
    rows = {}
    for contender in contenders:
        contender.close()
        own = times[contender.name]
        rows[contender.name] = {
            "seconds": statistics.median(own),
            "rounds_seconds": [round(t, 4) for t in own],
            "ratio_to_ours": ratio(own, times["ours"]),
            **contender.about,
        }
    return rows


def peers(torch_python: str | None, jax_python: str | None = None) -> dict[str, str]:
    """Interpreters that have the peers; a peer without one is left out."""
    found = {"torch": torch_python, "jax": jax_python}
    for name, python in found.items():
        if python and not Path(python).exists():
            sys.exit(f"--{name}-python={python}: no such interpreter; name one that can import {name}")
    return {name: python for name, python in found.items() if python}


def left_out(interpreters: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    """The peers of `wanted` that have no interpreter, said to be: without them there is no verdict."""
    missing = [name for name in wanted if name not in interpreters]
    if missing:
        flags = ", ".join(f"--{name}-python" for name in missing)
        print(f"left out: {', '.join(missing)} (give {flags}); no verdict without them", flush=True)
    return missing


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("tensorflow", "tf-keras")},
    }


def write(result: Mapping[str, Any], output: Path) -> None:
    """A script's results as JSON."""
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
