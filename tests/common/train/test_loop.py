"""Tests the loop: stops, faults, evaluation in a worker; equal seeds, equal losses. test_core.py has its numbers.

Each test runs with the loop around the steps in TensorFlow (`single`), in Python (`pjrt`), and in Python with three
steps in a call, of which a block's last call has fewer.
"""

import os
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Lars
from common.distributed import replicas as backends
from common.errors import UserError
from common.train import events, host_block
from common.train.programs import Programs
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import Recorder, loop_of, losses, notes, of, run, stops

NEVER = 2.0
BACKENDS = {
    "single": {"replicas": "single"},
    "pjrt": {"replicas": "pjrt"},
}
BACKEND = {"replicas": "single"}


@pytest.fixture(params=list(BACKENDS), autouse=True)
def backend(request, monkeypatch):
    """The backend of `make`."""
    fields = BACKENDS[request.param]
    processes.require(fields["replicas"])
    for field, value in fields.items():
        monkeypatch.setitem(BACKEND, field, value)


def make(task=toy.Task, worker=False, **changes):
    config = toy.config(**BACKEND, **changes)
    return Programs(task(config, worker), backends.make(config))


def weights(state):
    return [state.replicas.local_results(v)[0].numpy() for v in state.variables()]


def test_the_data_are_touched_when_the_clock_runs(monkeypatch):
    """The time is taken, all processes meet, run_start is told, and only then is any of the data read."""
    order = []

    class Watched(toy.Task):
        def check_data(self):
            order.append("check")

        def train_input(self, *arguments):
            order.append("train")
            return super().train_input(*arguments)

        def eval_input(self, *arguments):
            order.append("eval")
            return super().eval_input(*arguments)

    loop = make(Watched, quality_target=NEVER, train_epochs=1)
    monkeypatch.setattr(loop.agreement, "meet", lambda: order.append(time.time()))
    loop.compile()
    before = time.time()
    run(loop, lambda event, _: order.append(event))
    meeting, started, check, *rest = order
    assert isinstance(started, events.RunStarted) and before <= started.time <= meeting
    assert check == "check"
    first = next(i for i, event in enumerate(rest) if isinstance(event, events.BlockStarted))
    assert {"train", "eval"} == set(rest[:first])


def test_events_in_order_and_times_monotone():
    loop = make(quality_target=NEVER, train_epochs=2)
    loop.compile()
    began = time.time()
    history = [e for e in run(loop) if not isinstance(e, events.Progress)]
    kinds = [type(e).__name__ for e in history]
    block = ["BlockStarted", "Trained", "EvalRan", "Evaluated", "BlockStopped"]
    assert kinds == ["RunStarted", *block, *block, "RunStopped"]
    times = [began]
    for event in history:
        if isinstance(event, events.Trained):
            times += event.times
            assert len(set(event.times)) == len(event.times)
        elif isinstance(event, events.EvalRan):
            times += [event.start, event.stop]
        else:
            times.append(event.time)
    assert times == sorted(times) and times[-1] <= time.time()
    stopped = history[-1]
    assert (stopped.status, stopped.step) == ("aborted", 8) and "not reached in 8 steps" in stopped.reason


def test_a_batch_of_another_shape_is_refused():
    # Examples, and an example's shape.
    batch = {"x": types.SimpleNamespace(kind=((8, 3, 4), np.float64))}
    assert host_block._next(iter([batch]), [{"x": (3, 4)}]) is batch
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shapes"):
        host_block._next(iter([batch]), [{"x": (3, 5)}])


