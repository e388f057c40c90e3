"""Tests evaluation in a pool of workers: the loop never waits for an evaluation that fits into a block."""

import contextlib
import functools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from common.errors import UserError
from common.train import events
from common.train.evaluation_pool import END_SECONDS, Evaluation, Evaluator
from common.train.programs import Programs
from tests.benchmarks import wait_for
from tests.common.train import toy
from tests.common.train.loops import make, run

STEPS = 4  # Steps of a block.
PATIENCE = 120.0  # Seconds after which a worker gives up: only a loop that waits for it needs them.


def arrived(path: str) -> int:
    """Waits until the file exists, and returns the number of the waiting process."""
    end = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise ValueError(f"{path} did not come: the loop waits for this evaluation")
        time.sleep(0.02)
    return os.getpid()


class Pooled(toy.Task):
    """Its steps sleep and do nothing else of note; an evaluation ends only after the next block's second step."""

    evaluation_workers = 2

    def __init__(self, config: toy.Config, folder: pathlib.Path):
        super().__init__(config, True)
        self.folder, self.steps, self.blocks = folder, 0, 0

    def train_input(self, shard, batch_size, start_step):
        def slept(x: np.ndarray) -> np.ndarray:
            time.sleep(0.01)
            self.steps += 1
            (self.folder / str(self.steps)).touch()
            return x

        def map_one(batch: dict) -> dict:
            x = tf.numpy_function(slept, [batch["x"]], batch["x"].dtype)
            return {**batch, "x": tf.ensure_shape(x, batch["x"].shape)}

        return super().train_input(shard, batch_size, start_step).map(map_one)

    def quality(self, sums, arrays, spread=map):
        result = super().quality(sums, arrays)
        self.blocks += 1
        # No step follows the last evaluation.
        step = min(self.blocks * STEPS + 2, self.config.train_steps)
        workers = set(spread(arrived, [str(self.folder / str(step))] * 8))
        return toy.Quality(result.value, False, {"main": os.getpid() in workers, "workers": len(workers)})


class Failing(Pooled):
    def quality(self, sums, arrays, spread=map):
        return list(spread(int, ["no number"]))


def loop(task: type, folder: pathlib.Path) -> Programs:
    return make(lambda config: task(config, folder), steps_per_block=STEPS, train_steps=3 * STEPS)


def test_the_loop_never_waits_for_an_evaluation_that_fits_into_a_block(tmp_path):
    history = [e for e in run(loop(Pooled, tmp_path)) if not isinstance(e, events.Progress)]
    evaluated = [e for e in history if isinstance(e, events.Evaluated)]
    assert [e.interval.index for e in evaluated] == [0, 1, 2]
    assert not any(e.details["main"] for e in evaluated)
    assert all(1 <= e.details["workers"] <= 2 for e in evaluated)
    # The first two evaluations end only after the second step of the next block, so the loop did not wait for them.
    started = [e for e in history if isinstance(e, events.BlockStarted)]
    for event, following in zip(evaluated, started[1:]):
        assert history.index(following) < history.index(event)


def test_an_error_of_a_worker_ends_the_run(tmp_path):
    with pytest.raises(UserError, match="evaluation: invalid literal for int"):
        run(loop(Failing, tmp_path))


@pytest.mark.parametrize("wrong", [KeyError("area"), IndexError("out of range")])
def test_a_lookup_that_fails_is_one_line(wrong):
    def quality(sums, arrays):
        raise wrong

    evaluator = Evaluator(types.SimpleNamespace(quality=quality, evaluate_in_worker=False))
    evaluator.submit(Evaluation(None, {}, {}))
    with pytest.raises(UserError, match=f"evaluation: .* lack something .{type(wrong).__name__}: "):
        list(evaluator.finished())


def test_a_worker_that_died_while_it_had_nothing_to_do_is_one_line(tmp_path):
    with evaluator_of(tell_and_wait, tmp_path) as evaluator:
        (worker,) = multiprocessing.active_children()
        worker.kill()
        with pytest.raises(UserError, match="its worker process died"):
            for _ in range(1000):  # The pool notices it soon.
                time.sleep(0.02)
                evaluator.submit(Evaluation(None, {"until": "never"}, {}))


# -- Signals and ends ----------------------------------------------------------------------------------------


def tell_and_wait(folder: pathlib.Path, sums: dict, arrays: dict) -> toy.Quality:
    """A quality that writes its process number to `folder`/pid and waits for the file that `sums` names."""
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / "pid")
    arrived(str(folder / sums["until"]))
    return toy.Quality(1.0, False)


def die_or_wait(folder: pathlib.Path, sums: dict, arrays: dict, spread: Callable = map) -> None:
    list(spread(functools.partial(wait_or_die, folder), range(3)))


def wait_or_die(folder: pathlib.Path, number: int) -> None:
    """Call 0 waits for ever, 1 until 0 has begun; 2 dies. A pool starts new workers only when a result arrives."""
    if number == 0:
        tell_and_wait(folder, {"until": "never"}, {})
    arrived(str(folder / "pid"))
    if number == 2:
        os._exit(9)


def evaluator_of(quality: Callable, folder: pathlib.Path, workers: int = 0) -> Evaluator:
    quality = functools.partial(quality, folder)
    task = types.SimpleNamespace(quality=quality, evaluate_in_worker=True, evaluation_workers=workers)
    return Evaluator(task)


def busy(folder: pathlib.Path) -> int:
    """The number of the process that evaluates, once it does."""
    wait_for((folder / "pid").exists)
    return int((folder / "pid").read_text())


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and is not waited for does not."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_signals_to_all_of_a_group_leave_the_worker_alone_and_no_busy_one_stays(tmp_path):
    with evaluator_of(tell_and_wait, tmp_path) as evaluator:
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGTERM)  # The worker has not begun to import.
        evaluator.submit(Evaluation(None, {"until": "go"}, {}))
        assert busy(tmp_path) == worker.pid
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        assert evaluator.wait(lambda: False)
        assert [event.value for event in evaluator.finished()] == [1.0]
        (tmp_path / "pid").unlink()
        evaluator.submit(Evaluation(None, {"until": "never"}, {}))
        assert busy(tmp_path) == worker.pid
        began = time.monotonic()
    assert not worker.is_alive() and time.monotonic() - began < PATIENCE / 4


def test_a_pool_that_lost_a_worker_ends_the_others(tmp_path):
    with evaluator_of(die_or_wait, tmp_path, workers=2) as evaluator:
        evaluator.submit(Evaluation(None, {}, {}))
        assert evaluator.wait(lambda: False)
        with pytest.raises(UserError, match="its worker process died"):
            list(evaluator.finished())
        began = time.monotonic()
    # The workers end at once, not after the grace period.
    assert not multiprocessing.active_children() and time.monotonic() - began < END_SECONDS


KILLED = """
import pathlib, sys, time
from tests.common.train import test_evaluation_pool as tests

if __name__ == "__main__":
    evaluator = tests.evaluator_of(tests.tell_and_wait, pathlib.Path(sys.argv[1]))
    evaluator.submit(tests.Evaluation(None, {"until": "never"}, {}))
    time.sleep(tests.PATIENCE)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_worker_ends_with_a_main_process_that_was_killed(tmp_path):
    root = pathlib.Path(__file__).resolve().parents[3]
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(root)}
    main = subprocess.Popen([sys.executable, script, tmp_path], env=environment, stderr=subprocess.DEVNULL)
    worker = busy(tmp_path)
    assert alive(worker)
    main.kill()
    main.wait()
    wait_for(lambda: not alive(worker))
