"""Measures what `accept` takes: time and memory on a large tree, and the processor's share while logs grow.

`python -m lab.bench.accept_cost TREE [--seconds N] [--output FILE]`: TREE is a submitter's published folder, such as
training_results_v3.0/Dell. The second part copies twenty of its logs piece by piece into a new folder for N
seconds, while `accept --watch` follows them.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from lab.bench.harness import arguments
from lab.bench.harness.results import head, write

LOGS = 20


def accept(tree: Path) -> dict:
    """Runs `accept` on a tree; returns its wall-clock and processor seconds and the most memory of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with subprocess.Popen(_command(tree), stdout=subprocess.PIPE) as process:
        peak = _Peak(process.pid)
        said = process.communicate()[0].decode()
        peak.stop()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    logs = list(tree.glob("results/*/*/result_*.txt"))
    return {
        "name": f"{tree.parent.name}/{tree.name}",
        "logs": len(logs),
        "mb": sum(log.stat().st_size for log in logs) / 1e6,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(used, 2),
        "peak_mb": round(peak.bytes / 1e6, 1),
        "answer": said.splitlines()[-1],
    }


def _command(tree: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "compliance", "accept", str(tree), *flags]


class _Peak:
    """The most memory that a process and those that it starts hold together; pages that they share count once."""

    def __init__(self, process: int) -> None:
        self.bytes = 0
        self._process, self._ended = process, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.bytes = max(self.bytes, sum(map(_held, _family(self._process))))


def _family(process: int) -> list[int]:
    found = [process]
    for known in found:
        for tasks in Path(f"/proc/{known}/task").glob("*/children"):
            try:
                found += map(int, tasks.read_text().split())
            except OSError:
                continue
    return found


def _held(process: int) -> int:
    """Returns a process's proportional set size in bytes; 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])


def watch(logs: Sequence[Path], seconds: float) -> dict:
    """Lets copies of logs grow for a while; returns the share of a core that `accept --watch` takes."""
    with tempfile.TemporaryDirectory() as aside:
        places = []
        for index, log in enumerate(logs):
            folder = Path(aside) / log.parents[4].name / "Org" / "results" / f"s{index % 4}" / log.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            places.append(folder / f"result_{index}.txt")
        org = Path(aside) / logs[0].parents[4].name / "Org"
        texts = [log.read_bytes() for log in logs]
        steps = max(1, int(seconds * 4))
        with subprocess.Popen(_command(org, "--watch"), stdout=subprocess.DEVNULL) as process:
            start, used = time.perf_counter(), 0.0
            for step in range(steps):
                for place, text in zip(places, texts):
                    with place.open("ab") as file:
                        file.write(
                            text[len(text) * step // (steps + 1) : len(text) * (step + 1) // (steps + 1)]
                        )
                time.sleep(max(0.0, start + (step + 1) / 4 - time.perf_counter()))
            took = time.perf_counter() - start
            used = _processor_seconds(process.pid)
            process.terminate()
    grown = sum(map(len, texts))
    return {
        "logs": len(logs),
        "seconds": round(took, 1),
        "kb_per_second": grown / took / 1e3,
        "cpu_seconds": used,
        "core": round(used / took, 4),
    }


def _processor_seconds(process: int) -> float:
    """Returns the processor seconds that a process has used, with those of its start."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures both, prints and writes them."""
    parser = arguments.parser(__doc__, "accept_cost.json")
    parser.add_argument("tree", type=Path, nargs="?", help="a submitter's published folder")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="how long logs grow (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.tree is None:  # `make bench` runs every script.
        print("nothing to measure: name a submitter's published folder")
        return
    folders = sorted(folder for folder in options.tree.glob("results/*/*") if folder.is_dir())
    several = [log for folder in folders for log in sorted(folder.glob("result_*.txt"))[:3]]
    result = {**head(), "tree": accept(options.tree), "watch": watch(several[:LOGS], options.seconds)}
    write(result, options.output)
    print(result["tree"], result["watch"])


if __name__ == "__main__":
    main()
