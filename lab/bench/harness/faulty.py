"""Runs `python -m mnist FLAGS` and fails when lab/bench/faults.py asks: python -m lab.bench.harness.faulty FLAGS

Of real-time signals, `RAISE` raises an exception in the main thread, `STALL` holds the next batch, `CLOCK` sets
the wall clock that Python reads back by an hour, and `FLIP` flips a bit of a weight before the next steps.
"""

import signal
import time
from typing import Any

RAISE, STALL, CLOCK, FLIP = (signal.SIGRTMIN + i for i in (2, 3, 4, 5))
_late = 0.0
_flips: list[bool] = []


def _raise(*_: Any) -> None:
    raise ArithmeticError("an injected fault")


def _stall(*_: Any) -> None:
    global _late
    _late = 1e6


def _set_clock(*_: Any) -> None:
    true = time.time
    time.time = lambda: true() - 3600


def _flipping(call: Any) -> Any:
    """Wraps `Programs.call`: flips a bit of this process's first weight if asked."""

    def flipped(programs: Any, *arguments: Any) -> Any:
        while _flips:
            _flips.pop()
            copy = programs.replicas.local_results(programs.state.model.trainable_variables[0])[0]
            value = np.array(copy.numpy())
            value.reshape(-1).view(np.uint32)[0] ^= np.uint32(1 << 20)
            copy.assign(value)
        return call(programs, *arguments)

    return flipped


def _slowed(train_input: Any) -> Any:
    """Wraps `Task.train_input`: each batch waits for the delay that is set at that time."""

    def slowed(*arguments: Any) -> Any:
        import tensorflow as tf

        def wait(i: Any) -> Any:
            time.sleep(_late)
            return i

        batches = train_input(*arguments)
        waits = tf.data.Dataset.counter().map(lambda i: tf.numpy_function(wait, [i], tf.int64))
        return tf.data.Dataset.zip((batches, waits)).map(lambda batch, _: batch)

    return slowed


if __name__ == "__main__":
    signal.signal(RAISE, _raise)
    signal.signal(STALL, _stall)
    signal.signal(CLOCK, _set_clock)
    signal.signal(FLIP, lambda *_: _flips.append(True))
    # Not at the top: importing TensorFlow takes seconds, and signals must be handled before.
    import numpy as np

    from common.train.programs import Programs
    from mnist.task import Task
    from timetotrain.run import cli

    Task.train_input = _slowed(Task.train_input)  # type: ignore[method-assign]
    Programs.call = _flipping(Programs.call)  # type: ignore[method-assign]
    cli.main("mnist")
