"""Finds a process's rank in the run, from its launcher's environment variables. TensorFlow-free."""

import dataclasses
import json
import os
import sys

from common.config.schema import RunConfig
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Process:
    """Process `index` of `count`; process 0, `main`, writes the log, the checkpoints and the messages."""

    index: int = 0
    count: int = 1

    @property
    def main(self) -> bool:
        return self.index == 0

    @property
    def prefix(self) -> str:
        """Prefix of this process's messages."""
        return f"rank {self.index}: " if self.index else ""


def current() -> Process:
    """Returns this process as the environment describes it, or as the only process; the configuration is not read."""
    try:
        if "HOROVOD_RANK" in os.environ:
            return Process(int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]))
        if "TF_CONFIG" in os.environ:
            parsed = json.loads(os.environ["TF_CONFIG"])
            return Process(int(parsed["task"]["index"]), len(parsed["cluster"]["worker"]))
    except (ValueError, KeyError, TypeError):
        pass  # The backend reports what is wrong with the variable.
    return Process()


def print_once(line: str) -> None:
    """Prints a line to standard error, in the first process only: all processes check the same data."""
    if current().main:
        print(line, file=sys.stderr)


def place(config: RunConfig) -> Process:
    """Returns this process's place in the run of `config`.

    Raises UserError if a multi-process backend was started without its launcher.
    """
    variable = {"horovod": "HOROVOD_RANK", "multiworker": "TF_CONFIG"}.get(config.replicas)
    if config.replicas == "pjrt" and "TF_CONFIG" in os.environ:
        variable = "TF_CONFIG"
    if variable is None:
        return Process()
    if variable not in os.environ:
        raise no_launcher(config.replicas)
    return current()


def no_launcher(backend: str) -> UserError:
    """Returns the error for a multi-process backend that was started without its launcher."""
    return UserError(
        f"config.replicas={backend}: started without a launcher; use "
        f"`timetotrain launch --replicas={backend} --processes=N -- COMMAND`"
    )


def core_share(runs: int) -> dict[str, str]:
    """Returns the environment that shares the cores among `runs` concurrent runs; empty for one run."""
    if runs == 1:
        return {}
    threads = str(max(len(os.sched_getaffinity(0)) // runs, 1))
    return {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads}
