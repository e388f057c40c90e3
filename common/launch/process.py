"""Which of a run's processes this one is, as its launcher's environment says. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import json
import os

from common.config.schema import RunConfig
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Process:
    """Process `index` of `count`; the first one, `main`, writes the log, the checkpoints and what people read."""

    index: int = 0
    count: int = 1

    @property
    def main(self) -> bool:
        return self.index == 0

    @property
    def prefix(self) -> str:
        """What its messages begin with."""
        return f"rank {self.index}: " if self.index else ""


def here() -> Process:
    """What the environment says of this process, whatever the run; a process alone where it says nothing."""
    try:
        if "HOROVOD_RANK" in os.environ:
            return Process(int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]))
        if "TF_CONFIG" in os.environ:
            parsed = json.loads(os.environ["TF_CONFIG"])
            return Process(int(parsed["task"]["index"]), len(parsed["cluster"]["worker"]))
    except (ValueError, KeyError, TypeError):
        pass  # The backend says what is wrong with it.
    return Process()


def of(config: RunConfig) -> Process:
    """This process's part in the run of `config`.

    Raises:
      UserError: a backend of several processes without its launcher.
    """
    variable = {"horovod": "HOROVOD_RANK", "multiworker": "TF_CONFIG"}.get(config.replicas)
    if variable is None:
        return Process()
    if variable not in os.environ:
        raise no_launcher(config.replicas)
    return here()


def no_launcher(backend: str) -> UserError:
    """The error of a backend that was started as a single process."""
    return UserError(
        f"config.replicas={backend}: started without a launcher; use "
        f"`python -m common.launch --replicas={backend} --processes=N -- COMMAND`"
    )


def core_share(runs: int) -> dict[str, str]:
    """Environment of one of `runs` processes that train at a time; empty where a run has the machine alone."""
    if runs == 1:
        return {}
    threads = str(max(len(os.sched_getaffinity(0)) // runs, 1))
    return {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads}
