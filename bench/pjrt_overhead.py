"""What the loop of --replicas=pjrt adds to a compiled step, and whether its input is read meanwhile.

    python -m bench.pjrt_overhead [--units N] [--rounds N] [--steps N] [--quick] [--output FILE]

In alternating rounds, seconds of a step: of the compiled program alone, called again and again on one batch that stays
on the device; of the loop; of the loop where every batch takes as long to make as `--slow` of a step. The network is
mnist's of dense layers on this machine's CPU; `--units` sets its width, and so the length of a step.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bench.harness import arguments
from bench.harness.results import head, write
from bench.harness.rounds import alternate, ratio

BATCH = 64


class Alone:
    """The program of a training step, on a batch that stays on the device."""

    def __init__(self, loop: Any):
        self._block, self._run = loop._block, loop.replicas.run
        self._batch = next(iter(loop._synthetic(True)))

    def seconds(self, steps: int) -> tuple[float, float]:
        """Seconds of a step, by the clock and of this thread's processor."""
        began, busy = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            loss = self._run(self._block._train_once, (self._batch,))
        loss.first()
        return (time.perf_counter() - began) / steps, (time.thread_time() - busy) / steps


def of_loop(loop: Any, steps: int, slow: float = 0.0) -> tuple[float, float]:
    """As `Alone.seconds`, of the loop; `slow`: seconds that it takes to make a batch."""
    train, evaluation = loop._synthetic(True), loop._synthetic(False)
    train = _slowed(train, slow) if slow else train
    began, busy = time.perf_counter(), time.thread_time()
    loop._call(train, evaluation, steps, 0)
    return (time.perf_counter() - began) / steps, (time.thread_time() - busy) / steps


def _slowed(batches: Iterator[Any], seconds: float) -> Iterator[Any]:
    for batch in batches:
        time.sleep(seconds)
        yield batch


def loop_of(units: int) -> Any:
    from common.distributed import replicas
    from common.train.loop import Loop
    from mnist.presets import PRESETS
    from mnist.task import Task

    changes = {"model": "mlp", "hidden_units": units, "global_batch_size": BATCH, "replicas": "pjrt"}
    config = dataclasses.replace(PRESETS["cpu-tiny"], **changes)
    loop = Loop(Task(config, None), replicas.make(config))
    loop.compile()
    return loop


def main() -> None:
    parser = arguments.parser(__doc__, "pjrt_overhead.json", rounds=11)
    parser.add_argument("--units", type=int, default=700, help="width of the four hidden layers")
    parser.add_argument("--steps", type=int, default=100, help="steps of a round")
    parser.add_argument("--slow", type=float, default=0.8, help="length of making a batch, in steps")
    arguments.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.units = 1, 3, 64
    loop = loop_of(options.units)
    alone = Alone(loop)
    of_loop(loop, 5)
    slow = options.slow * min(alone.seconds(options.steps)[0] for _ in range(2))
    calls = {
        "program": lambda: alone.seconds(options.steps),
        "loop": lambda: of_loop(loop, options.steps),
        "slow_input": lambda: of_loop(loop, options.steps, slow),
    }
    found = alternate(calls, options.rounds)
    seconds = {name: [wall for wall, _ in rounds] for name, rounds in found.items()}
    busy = {name: statistics.median(host for _, host in rounds) for name, rounds in found.items()}
    result = {
        **head("jax", "jaxlib"),
        "rounds": options.rounds,
        "steps": options.steps,
        "units": options.units,
    }
    result |= {
        "batch": BATCH,
        "seconds": {name: statistics.median(walls) for name, walls in seconds.items()},
        "rounds_seconds": {name: [round(w, 6) for w in walls] for name, walls in seconds.items()},
        "python_seconds": busy,
        "loop_over_program": ratio(seconds["loop"], seconds["program"]),
        "batch_seconds": slow,
        "slow_input_over_program": ratio(seconds["slow_input"], seconds["program"]),
    }
    shown = ("seconds", "python_seconds", "loop_over_program", "batch_seconds", "slow_input_over_program")
    for name in shown:
        print(f"{name:24} {result[name]}")
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
