"""Continues a run when Horovod loses a process: from the last checkpoint, with the remaining processes.

Horovod's own wrapper has two faults. `horovod.tensorflow.elastic.run` returns early, without an error, when a grouped
or a reduce-scatter operation fails. `TensorFlowState` runs a collective in its constructor, so a process that
constructs it at a different time than the others waits forever. (Both in 0.28.1; docs/sources.md, horovod 2.) Here,
after any error in Horovod's operations, all remaining processes restart from the checkpoint, which any number of
replicas can restore.
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
    """The loop's owner, such as `Run` in timetotrain/run/run.py."""

    loop: Loop

    def rebuild(self, count: int) -> int:
        """Replaces `loop` with one of `count` replicas, restored from the last checkpoint; returns its step."""


class Elastic:
    """Runs loop after loop until the run ends; `events()` replaces `Loop.run(save)`."""

    def __init__(self, owner: Rebuilt, save: Callable[[int], None] | None):
        """Raises UserError if there is no checkpoint to continue from, or the backend cannot lose a process."""
        if owner.loop.config.replicas != "horovod":
            raise UserError(f"elastic runs need config.replicas=horovod, not {owner.loop.config.replicas}")
        if save is None:
            raise UserError(
                "--checkpoint_dir: an elastic run needs one, to go on from when a process is lost"
            )
        self._owner, self._save = owner, save
        self._replicas = owner.loop.replicas  # Of the previous loop, in case a rebuild fails.

    def events(self) -> Iterator[events.Event]:
        """Yields each event of the run once, skipping events that a new loop repeats from the previous one."""
        # A process may be lost before the first block ends.
        self._save(int(self._owner.loop.state.step))
        logged, losses, ended = _LoggedEvents(), 0, False
        most = self._replicas.num_processes
        while True:
            try:
                if losses:
                    yield self._rejoin()
                    losses = 0
                for event in self._owner.loop.run(self._save):
                    ended = ended or isinstance(event, events.RunStopped)
                    if logged.first_time(event):
                        yield event
                return
            except Exception as error:
                # Another process may be lost during the rebuild.
                losses += 1
                if (
                    ended
                    or losses > most
                    or isinstance(error, UserError)
                    or not self._replicas.peer_lost(error)
                ):
                    raise

    def _rejoin(self) -> events.ReplicasChanged:
        main = self._replicas.main
        self._replicas.close()
        self._owner.loop = None  # Frees its variables before the next loop is built.
        tf_keras.backend.clear_session()
        gc.collect()
        from common.distributed.replicas import horovod

        # Reinitialising asks the launcher for this process's new rank, which arrives once all processes have asked.
        count = horovod.world_size()
        step = self._owner.rebuild(count)
        self._replicas = self._owner.loop.replicas
        if self._replicas.main != main:
            raise UserError("rank 0, which kept the log, is lost; start again with the same --checkpoint_dir")
        return events.ReplicasChanged(time.time(), count, step)


class _LoggedEvents:
    """Remembers which of a run's events are in its log.

    If the checkpoint contains a block's steps but not its evaluation, the next loop repeats only the evaluation. If
    the next loop trains the block again, all its events but the block's start are new.
    """

    def __init__(self) -> None:
        self._started: set[int | None] = set()  # Block indices; None is the run.
        self._stopped: set[int] = set()
        self._evaluated: set[int] = set()

    def first_time(self, event: events.Event) -> bool:
        """Whether the log lacks `event`; marks the event as logged."""
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
    """Adds `member`; returns whether it is new."""
    new = member not in members
    members.add(member)
    return new
