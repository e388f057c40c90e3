"""Computes the quality from an evaluation's outputs: at once, or in worker processes while training goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing.context
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from common.config.run_length import Interval
from common.distributed import heartbeat
from common.errors import UserError
from common.train import events
from common.train.task import Quality, Task
from common.train.timing import now

POLL_SECONDS = 0.05
END_SECONDS = 5.0  # Time for idle workers to end by themselves, and for killed ones to be reaped.


class Evaluation(NamedTuple):
    """The network's outputs over all evaluation batches, and the training block before the evaluation."""

    interval: Interval
    sums: Mapping[str, Any]
    arrays: Mapping[str, Any]


class Evaluator:
    """Runs the task's `quality` for each block; in a worker process or a pool of them, if the task asks for it.

    Its workers live as long as its context. With `enabled` false, as in every process but the first, the evaluator does
    nothing.
    """

    def __init__(self, task: Task, enabled: bool = True):
        self._task, self._quality, self._enabled = task, task.quality, enabled
        self._pending: list[tuple[Evaluation, concurrent.futures.Future]] = []
        self._workers = _Workers()
        self._pool: concurrent.futures.Executor | None = None
        self._thread: concurrent.futures.Executor | None = None
        self._warm: concurrent.futures.Future | None = None

    def __enter__(self) -> Evaluator:
        task, workers = self._task, self._task.evaluation_workers
        if not (task.evaluate_in_worker and self._enabled):
            return self
        self._pool = concurrent.futures.ProcessPoolExecutor(max(workers, 1), mp_context=self._workers)
        if workers:
            # The thread only submits work and waits: evaluations run one after the other, each on all workers.
            self._thread = concurrent.futures.ThreadPoolExecutor(1)
            self._quality = functools.partial(task.quality, spread=self._pool.map)
        else:
            # The argument makes the worker import the task's module while the first block trains.
            self._warm = self._pool.submit(id, self._quality)
        return self

    def __exit__(self, *_: Any) -> None:
        futures = [future for _, future in self._pending] + ([self._warm] if self._warm else [])
        idle = all(future.done() for future in futures)
        if self._thread:
            self._thread.shutdown(wait=idle, cancel_futures=True)
        if self._pool:
            self._end_pool(END_SECONDS if idle else 0.0)
        self._thread = self._pool = None
        self._quality = None  # The function may hold the pool.

    def _end_pool(self, patience: float) -> None:
        """Shuts the pool down, and kills workers that are still busy after `patience` seconds."""
        # The pool must end, because Python warns about semaphores that outlive the process. The wait needs a limit:
        # if a worker is killed while it sends its result, the pool waits forever for the rest.
        shutdown = functools.partial(self._pool.shutdown, cancel_futures=True)
        ending = threading.Thread(target=shutdown, name="end of evaluation", daemon=True)
        ending.start()
        began = time.monotonic()
        while ending.is_alive() and time.monotonic() < began + patience + END_SECONDS:
            ending.join(POLL_SECONDS)
            if time.monotonic() > began + patience:
                self._workers.kill()

    @property
    def pending(self) -> list[Evaluation]:
        """The evaluations whose results `finished` has not given yet, in the order of their blocks."""
        return [evaluation for evaluation, _ in self._pending]

    def submit(self, evaluation: Evaluation) -> None:
        """Starts an evaluation; raises UserError if the worker process has died."""
        if not self._enabled:
            return
        _, sums, arrays = evaluation
        executor = self._thread or self._pool
        if executor:
            with quality_explained():  # An idle worker may have died.
                future = executor.submit(self._quality, sums, arrays)
        else:
            future = concurrent.futures.Future()
            try:
                future.set_result(self._quality(sums, arrays))
            except (ValueError, LookupError) as error:
                future.set_exception(error)
        self._pending.append((evaluation, future))

    def wait(self, given_up: Callable[[], bool]) -> bool:
        """Waits until every evaluation has finished, or `given_up()`; returns whether they have finished."""
        waiting = [future for _, future in self._pending if not future.done()]
        while waiting and not given_up():
            waiting = list(concurrent.futures.wait(waiting, timeout=POLL_SECONDS).not_done)
        return not waiting

    def finished(self) -> Iterator[events.Evaluated]:
        """Yields finished evaluations in the order of their blocks.

        Raises UserError if the outputs do not add up, or the worker process died.
        """
        while self._pending and self._pending[0][1].done():
            (interval, *_), future = self._pending.pop(0)
            with quality_explained():
                quality: Quality = future.result()
            fields = quality.value, quality.reached, quality.details, quality.by_class, quality.confused
            yield events.Evaluated(interval, now(), *fields)


@contextlib.contextmanager
def quality_explained() -> Iterator[None]:
    """Turns an exception of a task's `quality`, here or in a worker, into a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"evaluation: {error}") from error
    except LookupError as error:
        lacking = f"({type(error).__name__}: {error})"
        raise UserError(f"evaluation: the outputs or the ground truth lack something {lacking}") from error
    except concurrent.futures.BrokenExecutor as error:
        raise UserError("evaluation: its worker process died; is there enough memory?") from error


class _Worker(multiprocessing.context.SpawnProcess):
    """A worker process that ends only when its parent kills it or ends.

    Signals that stop a run concern only the main process, but a launcher, a batch system or the terminal sends them to
    all of the process group. The worker starts with them blocked, so that none interrupts its imports.
    """

    def start(self) -> None:
        """Starts the process with these signals blocked; runs in the main process."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heartbeat.STOPS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        """Works, and ends with the parent; runs in the worker."""
        threading.Thread(target=_end_with_parent, daemon=True).start()
        super().run()

    def terminate(self) -> None:
        """Kills the process. A broken pool terminates its workers, and would wait forever for one that goes on."""
        self.kill()


def _end_with_parent() -> None:
    # A worker holds both ends of the pool's queues, so without this it would wait forever for work.
    multiprocessing.parent_process().join()
    os._exit(1)


class _Workers(multiprocessing.context.SpawnContext):
    """Makes and kills a pool's workers. They are spawned, because a forked TensorFlow deadlocks."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def Process(self, *args: Any, **kwargs: Any) -> _Worker:  # noqa: N802
        """As `multiprocessing.Process`."""
        self._workers.append(_Worker(*args, **kwargs))
        return self._workers[-1]

    def kill(self) -> None:
        """Kills every worker that has started."""
        for worker in list(self._workers):
            if worker.pid is not None:
                worker.kill()
