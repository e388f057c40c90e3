"""Watches a process over many blocks: its memory, handles and threads, read at regular intervals.

A block is one training step and an evaluation of a tiny preset, so that anything a block leaks stands out.

    python -m lab.bench.long_run [--benchmarks mnist resnet] [--blocks N] [--quick]
"""

from __future__ import annotations

import dataclasses
import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.harness import arguments
from lab.bench.harness.results import head, write

BLOCKS = 1000


class Held(NamedTuple):
    """What this process holds: resident memory, open files, system threads and Python threads."""

    kilobytes: int
    handles: int
    threads: int
    python_threads: int


def held() -> Held:
    """Reads /proc/self after a garbage collection."""
    gc.collect()
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Held(
        int(lines["VmRSS"].split()[0]),
        len(os.listdir("/proc/self/fd")),
        int(lines["Threads"]),
        threading.active_count(),
    )


def measure(benchmark: str, blocks: int, every: int) -> list[dict[str, Any]]:
    """Runs `blocks` blocks of the tiny preset; returns what the process holds after every `every` of them."""
    from common.config import benchmarks
    from common.distributed import replicas
    from common.train import events
    from common.train.loop import Loop

    config = benchmarks.module(benchmark, "presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(
        config, train_steps=blocks, steps_per_block=1, first_block_steps=0, quality_target=2.0
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = benchmarks.module(benchmark, "tiny")
        tiny.generate(Path(folder))
        loop = Loop(benchmarks.module(benchmark, "task").Task(config, folder), replicas.make(config))
        for event in loop.run():
            if isinstance(event, events.Evaluated) and (event.block.index + 1) % every == 0:
                rows.append({"blocks": event.block.index + 1, **held()._asdict()})
    return rows


def main() -> None:
    parser = arguments.parser(__doc__, "long_run.json")
    parser.add_argument("--benchmarks", nargs="+", default=["mnist"], help="default: mnist")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    arguments.add_quick(parser)
    options = parser.parse_args()
    blocks = 20 if options.quick else options.blocks
    result: dict[str, Any] = {**head(), "settings": {"blocks": blocks}, "benchmarks": {}}
    for benchmark in options.benchmarks:
        rows = measure(benchmark, blocks, max(1, blocks // 10))
        result["benchmarks"][benchmark] = rows
        for row in rows:
            print(benchmark, *(f"{name} {value:,}" for name, value in row.items()), flush=True)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
