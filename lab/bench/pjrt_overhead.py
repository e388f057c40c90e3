"""Measures what the loop of --replicas=pjrt adds to a compiled step, and whether input is read while steps run.

    python -m lab.bench.pjrt_overhead [--milliseconds N] [--rounds N] [--steps N] [--quick] [--output FILE]

Measures seconds per step in alternating rounds:

- the compiled program alone, called repeatedly on one batch that stays on the device
- the loop
- the loop with `--in_call` steps per call (config.steps_per_execution). Its peer is also the program of one step,
  called once per step; a negative figure is the cost of those calls.
- the loop when making each batch takes the fraction `--slow` of a step

The network is mnist's dense one on this machine's CPU; `--milliseconds` per step determines its width. It runs twice:
with a program on all cores, where everything that Python does slows the program down, and with a program on one core,
as beside a GPU or a TPU.
"""

import dataclasses
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from lab.bench.harness import scripts
from lab.bench.harness.rounds import alternate, ratio
from lab.bench.harness.scripts import head, output_of, write

BATCH = 64
BAR = 1.02  # Maximum ratio of the loop's seconds to the program's (at 10 ms per step).
# The name of a part, and whether its program may use all cores.
PARTS = {"all cores": True, "one core": False}
_FIRST_UNITS = 384  # Width of the trial network; its time decides the width of the measured one.


class Alone:
    """The program of a training step, on a batch that stays on the device."""

    def __init__(self, loop: Any):
        self._block, self._run = loop._block, loop.replicas.run
        self._batch = next(iter(loop.synthetic(True)))

    def seconds(self, steps: int) -> tuple[float, float]:
        """Returns the seconds per step: wall time and processor time."""
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = self._run(self._block._train_once, (self._batch,))
        loss.first()
        return (time.perf_counter() - began) / steps, (time.process_time() - busy) / steps


def of_loop(loop: Any, steps: int, slow: float = 0.0) -> tuple[float, float]:
    """Like `Alone.seconds`, for the loop; `slow`: seconds to make a batch, if a call is one step."""
    train, evaluation = loop.synthetic(True), loop.synthetic(False)
    if slow:
        train = type(train)(_slowed(train, slow), depth=2)
    loop.call(train, evaluation, 1, 0)  # Makes the iterator, as only the first block of a run does.
    began, busy = time.perf_counter(), time.process_time()
    loop.call(train, evaluation, steps, 0)
    return (time.perf_counter() - began) / steps, (time.process_time() - busy) / steps


def _slowed(batches: Iterator[Any], seconds: float) -> Iterator[Any]:
    for batch in batches:
        time.sleep(seconds)
        yield batch


def loop_of(units: int, in_call: int = 1) -> Any:
    from common.distributed import replicas
    from common.train.loop import Loop
    from mnist.presets import PRESETS
    from mnist.task import Task

    changes = {"model": "mlp", "hidden_units": units, "global_batch_size": BATCH, "replicas": "pjrt"}
    changes["steps_per_execution"] = in_call
    config = dataclasses.replace(PRESETS["cpu-tiny"], **changes)
    loop = Loop(Task(config, None), replicas.make(config))
    loop.compile()
    return loop


def units_for(seconds: float, steps: int) -> int:
    """Returns the width at which a step takes `seconds`: the time grows with the square of the width."""
    alone = Alone(loop_of(_FIRST_UNITS))
    alone.seconds(steps)
    found = min(alone.seconds(steps)[0] for _ in range(3))
    return 16 * round(_FIRST_UNITS * math.sqrt(seconds / found) / 16)


def measure(
    all_cores: bool, milliseconds: float, rounds: int, steps: int, slow: float, in_call: int
) -> dict[str, Any]:
    """Measures one part in its own process, because XLA makes its threads only once."""
    if not all_cores:
        # XLA makes its threads with the client; they stay on the cores that are allowed then.
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.devices()
        os.sched_setaffinity(0, cores)
    units = units_for(milliseconds / 1e3, steps)
    loop, several = loop_of(units), loop_of(units, in_call)
    alone = Alone(loop)
    of_loop(loop, 5)
    of_loop(several, in_call)
    slow *= min(alone.seconds(steps)[0] for _ in range(2))
    calls = {
        "program": lambda: alone.seconds(steps),
        "loop": lambda: of_loop(loop, steps),
        "in_calls": lambda: of_loop(several, steps),
        "slow_input": lambda: of_loop(loop, steps, slow),
    }
    found = alternate(calls, rounds)
    seconds = {name: [wall for wall, _ in times] for name, times in found.items()}
    busy = {name: statistics.median(used for _, used in times) for name, times in found.items()}
    return {
        "units": units,
        "seconds": {name: statistics.median(walls) for name, walls in seconds.items()},
        "rounds_seconds": {name: [round(w, 6) for w in walls] for name, walls in seconds.items()},
        "processor_seconds": busy,
        "loop_over_program": ratio(seconds["loop"], seconds["program"]),
        "in_calls_over_program": ratio(seconds["in_calls"], seconds["program"]),
        "batch_seconds": slow,
        "slow_input_over_program": ratio(seconds["slow_input"], seconds["program"]),
    }


def main() -> None:
    parser = scripts.parser(__doc__, "pjrt_overhead.json", rounds=9)
    parser.add_argument("--milliseconds", type=float, default=10.0, help="length of the program; default: 10")
    parser.add_argument("--steps", type=int, default=100, help="steps of a round")
    parser.add_argument("--in_call", type=int, default=10, help="steps of a call of several")
    parser.add_argument("--slow", type=float, default=0.8, help="length of making a batch, in steps")
    parser.add_argument("--part", choices=PARTS, help="this part alone, as JSON; writes nothing")
    scripts.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.milliseconds = 1, 3, 1.0
    settings = {
        name: getattr(options, name) for name in ("milliseconds", "rounds", "steps", "slow", "in_call")
    }
    if options.part:
        print(json.dumps(measure(PARTS[options.part], **settings)))
        return
    flags = [f"--{name}={value}" for name, value in settings.items()]
    result: dict[str, Any] = {**head("jax", "jaxlib"), "batch": BATCH, "bar": BAR, **settings, "parts": {}}
    for part in PARTS:
        command = [sys.executable, "-m", "lab.bench.pjrt_overhead", f"--part={part}", *flags]
        row = result["parts"][part] = json.loads(output_of("pjrt_overhead", command).splitlines()[-1])
        print(
            f"{part:10} program {1e3 * row['seconds']['program']:.2f} ms, loop "
            f"{row['loop_over_program']:.4f} x it, {options.in_call} steps in a call "
            f"{row['in_calls_over_program']:.4f} x it, slow input {row['slow_input_over_program']:.4f} x it"
        )
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
