"""What the fused loop adds to a step of ResNet-50: python -m lab.bench.processes.loop_overhead BATCH PIXELS ROUNDS.

Prints a line of JSON: seconds per step of the fused loop, and of the same step called from Python on a batch in memory
(medians of alternating rounds), and their ratio minus 1.
"""

import json
import statistics
import sys
import time

import tensorflow as tf

from common.distributed import replicas
from common.train.loop import Loop
from lab.bench.steps import resnet_config
from resnet.task import Task

STEPS = 5  # Per round.


def overhead(batch: int, pixels: int, rounds: int) -> dict[str, float]:
    """Returns the figures to print."""
    config = resnet_config("fp32", batch, pixels)
    loop = Loop(Task(config, None), replicas.make(config))
    loop.compile()
    train, evaluation = loop.synthetic(True), loop.synthetic(False)
    resident = next(train)
    step = tf.function(
        lambda: loop.replicas.run(loop._block._train_step, (resident, loop.state.step.read_value())),
        autograph=False,
    )
    times: dict[str, list[float]] = {"step": [], "fused_loop": []}
    for i in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(STEPS):
            step().numpy()
        middle = time.perf_counter()
        loop.call(train, evaluation, STEPS, 0)
        ended = time.perf_counter()
        if i:  # The first round traces.
            times["step"].append((middle - began) / STEPS)
            times["fused_loop"].append((ended - middle) / STEPS)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {**medians, "overhead": medians["fused_loop"] / medians["step"] - 1}


if __name__ == "__main__":
    print(json.dumps(overhead(*map(int, sys.argv[1:]))), flush=True)
