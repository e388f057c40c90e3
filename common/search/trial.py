"""One trial: an ordinary run of the benchmark in a process of its own, and what its log says."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common.search import space as spaces


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
      quality: the last evaluation's; None where there is none, or the loss was no number.
      minutes: from run_start to run_stop.
      reached: the target was met.
      message: why there is no result, in a line.
    """

    quality: float | None = None
    minutes: float | None = None
    reached: bool = False
    message: str = ""

    def objectives(self, names: Sequence[str]) -> list[float] | None:
        """The values of "quality" and "time"; None where a run has no such value.

        The only objective "time" is the time to train: a run that misses its target has none.
        """
        if self.quality is None or self.minutes is None or (list(names) == ["time"] and not self.reached):
            return None
        return [{"quality": self.quality, "time": self.minutes}[name] for name in names]


@dataclasses.dataclass(frozen=True)
class Command:
    """How trials are run.

    Attributes:
      benchmark: the package.
      flags: of every trial.
      threads: of TensorFlow in each; None leaves it the machine.
    """

    benchmark: str
    flags: tuple[str, ...]
    threads: int | None = None

    def run(
        self, values: Mapping[str, Any], folder: pathlib.Path, started: Callable[[subprocess.Popen], None]
    ) -> Outcome:
        """Trains with the fields `values`; results and the run's messages go to `folder`.

        Args:
          values: of the trial.
          folder: its own.
          started: is told of the process.
        """
        folder.mkdir(parents=True, exist_ok=True)
        fields = [f"--config.{name}={spaces.text(value)}" for name, value in values.items()]
        command = [sys.executable, "-m", self.benchmark, *self.flags, *fields]
        command += [f"--result_dir={folder}", "--run=0"]
        with open(folder / "output.txt", "w") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._environment()
            )
            started(process)
            status = process.wait()
        return read(folder) if status in (0, 1) else Outcome(message=_last_line(folder) or f"exit {status}")

    def _environment(self) -> dict[str, str]:
        if self.threads is None:
            return dict(os.environ)
        threads = str(self.threads)
        return {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads, **os.environ}


def read(folder: pathlib.Path) -> Outcome:
    """What the log in a trial's folder says."""
    from compliance.logs import Record, read_log

    logs = sorted(folder.glob("*/*/result_0.txt"))
    found = [r for r in read_log(logs[0]) if isinstance(r, Record)] if logs else []
    last = {r.key: r for r in found}
    if "run_stop" not in last or "run_start" not in last:
        return Outcome(message=_last_line(folder) or "no log")
    stop = last["run_stop"]
    reason = str(stop.metadata.get("reason", ""))
    minutes = (stop.time_ms - last["run_start"].time_ms) / 60000
    if "eval_accuracy" not in last or "loss is" in reason:
        return Outcome(minutes=minutes, message=reason or "no evaluation")
    reached = stop.metadata.get("status") == "success"
    return Outcome(float(last["eval_accuracy"].value), minutes, reached, "" if reached else reason)


def finished(folder: pathlib.Path) -> bool:
    """Whether the run in a trial's folder came to its end."""
    return any(b'"run_stop"' in log.read_bytes() for log in folder.glob("*/*/result_0.txt"))


def _last_line(folder: pathlib.Path) -> str:
    path = folder / "output.txt"
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1][:300] if lines else ""
