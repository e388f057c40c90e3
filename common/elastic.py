"""A run that goes on when Horovod loses a process: from the last checkpoint, with the processes that are left.

Horovod's own wrapper does not serve: `horovod.tensorflow.elastic.run` returns early, without an error, when a grouped
or a reduce-scatter operation failed, and `TensorFlowState` runs a collective in its constructor, for which a process
that is built at another time than the others waits for ever (both in 0.28.1; horovod_facts 2). Here every error of
Horovod's operations leads to a new start of all that are left, and the state is the checkpoint, which any number of
replicas restores: whoever reads it meets nobody.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator

import tensorflow as tf
import tf_keras

from common import events
from common.errors import UserError
from common.loop import Loop


def enabled() -> bool:
    """Whether the launcher (ours with --elastic, or horovodrun with --min-np) lets a run go on with fewer processes."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


class Elastic:
    """`events(save)` is `Loop.run(save)`, over as many loops as it takes.

    Attributes:
      loop: the one that runs now.
    """

    def __init__(self, loop: Loop, build: Callable[[int], Loop], restore: Callable[[Loop], int]):
        """`build(n)` makes and compiles a loop of n replicas; `restore(loop)` returns the step it starts from.

        Raises:
          UserError: the backend cannot lose a process.
        """
        if loop.config.replicas != "horovod":
            raise UserError(f"elastic runs need config.replicas=horovod, not {loop.config.replicas}")
        self.loop, self._build, self._restore = loop, build, restore

    def events(self, save: Callable[[int], None]) -> Iterator[events.Event]:
        """Yields each event of the run once: what a loop repeats of the one before it is left out."""
        save(int(self.loop.state.step))  # A process may be lost before the first block has ended.
        started, blocks = False, set()
        while True:
            try:
                for event in self.loop.run(save):
                    again = started if isinstance(event, events.RunStarted) else _again(event, blocks)
                    started = True
                    if not again:
                        yield event
                return
            except tf.errors.OpError as error:
                if not lost_a_process(error):
                    raise
            yield from self._rejoin()

    def _rejoin(self) -> Iterator[events.Event]:
        main = self.loop.replicas.main
        self.loop.replicas.close()
        self.loop = None  # type: ignore[assignment]  # Frees its variables before the next one is built.
        tf_keras.backend.clear_session()
        gc.collect()
        from common.replicas import horovod

        # Initialised anew, Horovod asks the launcher for this process's new rank, which comes when all have asked.
        count = horovod.world_size()
        self.loop = self._build(count)
        if self.loop.replicas.main != main:
            raise UserError("rank 0, which kept the log, is lost; start again with the same --checkpoint_dir")
        step = self._restore(self.loop)
        yield events.ReplicasChanged(time.time(), count, step)


def _again(event: events.Event, blocks: set[int]) -> bool:
    if not isinstance(event, events.BlockStarted):
        return False
    again = event.block.index in blocks
    blocks.add(event.block.index)
    return again


def lost_a_process(error: Exception) -> bool:
    """Whether an operation of Horovod's failed, of whatever kind, because a process is gone."""
    return isinstance(error, tf.errors.UnknownError) and "orovod" in str(error)
