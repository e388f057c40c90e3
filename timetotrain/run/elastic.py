"""Continues a run when Horovod loses a process: from the last checkpoint, with the processes that are left.

Horovod's own wrapper does not serve: `horovod.tensorflow.elastic.run` returns early, without an error, when a grouped
or a reduce-scatter operation fails, and `TensorFlowState` runs a collective in its constructor, where a process that
constructs it at another time than the others waits for ever (both in 0.28.1; docs/sources.md, horovod 2). Here, after
any error of Horovod's operations, all processes that are left start anew from the checkpoint, which any number of
replicas restores.
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
    """The owner of the loop, as `Training` in timetotrain/run/run.py."""

    loop: Loop

    def rebuild(self, count: int) -> int:
        """Replaces `loop` by one of `count` replicas, restored from the last checkpoint; returns its step."""


class Elastic:
    """Runs one loop after another until the run ends; `events()` takes the place of `Loop.run(save)`."""

    def __init__(self, owner: Rebuilt, save: Callable[[int], None] | None):
        """Raises UserError where there is no checkpoint to go on from, or the backend cannot lose a process."""
        if owner.loop.config.replicas != "horovod":
            raise UserError(f"elastic runs need config.replicas=horovod, not {owner.loop.config.replicas}")
        if save is None:
            raise UserError(
                "--checkpoint_dir: an elastic run needs one, to go on from when a process is lost"
            )
        self._owner, self._save = owner, save
        self._replicas = owner.loop.replicas  # Of the loop before, where a rebuild has failed.

    def events(self) -> Iterator[events.Event]:
        """Yields each event of the run once, without those that a loop repeats of the one before it."""
        # A process may be lost before the first block has ended.
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
                # Another process may be lost while the others build the run anew.
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
        self._owner.loop = None  # type: ignore[assignment]  # Frees its variables before the next one is built.
        tf_keras.backend.clear_session()
        gc.collect()
        from common.distributed.replicas import horovod

        # A second initialisation asks the launcher for this process's new rank, which comes when all have asked.
        count = horovod.world_size()
        step = self._owner.rebuild(count)
        self._replicas = self._owner.loop.replicas
        if self._replicas.main != main:
            raise UserError("rank 0, which kept the log, is lost; start again with the same --checkpoint_dir")
        return events.ReplicasChanged(time.time(), count, step)


class _LoggedEvents:
    """Remembers which events of a run are in its log.

    Where the checkpoint has a block's steps but not the result of its evaluation, the next loop repeats the evaluation
    alone. Where it trains the block again, all events but the block's start are new.
    """

    def __init__(self) -> None:
        self._started: set[int | None] = set()  # Indices of blocks; None for the run.
        self._stopped: set[int] = set()
        self._evaluated: set[int] = set()

    def first_time(self, event: events.Event) -> bool:
        """Whether the log lacks `event`; from now on the event counts as logged."""
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
