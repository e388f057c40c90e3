"""Turns what an evaluation brought back into a quality: at once, or in worker processes meanwhile."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from common import events
from common.clock import Block
from common.errors import UserError
from common.task import Quality, Task

POLL_SECONDS = 0.05


class Evaluator:
    """The task's `quality` of each block; in a worker process, or with a pool of them, where the task asks for it.

    Where `enabled` is false, as in all processes of a run but the first, it does nothing.
    """

    def __init__(self, task: Task, enabled: bool = True):
        self._quality, self._enabled = task.quality, enabled
        self._pending: list[tuple[Block, concurrent.futures.Future]] = []
        self._pool: concurrent.futures.Executor | None = None
        self._thread: concurrent.futures.Executor | None = None
        self._warm: concurrent.futures.Future | None = None
        if not (task.evaluate_in_worker and enabled):
            return
        workers = getattr(task, "evaluation_workers", 0)
        # Not forked: a forked TensorFlow deadlocks. An interrupt from the terminal is for the main process.
        context = multiprocessing.get_context("spawn")
        ignore = (signal.SIGINT, signal.SIG_IGN)
        self._pool = concurrent.futures.ProcessPoolExecutor(
            max(workers, 1), mp_context=context, initializer=signal.signal, initargs=ignore
        )
        if workers:
            # The thread only hands the work out and waits: one evaluation after the other, each by all workers.
            self._thread = concurrent.futures.ThreadPoolExecutor(1)
            self._quality = functools.partial(task.quality, spread=self._pool.map)
        else:
            # Sent along so that the worker imports the task's module while the first block trains.
            self._warm = self._pool.submit(id, self._quality)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: Any) -> None:
        # Idle workers are waited for: their semaphores would outlive this process, and be complained of. Busy ones are
        # not: who leaves them behind is in a hurry.
        futures = [future for _, future in self._pending] + ([self._warm] if self._warm else [])
        idle = all(future.done() for future in futures)
        for executor in (self._thread, self._pool):
            if executor:
                executor.shutdown(wait=idle, cancel_futures=True)
        self._thread = self._pool = None
        self._quality = None  # It may hold the pool.

    def submit(self, block: Block, sums: Mapping, arrays: Mapping) -> None:
        """Starts the evaluation after `block`."""
        if not self._enabled:
            return
        executor = self._thread or self._pool
        if executor:
            future = executor.submit(self._quality, sums, arrays)
        else:
            future = concurrent.futures.Future()
            try:
                future.set_result(self._quality(sums, arrays))
            except (ValueError, LookupError) as error:
                future.set_exception(error)
        self._pending.append((block, future))

    def wait(self, given_up: Callable[[], bool]) -> bool:
        """Returns when every evaluation has finished, or `given_up()`; whether they have finished."""
        left = [future for _, future in self._pending]
        while left and not given_up():
            left = list(concurrent.futures.wait(left, timeout=POLL_SECONDS).not_done)
        return not left

    def finished(self) -> Iterator[events.Evaluated]:
        """Finished evaluations in the order of their blocks.

        Raises:
          UserError: the outputs do not add up, or the worker process died.
        """
        while self._pending and self._pending[0][1].done():
            block, future = self._pending.pop(0)
            try:
                quality: Quality = future.result()
            except ValueError as error:
                raise UserError(f"evaluation: {error}") from error
            except LookupError as error:
                raise UserError(
                    f"evaluation: the outputs or the ground truth lack something ({type(error).__name__}: {error})"
                ) from error
            except concurrent.futures.BrokenExecutor as error:
                raise UserError("evaluation: its worker process died; is there enough memory?") from error
            yield events.Evaluated(block, time.time(), quality.value, quality.reached, quality.details)