def test_compile_restores_every_variable_and_the_run_traces_nothing_more():
    loop = make(optimizer=Lars(base_learning_rate=0.1))
    before = weights(loop.state)
    loop.compile()
    for mine, other in zip(weights(loop.state), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    if BACKEND["replicas"] == "pjrt":
        programs = list(loop.replicas._programs)
        run(loop)
        assert list(loop.replicas._programs) == programs and len(programs) == 3
        return
    traces = loop.block._block.experimental_get_tracing_count()
    run(loop)
    assert loop.block._block.experimental_get_tracing_count() == traces == 1


def test_equal_seeds_give_identical_losses_and_another_does_not():
    def with_seed(seed):
        loop = make(seed=seed, quality_target=NEVER)
        loop.compile()
        history = run(loop)
        return np.array(losses(history)).tobytes(), [e.value for e in of(events.Evaluated, history)]

    first = with_seed(1)
    assert with_seed(1) == first
    assert with_seed(2)[0] != first[0]


class SlowEvaluation(toy.Task):
    """Each held-out batch takes 50 ms."""

    def eval_input(self, shard, batch_size):
        def wait(batch):
            tf.py_function(lambda: time.sleep(0.05), [], [])
            return batch

        return super().eval_input(shard, batch_size).map(wait)


def stop_when(programs, condition, saved=None):
    """Runs, and stops at the first progress event that meets `condition`."""
    stop = stops(lambda event: isinstance(event, events.Progress) and condition(event))
    return run(programs, stop, save=None if saved is None else notes(saved))


def test_a_long_block_stops_within_a_step_and_is_saved():
    loop = make(toy.Slow, steps_per_block=500, train_steps=1000, quality_target=NEVER)
    loop.compile()
    saved = []
    history = stop_when(loop, lambda e: e.step >= 3, saved)
    stopped = history[-1]
    assert (stopped.status, stopped.reason) == ("aborted", "SIGTERM")
    assert 3 <= stopped.step < 60 and saved == [stopped.step]
    assert len(losses(history)) == stopped.step
    assert not of(events.Evaluated, history) and not of(events.BlockStopped, history)
    assert int(loop.state.step) == stopped.step


def test_the_weights_that_met_the_target_are_saved():
    loop, saved = make(quality_target=0.0), []
    *_, stopped = run(loop, save=notes(saved))
    assert stopped.status == "success" and saved == [4]
    assert int(loop.state.step) == int(loop.state.evaluated) == stopped.step


@pytest.mark.parametrize("target, status", [(0.0, "success"), (2.0, "aborted")])
def test_an_evaluation_that_has_finished_counts_although_the_run_is_told_to_stop(target, status, monkeypatch):
    programs, recorder = make(quality_target=target), Recorder()
    loop, call = loop_of(programs, recorder), programs.call

    def stopped_at_its_end(*arguments):
        result = call(*arguments)
        loop.stop("SIGTERM")
        return result

    monkeypatch.setattr(programs, "call", stopped_at_its_end)
    loop.run()
    assert len(of(events.Evaluated, recorder.events)) == 1 and recorder.events[-1].status == status


def test_a_checkpoint_that_fails_after_the_target_was_met_leaves_the_success():
    def fail(_):
        raise UserError("disk full")

    loop, history = make(quality_target=0.0), []
    with pytest.raises(UserError, match="disk full"):
        run(loop, lambda event, _: history.append(event), save=fail)
    assert history[-1].status == "success"


def test_stopped_in_an_evaluation_it_resumes_with_it():
    whole = make(quality_target=NEVER, train_epochs=2)
    expected = [e.value for e in of(events.Evaluated, run(whole))]
    loop = make(SlowEvaluation, quality_target=NEVER, train_epochs=2)
    loop.compile()
    history = stop_when(loop, lambda e: e.evaluating and e.step == 4)
    assert history[-1].step == 4 and not of(events.Evaluated, history)

    resumed = make(quality_target=NEVER, train_epochs=2)
    resumed.state.restore(loop.state.snapshot())
    history = run(resumed)
    intervals = [event.interval for event in of(events.BlockStarted, history)]
    assert [(x.first_step, x.num_steps) for x in intervals] == [(4, 0), (4, 4)]
    assert [e.value for e in of(events.Evaluated, history)] == expected
    for mine, other in zip(weights(resumed.state), weights(whole.state), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_stop_from_another_thread_before_the_first_block():
    programs, recorder = make(quality_target=NEVER), Recorder()
    programs.compile()
    loop = loop_of(programs, recorder)
    thread = threading.Thread(target=loop.stop, args=("told to",))
    thread.start()
    thread.join()
    loop.run()
    assert recorder.events[-1].reason == "told to" and recorder.events[-1].step == 0


class ExplodesLater(toy.Task):
    def train_input(self, shard, batch_size, start_step):
        def spoil(i, batch):
            return {**batch, "x": tf.where(i >= 4, batch["x"] * float("nan"), batch["x"])}

        return super().train_input(shard, batch_size, start_step).enumerate().map(spoil)


def test_nan_in_a_later_block_names_its_step_even_when_the_run_is_told_to_stop():
    loop = make(ExplodesLater, quality_target=NEVER)
    loop.compile()
    saved = []
    late = stops(
        lambda event: isinstance(event, events.Progress) and event.interval.index == 1 and event.step == 5
    )
    history = run(loop, late, save=notes(saved))
    assert "loss is nan at step 5" in history[-1].reason
    assert len(losses(history)) == 5, "no step after it counts"
    assert saved == [4] and len(of(events.Evaluated, history)) == 1


def test_input_that_fails_ends_the_run():
    class Broken(toy.Task):
        def train_input(self, shard, batch_size, start_step):
            def check(i, batch):
                with tf.control_dependencies([tf.debugging.Assert(i < 6, ["label out of range"])]):
                    return tf.nest.map_structure(tf.identity, batch)

            return super().train_input(shard, batch_size, start_step).enumerate().map(check)

    loop = make(Broken, quality_target=NEVER)
    loop.compile()
    history = []
    with pytest.raises(tf.errors.InvalidArgumentError, match="label out of range"):
        run(loop, lambda event, _: history.append(event))
    assert len(of(events.Evaluated, history)) == 1


def test_an_error_of_a_listener_stops_the_steps():
    def fail(event, _):
        if isinstance(event, events.Progress) and event.step:
            raise UserError("disk full")

    loop = make(toy.Slow, steps_per_block=5000, train_steps=5000, quality_target=NEVER)
    loop.compile()
    with pytest.raises(UserError, match="disk full"):
        run(loop, fail)
    assert 0 < int(loop.state.step) < 60


def test_outputs_that_do_not_add_up_are_an_error():
    class Wrong(toy.Task):
        def eval_input(self, shard, batch_size):
            return super().eval_input(shard, batch_size).skip(4).repeat(5)

    with pytest.raises(UserError, match="^evaluation: .* examples seen"):
        run(make(Wrong))


class Worker(toy.Task):
    """A task whose quality takes a while and reports the number of its process."""

    def __init__(self, config, evaluate_in_worker=True):
        super().__init__(config, True)

    def quality(self, sums, arrays):
        result = super().quality(sums, arrays)
        time.sleep(0.3)
        return toy.Quality(result.value, result.reached, {"pid": os.getpid()})


class SlowWorker(Worker, toy.Slow):
    seconds = 0.05


class DyingWorker(Worker):
    def quality(self, sums, arrays):
        os._exit(9)


def test_evaluation_in_a_worker_while_the_next_block_trains():
    """One test for all that needs worker processes: each takes seconds to start."""
    loop = make(SlowWorker, quality_target=0.0, steps_per_block=4000, eval_epochs=(0.001,), train_steps=10000)
    loop.compile()
    history = [e for e in run(loop) if not isinstance(e, events.Progress)]
    kinds = [type(e).__name__ for e in history]
    block = ["BlockStarted", "Trained", "EvalRan", "BlockStopped"]
    # The result arrives while the second block trains; the block ends at its next step and is not reported as trained.
    assert kinds == ["RunStarted", *block, "BlockStarted", "Evaluated", "RunStopped"]
    evaluated, stopped = history[-2:]
    assert evaluated.details["pid"] != os.getpid() and evaluated.interval.index == 0
    assert (stopped.status, stopped.step, stopped.time) == ("success", 4, evaluated.time)
    assert 4 < int(loop.state.step) < 4000

    # The run waits for every evaluation before it gives up, and reports none twice.
    loop = make(Worker, quality_target=NEVER, train_epochs=2)
    history = run(loop)
    assert [e.interval.index for e in of(events.Evaluated, history)] == [0, 1]
    assert history[-1].status == "aborted"

    with pytest.raises(UserError, match="its worker process died"):
        run(make(DyingWorker, quality_target=NEVER))
