"""Runs `python -m mnist FLAGS` and fails when lab/bench/faults.py asks: python -m lab.bench.processes.faulty FLAGS

SIGUSR1 raises an exception in the main thread; SIGUSR2 delays every batch from then on.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from timetotrain.run import cli

LATE_SECONDS = 0.3
_late = 0.0


def _raise(*_: Any) -> None:
    raise ArithmeticError("an injected fault")


def _delay(*_: Any) -> None:
    global _late
    _late = LATE_SECONDS


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
    signal.signal(signal.SIGUSR1, _raise)
    signal.signal(signal.SIGUSR2, _delay)
    # Not at the top: importing TensorFlow takes seconds, and signals must be handled before.
    from mnist.task import Task

    Task.train_input = _slowed(Task.train_input)  # type: ignore[method-assign]
    cli.main("mnist")
