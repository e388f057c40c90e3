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
from typing import Protocol

import tf_keras

from common.errors import UserError
from common.train import events
from common.train.loop import Loop


def enabled() -> bool:
    """Whether the launcher (ours with --elastic, or horovodrun with --min-np) lets a run go on with fewer processes."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


class Rebuilt(Protocol):
    """What owns the loop: common/run/run.py."""

    loop: Loop

    def rebuild(self, count: int) -> int:
        """Replaces `loop` by one of `count` replicas at the last checkpoint; returns its step."""


class Elastic:
    """`events()` is `Loop.run(save)`, over as many loops as it takes."""

    def __init__(self, owner: Rebuilt, save: Callable[[int], None] | None):
        """Raises UserError where there is no checkpoint to go on from, or the backend cannot lose a process."""
        if owner.loop.config.replicas != "horovod":
            raise UserError(f"elastic runs need config.replicas=horovod, not {owner.loop.config.replicas}")
        if save is None:
            raise UserError(
                "--checkpoint_dir: an elastic run needs one, to go on from when a process is lost"
            )
        self._owner, self._save = owner, save

    def events(self) -> Iterator[events.Event]:
        """Yields each event of the run once: what a loop repeats of the one before it is left out."""
        self._save(
            int(self._owner.loop.state.step)
        )  # A process may be lost before the first block has ended.
        told = _Told()
        while True:
            try:
                for event in self._owner.loop.run(self._save):
                    if told.first_time(event):
                        yield event
                return
            except Exception as error:
                if isinstance(error, UserError) or not self._owner.loop.replicas.peer_lost(error):
                    raise
            yield self._rejoin()

    def _rejoin(self) -> events.ReplicasChanged:
        main = self._owner.loop.replicas.main
        self._owner.loop.replicas.close()
        self._owner.loop = None  # type: ignore[assignment]  # Frees its variables before the next one is built.
        tf_keras.backend.clear_session()
        gc.collect()
        from common.distributed.replicas import horovod

        # Initialised anew, Horovod asks the launcher for this process's new rank, which comes when all have asked.
        count = horovod.world_size()
        step = self._owner.rebuild(count)
        if self._owner.loop.replicas.main != main:
            raise UserError("rank 0, which kept the log, is lost; start again with the same --checkpoint_dir")
        return events.ReplicasChanged(time.time(), count, step)


class _Told:
    """Which events of a run its log has.

    A block of which the checkpoint has the steps, and not yet the result of its evaluation, comes again as an
    evaluation alone; of one that is trained again all is new but its start.
    """

    def __init__(self) -> None:
        self._started: set[int | None] = set()  # Blocks; None is the run.
        self._stopped: set[int] = set()
        self._evaluated: set[int] = set()

    def first_time(self, event: events.Event) -> bool:
        """Whether the log lacks `event`, which it is taken to have from now on."""
        if isinstance(event, events.RunStarted):
            return _added(self._started, None)
        if isinstance(event, events.BlockStarted):
            return _added(self._started, event.block.index)
        block = getattr(event, "block", None)
        if block is None or isinstance(event, events.Progress):
            return True
        evaluation_alone = block.num_steps == 0
        if isinstance(event, events.Evaluated):
            return _added(self._evaluated, block.index) or not evaluation_alone
        if evaluation_alone and block.index in self._stopped:
            return False
        if isinstance(event, events.BlockStopped):
            self._stopped.add(block.index)
        return True


def _added(members: set, member: int | None) -> bool:
    """Whether `member` was not yet one."""
    new = member not in members
    members.add(member)
    return new
