"""Runs contenders as processes that train on request, in alternating rounds, and computes the ratios of their times."""

import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lab.bench.harness import ROOT

OURS = "ours"
_WARM_UP = 20  # Maximum number of steps before the first round.
Result = TypeVar("Result")


class Times(NamedTuple):
    """Seconds of some steps: wall time and processor time."""

    seconds: float
    cpu_seconds: float


def command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Returns the command for `lab/bench/contenders/MODULE.py`, under `python` of any environment; run it in ROOT."""
    return [python, "-m", "lab.bench.contenders", module, *arguments]


class Contender:
    """A process of lab/bench/contenders/__main__.py: answers each line "N" with the times of N steps.

    Attributes:
      about: facts that it reports, such as "version".

    Raises SystemExit if the process ended; the message has the last line of its standard error.
    """

    def __init__(self, name: str, command: Sequence[str]):
        self.name = name
        # Not a pipe: nobody would drain it while the process prints warnings.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.about = self._answer()

    def times(self, steps: int) -> Times:
        """Returns the times of `steps` steps."""
        print(steps, file=self._process.stdin, flush=True)
        return Times(**self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        errors = self._errors.read().strip().splitlines() or ["no message"]
        sys.exit(f"{self.name} ended: {errors[-1]}")


def alternate(
    contenders: Mapping[Hashable, Callable[[], Result]], rounds: int
) -> dict[Hashable, list[Result]]:
    """Calls each contender's function in every round; returns the results (usually seconds) by contender."""
    results: dict[Hashable, list[Result]] = {key: [] for key in contenders}
    for i in range(rounds):
        # Every second round runs backwards, so that no contender always follows the same one.
        for key in list(contenders) if i % 2 == 0 else reversed(list(contenders)):
            results[key].append(contenders[key]())
    return results


def rows_of(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Returns {contender: median seconds, each round's seconds, and the median ratio to "ours" in the same round}."""
    ours = times[OURS]
    return {
        name: {
            "seconds": statistics.median(series),
            "rounds_seconds": [round(t, 4) for t in series],
            "ratio_to_ours": statistics.median(t / o for t, o in zip(series, ours, strict=True)),
        }
        for name, series in times.items()
    }


def compare(commands: Mapping[str, Sequence[str]], steps: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Times the processes of {contender: command}, including "ours", in alternating rounds.

    Returns {contender: `rows_of` for `steps` steps, its median "cpu_seconds", and facts about the contender}.
    """
    contenders = [Contender(name, each) for name, each in commands.items()]
    for contender in contenders:
        contender.times(min(steps, _WARM_UP))  # Traces, compiles, warms up.
    times = alternate({c.name: functools.partial(c.times, steps) for c in contenders}, rounds)
    rows = rows_of({name: [t.seconds for t in series] for name, series in times.items()})
    for contender in contenders:
        contender.close()
        cpu_seconds = statistics.median(t.cpu_seconds for t in times[contender.name])
        rows[contender.name] |= {"cpu_seconds": cpu_seconds, **contender.about}
    return rows
