"""Watches processes over many steps: their memory, handles and threads, read at regular intervals.

A block is one training step and an evaluation of a tiny preset, so that anything a block leaks stands out.

    python -m lab.bench.long_run [--benchmarks mnist resnet] [--blocks N]
    python -m lab.bench.long_run --backends multiworker pjrt horovod [--processes 2 4] [--steps N]

The second form watches every process of a run under the launcher; results that the file has are kept.
"""

import dataclasses
import gc
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.harness import launched, scripts
from lab.bench.harness.scripts import head, write

BLOCKS = 1000


class Holdings(NamedTuple):
    """What this process holds: resident memory, open files, system threads and Python threads."""

    kilobytes: int
    handles: int
    threads: int
    python_threads: int


def holdings(pid: int | str = "self") -> Holdings:
    """Reads /proc of a process; of this one after a garbage collection."""
    gc.collect()
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Holdings(
        int(lines["VmRSS"].split()[0]),
        len(os.listdir(f"/proc/{pid}/fd")),
        int(lines["Threads"]),
        threading.active_count(),
    )


def measure(benchmark: str, blocks: int, every: int) -> list[dict[str, Any]]:
    """Runs `blocks` blocks of the tiny preset; returns what the process holds after every `every` of them."""
    from common.config import benchmarks
    from common.distributed import replicas
    from common.train import events
    from common.train.listener import Listener
    from common.train.loop import Loop
    from common.train.programs import Programs

    config = benchmarks.module(benchmark, "presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(
        config, train_steps=blocks, steps_per_block=1, eval_epochs=(), quality_target=2.0
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = benchmarks.module(benchmark, "tiny")
        tiny.generate(Path(folder))
        task = benchmarks.module(benchmark, "task").Task(config, folder)

        class Watch(Listener):
            def on_event(self, event: events.Event) -> None:
                if isinstance(event, events.Evaluated) and (event.interval.index + 1) % every == 0:
                    rows.append({"blocks": event.interval.index + 1, **holdings()._asdict()})

        Loop(Programs(task, replicas.make(config)), [Watch()]).run()
    return rows


def soak(backend: str, processes: int, steps: int, data: Path) -> list[dict[str, Any]]:
    """Runs `steps` steps of mnist in several processes; returns what the worst of them holds at each mark.

    Raises RuntimeError if the run ended before its last step.
    """
    rows: list[dict[str, Any]] = []
    marks = [84, steps // 4, steps - 840]  # After the first epoch, and before the processes end.
    with tempfile.TemporaryDirectory() as folder:
        run = launched.Launched(
            Path(folder), data, backend, processes, [], f"--config.train_steps={steps}", "--config.seed=1"
        )
        try:
            while run.launcher.poll() is None:
                time.sleep(0.5)
                if marks and (done := run.steps()) >= marks[0]:
                    worst = [max(values) for values in zip(*map(holdings, run.pids().values()))]
                    rows.append({"steps": done, **dict(zip(Holdings._fields[:3], worst))})
                    print(backend, processes, rows[-1], flush=True)
                    marks.pop(0)
            if marks:
                raise RuntimeError(f"{backend}, {processes} processes: {run.text[-2000:]}")
        finally:
            run.close()
    return rows


def main() -> None:
    parser = scripts.parser(__doc__, "long_run.json")
    parser.add_argument("--benchmarks", nargs="+", default=["mnist"], help="default: mnist")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--backends", nargs="+", default=[], choices=launched.BACKENDS)
    parser.add_argument("--processes", nargs="+", type=int, default=[2])
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    if options.backends:
        result = json.loads(options.output.read_text()) if options.output.exists() else head()
        with launched.digits() as data:
            for backend in options.backends:
                for count in options.processes:
                    rows = soak(backend, count, options.steps, data)
                    result.setdefault("processes", {}).setdefault(backend, {})[str(count)] = rows
                    write(result, options.output)
        return
    blocks = options.blocks
    result: dict[str, Any] = {**head(), "settings": {"blocks": blocks}, "benchmarks": {}}
    for benchmark in options.benchmarks:
        rows = measure(benchmark, blocks, max(1, blocks // 10))
        result["benchmarks"][benchmark] = rows
        for row in rows:
            print(benchmark, *(f"{name} {value:,}" for name, value in row.items()), flush=True)
    write(result, options.output)


if __name__ == "__main__":
    main()
