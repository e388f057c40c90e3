"""Starts mnist under the launcher for the scripts that watch its processes, and finds those."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.bench.harness import ROOT

# A small network and a target out of reach: only its steps, or a fault, end the run.
NETWORK = ("--config.model=mlp", "--config.hidden_layers=1", "--config.quality_target=2")
BATCH = ("--config.global_batch_size=48", "--config.eval_batch_size=96")
BACKENDS = ("multiworker", "pjrt", "horovod")


class Launched:
    """A run under the launcher, in `folder`, whose processes carry a mark in their environment."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        backend: str,
        processes: int,
        flags: Sequence[str],
        *run: str,
        prefix: Sequence[str] = (),
    ):
        """`flags` are the launcher's, `run` are the run's own; `prefix` runs the launcher."""
        self.folder, self.mark = folder, f"{os.getpid()}-{time.time_ns()}"
        line = [*prefix, sys.executable, "-m", "timetotrain", "launch", f"--replicas={backend}", *flags]
        line += [f"--processes={processes}", "--", sys.executable, "-m", "lab.bench.harness.faulty"]
        line += ["--system=cpu-tiny", f"--data_dir={data}", f"--result_dir={folder}", f"--replicas={backend}"]
        line += [f"--config.num_replicas={processes}", *NETWORK, *BATCH, *run]
        environment = {**os.environ, "FAULT_MARK": self.mark, "TF_NUM_INTRAOP_THREADS": "1"}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        self._errors = open(folder / "errors", "a+b")  # noqa: SIM115
        self.launcher = subprocess.Popen(
            line, cwd=ROOT, env=environment, stderr=self._errors, stdout=subprocess.DEVNULL
        )

    @property
    def text(self) -> str:
        """What the launcher has written to standard error."""
        return (self.folder / "errors").read_text(errors="replace")

    def pids(self) -> dict[int, int]:
        """Returns the living process of each rank."""
        by_rank = {}
        for pid, environment in marked(self.mark).items():
            if "HOROVOD_RANK" in environment:
                by_rank[int(environment["HOROVOD_RANK"])] = pid
            elif "TF_CONFIG" in environment:
                by_rank[json.loads(environment["TF_CONFIG"])["task"]["index"]] = pid
        return by_rank

    def steps(self) -> int:
        """Returns the steps of the blocks that the newest log has."""
        logs = sorted(self.folder.rglob("result_*.txt*"), key=lambda path: path.stat().st_mtime)
        blocks = logs[-1].read_text().count('"block_stop"') if logs else 0
        return blocks * self.steps_per_block

    steps_per_block = 84  # The digits' epoch at this batch.

    def newest(self) -> int:
        """Returns the step of the newest checkpoint in `folder`/c; 0 without one."""
        return max(
            (int(p.stem.rpartition("_")[2]) for p in (self.folder / "c").glob("checkpoint_*.npz")), default=0
        )

    def close(self) -> None:
        """Kills what is left."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.launcher.wait()
        self._errors.close()


@contextlib.contextmanager
def network() -> Iterator[str]:
    """Yields the name of a new network namespace, which has the loopback alone. Raises SystemExit without root."""
    if os.geteuid() != 0:
        sys.exit("error: only root may cut a network; leave that fault out, or start as root")
    name = f"timetotrain-{os.getpid()}-{time.time_ns()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        _loopback(name, "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def cut(name: str, seconds: float) -> None:
    """Drops all packets between the processes of a network, from now on for so long."""
    _loopback(name, "down")
    threading.Timer(seconds, _loopback, (name, "up")).start()


def _loopback(name: str, state: str) -> None:
    subprocess.run(["ip", "-n", name, "link", "set", "lo", state], capture_output=True)


@contextlib.contextmanager
def digits() -> Iterator[Path]:
    """Yields a folder with mnist's practice data."""
    with tempfile.TemporaryDirectory() as data:
        subprocess.run([sys.executable, "-m", "mnist.tiny", data], cwd=ROOT, check=True, capture_output=True)
        yield Path(data)


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Returns the environments of living processes that carry the mark."""
    environments = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            data = (path / "environ").read_bytes().decode(errors="replace")
            if f"FAULT_MARK={mark}" in data:
                environments[int(path.name)] = dict(x.partition("=")[::2] for x in data.split("\0"))
    return environments
