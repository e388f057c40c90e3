"""One process of `timetotrain launch --check`: checks what a run of several processes needs, a line for each check.

Clocks, versions, free space and data are compared over the processes; sums of every size and each device's product are
timed. Process 0 prints.
"""

import hashlib
import os
import pathlib
import platform
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from common import machine_tools
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.errors import UserError

# Clocks further apart than this make the logs of two hosts hard to compare; steps do not depend on them.
_CLOCK_SECONDS = 1.0
_LEAST_FREE = 1 << 30  # Bytes for a log and small checkpoints.
_SIZES = (1 << 10, 1 << 20, 1 << 26)  # Bytes of a sum: a latency, a bucket, a large gradient.
_PACKAGES = ("tensorflow", "jax", "numpy", "horovod")
_ROUNDS = 5
_FOLDERS = ("data_dir", "result_dir", "checkpoint_dir")


def main(backend: str, command: Sequence[str]) -> int:
    """Checks this process and the folders of the `command` that is to follow; returns 0, or 1 if a check failed."""
    heartbeat.start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    folders = dict(
        word[2:].split("=", 1) for word in command if word.startswith(tuple(f"--{n}=" for n in _FOLDERS))
    )
    try:
        bad = _check(backend, folders)
    except UserError as error:
        heartbeat.tell(error=str(error))
        os._exit(error.exit_code)
    heartbeat.tell(result=int(bad))
    sys.stdout.flush()
    os._exit(int(bad))


def _check(backend: str, folders: dict[str, str]) -> bool:
    import tensorflow as tf

    from common.distributed import replicas as backends
    from common.distributed.process import here

    gpus = len(tf.config.list_physical_devices("GPU")) if backend == "multiworker" else 0
    replicas = backends.make(RunConfig(replicas=backend, num_replicas=here().count * max(gpus, 1)))
    failed = []

    def say(name: str, good: bool, text: str) -> None:
        if not good:
            failed.append(name)
        if replicas.main:
            print(f"{'ok' if good else 'FAILS':<6} {name:<9} {text}", flush=True)

    def spread(value: int) -> tuple[int, int]:
        return -replicas.agree(-value), replicas.agree(value)

    say("names", True, f"{replicas.num_processes} processes met; process 0 is on {socket.gethostname()}")
    replicas.agree(0)  # All read their clocks at one time.
    first, last = spread(time.time_ns() // 1000)
    say("clocks", last - first < _CLOCK_SECONDS * 1e6, f"{(last - first) / 1000:.0f} ms apart at most")
    packages = {"Python": platform.python_version(), **machine_tools.versions(*_PACKAGES)}
    same, versions = _same(spread, ", ".join(f"{name} {version}" for name, version in packages.items()))
    say("versions", same, versions if same else f"differ between processes; process 0 has {versions}")
    for name in ("result_dir", "checkpoint_dir"):
        path = pathlib.Path(folders.get(name) or ".").resolve()
        while not path.exists():
            path = path.parent
        least, _ = spread(shutil.disk_usage(path).free)
        say("space", least > _LEAST_FREE, f"{least / 1e9:,.1f} GB free for --{name}")
    if "data_dir" in folders:
        same, listed = _same(spread, _listing(pathlib.Path(folders["data_dir"])))
        say(
            "data",
            same,
            listed.partition(";")[0] if same else "the processes see different files in --data_dir",
        )
    for size in _SIZES:
        seconds = _seconds(replicas, tf.ones([size // 4]), replicas.all_reduce)
        say(
            "sums", True, f"{size / 1e6:,.3f} MB in {seconds * 1e3:,.2f} ms, {size / seconds / 1e9:,.2f} GB/s"
        )
    width = 4096 if gpus or replicas.platform not in ("", "cpu") else 1024
    seconds = _seconds(replicas, tf.ones([width, width]), lambda x: tf.reduce_sum(tf.matmul(x, x)))
    slowest = replicas.agree(round(seconds * 1e9)) / 1e9
    say("products", True, f"{2 * width**3 / slowest / 1e12:,.2f} TFLOP/s in fp32 on the slowest device")
    replicas.close()
    return bool(failed)


def _same(spread: Callable[[int], tuple[int, int]], text: str) -> tuple[bool, str]:
    """Returns whether all processes have the same text, and this process's."""
    first, last = spread(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))
    return first == last, text


def _listing(folder: pathlib.Path) -> str:
    """Returns the number and bytes of a folder's files, and the name and size of each."""
    files = sorted((str(p.relative_to(folder)), p.stat().st_size) for p in folder.rglob("*") if p.is_file())
    total = sum(size for _, size in files)
    return f"{len(files):,} files, {total / 1e9:,.3f} GB, alike in every process; {files}"


def _seconds(replicas: Any, x: Any, function: Callable[[Any], Any]) -> float:
    """Returns the median seconds of `function` of `x` on all replicas at once, after a first call."""
    import tensorflow as tf

    def run(x: Any) -> Any:
        return replicas.run(function, (x,))

    if not replicas.drives_from_host:
        run = tf.function(run, autograph=False)
    times = []
    for _ in range(_ROUNDS + 1):
        began = time.perf_counter()
        replicas.local_results(run(x))[0].numpy()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
