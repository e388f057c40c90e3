"""One process of `timetotrain launch --check`: checks what a run of several processes needs, a line for each check.

Commands, code, versions, data, folders and clocks are compared over the processes; sums of every size and each device's
product are timed. Process 0 prints. The run itself compares what costs nothing (common/distributed/alike.py).
"""

import itertools
import os
import pathlib
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from common.distributed import alike, heartbeat
from common.distributed.agreement import Agreement
from common.errors import UserError
from timetotrain.run import same_start

# Clocks further apart than this make the logs of two hosts hard to compare; steps do not depend on them.
_CLOCK_SECONDS = 1.0
_LEAST_FREE = 1 << 30  # Bytes for a log and small checkpoints.
_LEAST_SPEED = 10e6  # Bytes a second to a disk; a checkpoint of ResNet-50 with its slots takes 20 s.
_WRITTEN = 1 << 25  # Bytes of the file that times a disk.
_SHARED_SECONDS = 10.0  # A network's file system shows another host's new file after seconds.
_SIZES = (1 << 10, 1 << 20, 1 << 26)  # Bytes of a sum: a latency, a bucket, a large gradient.
_BLOCKS = 16  # Of each file of the data.
_ROUNDS = 5
# Flags that hosts may give other values: places on their own disks.
_OWN = ("data_dir", "result_dir")


def main(backend: str, command: Sequence[str]) -> int:
    """Checks this process and the folders of the `command` that is to follow; returns 0, or 1 if a check failed."""
    heartbeat.start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        bad = _check(backend, command)
    except Exception as error:  # Python's own exit might wait for the others, which wait for this process.
        heartbeat.send(error=str(error))
        os._exit(getattr(error, "exit_code", 1))
    heartbeat.send(result=int(bad))
    sys.stdout.flush()
    os._exit(int(bad))


def _check(backend: str, command: Sequence[str]) -> bool:
    import tensorflow as tf

    values = same_start.flags(command)
    benchmark = command[2].rpartition(".")[2] if command[1:2] == ["-m"] and command[2:] else ""
    replicas = same_start.meet(backend, same_start.num_replicas(benchmark, command))
    failed = []

    def say(name: str, good: bool, text: str) -> None:
        if not good:
            failed.append(name)
        if replicas.main:
            print(f"{'ok' if good else 'FAILS':<6} {name:<10} {text}", flush=True)

    def spread(value: int) -> tuple[int, int]:
        return -replicas.all_reduce_max(-value), replicas.all_reduce_max(value)

    def compare(name: str, facts: dict[str, str], text: str) -> None:
        try:
            Agreement(replicas).same(facts)
            say(name, True, text)
        except UserError as error:
            say(name, False, str(error))

    say("names", True, f"{replicas.num_processes} processes met; process 0 is on {socket.gethostname()}")
    replicas.all_reduce_max(0)  # All read their clocks at one time.
    first, last = spread(time.time_ns() // 1000)
    say("clocks", last - first < _CLOCK_SECONDS * 1e6, f"{(last - first) / 1000:.0f} ms apart at most")
    common = {f"--{name}": value for name, value in values.items() if name not in _OWN}
    words = itertools.takewhile(lambda word: not word.startswith("--"), command[1:])
    common["the program"] = " ".join(pathlib.Path(word).name for word in words)
    compare("command", common, "alike in every process")
    machine = alike.of_machine()
    compare("versions", machine, ", ".join(f"{name} {value}" for name, value in machine.items()))
    for name in ("result_dir", "checkpoint_dir"):
        path = pathlib.Path(values.get(name) or ".").resolve()
        _disk(name, path, spread, say)
    if values.get("checkpoint_dir"):
        good = _shared(pathlib.Path(values["checkpoint_dir"]), replicas)
        note = "seen by every process" if good else "not every process sees what process 0 writes; share it"
        say("checkpoints", good, f"--checkpoint_dir={values['checkpoint_dir']}: {note}")
    if "data_dir" in values:
        try:
            data = alike.of_files(values["data_dir"], _BLOCKS)
        except UserError as error:
            data = str(error)
        if spread(int(data.startswith("--")))[0]:  # No process has the folder.
            say("data", False, data)
        else:
            compare("data", {"the data": data}, f"{data}, alike in every process")
    for size in _SIZES:
        seconds = _seconds(replicas, tf.ones([size // 4]), replicas.all_reduce)
        say(
            "sums", True, f"{size / 1e6:,.3f} MB in {seconds * 1e3:,.2f} ms, {size / seconds / 1e9:,.2f} GB/s"
        )
    width = 4096 if tf.config.list_physical_devices("GPU") or replicas.platform not in ("", "cpu") else 1024
    seconds = _seconds(replicas, tf.ones([width, width]), lambda x: tf.reduce_sum(tf.matmul(x, x)))
    slowest = replicas.all_reduce_max(round(seconds * 1e9)) / 1e9
    say("products", True, f"{2 * width**3 / slowest / 1e12:,.2f} TFLOP/s in fp32 on the slowest device")
    replicas.close()
    return bool(failed)


def _disk(
    name: str, path: pathlib.Path, spread: Callable[[int], tuple[int, int]], say: Callable[..., None]
) -> None:
    """Says the free space of the disk with a folder, and how fast it takes a file."""
    while not path.exists():
        path = path.parent
    least, _ = spread(shutil.disk_usage(path).free)
    say("space", least > _LEAST_FREE, f"{least / 1e9:,.1f} GB free for --{name}")
    _, refused = spread(int(not os.access(path, os.W_OK)))
    if refused:
        say("disk", False, f"--{name}: a process may not write in {path}; make it writable")
        return
    speed, _ = spread(round(_write_speed(path)))
    say("disk", speed > _LEAST_SPEED, f"{speed / 1e6:,.0f} MB/s to the slowest disk of --{name}")


def _write_speed(folder: pathlib.Path) -> float:
    """Returns the bytes a second of a file that is written and flushed to disk; 0 if that fails."""
    path = folder / f".check-{socket.gethostname()}-{os.getpid()}"
    try:
        began = time.perf_counter()
        with open(path, "wb") as file:
            file.write(bytes(_WRITTEN))
            os.fsync(file.fileno())
        return _WRITTEN / (time.perf_counter() - began)
    except OSError:
        return 0.0
    finally:
        path.unlink(missing_ok=True)


def _shared(folder: pathlib.Path, replicas: Any) -> bool:
    """Returns, in every process, whether all see a file that process 0 writes into a folder."""
    number = replicas.all_reduce_max(os.getpid() if replicas.main else 0)
    path, created = folder / f".shared-{number}", not folder.exists()
    done = 0
    if replicas.main:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.touch()
            done = 1
        except OSError:
            pass
    missing = 0
    if replicas.all_reduce_max(done):
        until = time.monotonic() + _SHARED_SECONDS
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.1)
        missing = int(not path.exists())
    unseen = replicas.all_reduce_max(missing)
    if done:
        path.unlink()
        if created:
            folder.rmdir()
    return bool(replicas.all_reduce_max(done)) and not unseen


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
