"""Tests the loop on two processes: all stop after the same step with one reason; a fault of one ends all."""

import functools
import os
import re
import signal

import pytest
import tensorflow as tf

from common.distributed import replicas as backends
from common.errors import PeerLostError, UserError
from common.train import events, guard
from common.train.programs import Programs
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import losses, notes, of, run, stops
from tests.common.train.test_guard import flip
from tests.common.train.test_loop import NEVER, SlowEvaluation, SlowWorker, stop_when

NUMBER = 2


def make(backend, task=toy.Task, **changes):
    config = toy.config(replicas=backend, num_replicas=NUMBER, **{"quality_target": NEVER, **changes})
    return Programs(task(config), backends.make(config))


def outcome(loop, history, saved=()):
    """One process's view of a run, to compare with the other processes'."""
    stopped = history[-1]
    return {
        "stopped": (stopped.status, stopped.step, stopped.reason),
        "step": int(loop.state.step),
        "losses": [repr(x) for x in losses(history)],
        "evaluated": [e.value for e in of(events.Evaluated, history)],
        "saved": list(saved),
        "blocks": [e.interval.first_step for e in of(events.BlockStarted, history)],
    }


# -- called in every process -------------------------------------------------------------------------------------


def stop_on(backend, ranks):
    """SIGTERM reaches some processes, at different steps of a long block, the first of `ranks` before the others."""
    programs, saved = make(backend, toy.Slow, steps_per_block=500, train_steps=1000), []
    rank = programs.replicas.process_index

    def each(event, loop):
        if isinstance(event, events.Progress) and event.step >= 3 + rank and rank in ranks:
            loop._stop = "SIGTERM", 100.0 + ranks.index(rank)

    return outcome(programs, run(programs, each, save=notes(saved)), saved)


def stop_before(backend):
    programs = make(backend)
    stop = stops(lambda event: isinstance(event, events.RunStarted) and not programs.replicas.main, "SIGINT")
    return outcome(programs, run(programs, stop))


def stop_in_evaluation(backend):
    loop = make(backend, SlowEvaluation, train_epochs=2)
    condition = (lambda e: e.evaluating and e.step == 4) if loop.replicas.main else (lambda e: False)
    return outcome(loop, stop_when(loop, condition))


def succeed(backend):
    loop = make(backend, quality_target=0.0)
    loop.compile()
    return outcome(loop, run(loop))


def succeed_while_training(backend):
    """The first process' worker finishes the evaluation while the next block trains."""
    changes = {"steps_per_block": 400, "eval_epochs": (0.01,), "train_steps": 1000}
    loop = make(backend, SlowWorker, quality_target=0.0, **changes)
    loop.compile()
    return outcome(loop, run(loop))


def wait_for_the_last_evaluation(backend):
    loop = make(backend, functools.partial(SlowWorker, evaluate_in_worker=True), train_epochs=1)
    return outcome(loop, run(loop))


class ExplodesOnTheLast(toy.Task):
    """Puts NaN into the input of one process, from its sixth batch on."""

    def train_input(self, shard, batch_size, start_step):
        batches = shard.batches_per_step(self.config.global_batch_size, batch_size)

        def spoil(i, batch):
            bad = (i // batches + start_step >= 5) & (shard.index == shard.count - 1)
            return {**batch, "x": tf.where(bad, batch["x"] * float("nan"), batch["x"])}

        return super().train_input(shard, batch_size, start_step).enumerate().map(spoil)


def explode(backend):
    loop, saved = make(backend, ExplodesOnTheLast), []
    return outcome(loop, run(loop, save=notes(saved)), saved)


def start_apart(backend):
    """Gives one process other weights, then another step, and returns the messages."""
    loop, messages = make(backend), []
    rank, replicas = loop.replicas.process_index, loop.replicas
    for variable, change in ((loop.state.model.trainable_variables[0], 0.5), (loop.state.step, 4)):
        for copy in replicas.local_results(variable):
            value = tf.convert_to_tensor(copy)
            copy.assign(value + tf.cast(change * rank, value.dtype))
        with pytest.raises(UserError) as caught:
            run(loop)
        messages.append(str(caught.value))
    return messages


def flip_a_bit(backend):
    """Flips a bit of a weight of the last process after 8 steps; returns what the guard says, and the exit status."""
    loop = make(backend, steps_per_block=20, train_steps=20)
    call = loop.call

    def faulty(*arguments):
        result = call(*arguments)
        if not loop.replicas.main and int(loop.state.step) == 8 and not flipped:
            flipped.append(True)
            flip(loop, loop.state.model.trainable_variables[-2], 0)
        return result

    flipped = []
    loop.call = faulty
    with pytest.raises(UserError) as caught:
        run(loop, guard_steps=8)
    return str(caught.value), caught.value.exit_code


class FailsOnTheLast(toy.Task):
    def train_input(self, shard, batch_size, start_step):
        def check(i, batch):
            ok = (i < 6) | (shard.index < shard.count - 1)
            with tf.control_dependencies([tf.debugging.Assert(ok, ["label out of range"])]):
                return tf.nest.map_structure(tf.identity, batch)

        return super().train_input(shard, batch_size, start_step).enumerate().map(check)


def fail_on_one(backend):
    """Returns whether, and how soon, the survivor knows that its peer is lost; batch norm connects the two."""
    loop = make(backend, FailsOnTheLast, batch_norm_span=16)
    try:
        run(loop)
    except BaseException as error:
        if loop.replicas.process_index == NUMBER - 1:
            raise
        return loop.replicas.peer_lost(error), str(error)
    return None


def die(backend):
    """Kills the last process; returns whether the survivor knows."""
    loop = make(backend, toy.Slow, steps_per_block=500, train_steps=1000)
    last = loop.replicas.process_index == NUMBER - 1

    def each(event, _):
        if last and isinstance(event, events.Progress) and event.step >= 3:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        run(loop, each)
    except BaseException as error:
        return loop.replicas.peer_lost(error), str(error)
    return None


RUNS = {
    "stop on the last": functools.partial(stop_on, ranks=[1]),
    "stop on all": functools.partial(stop_on, ranks=[0, 1]), "stop before": stop_before,
    "stop in evaluation": stop_in_evaluation, "succeed": succeed,
    "succeed while training": succeed_while_training, "wait": wait_for_the_last_evaluation,
    "explode": explode, "start apart": start_apart, "flip a bit": flip_a_bit,
}  # fmt: skip


@pytest.fixture(scope="module", params=["horovod", "multiworker", "pjrt"])
def ran(request):
    calls = {name: functools.partial(call, request.param) for name, call in RUNS.items()}
    return processes.run(request.param, NUMBER, calls, timeout=300)


# -- claims ------------------------------------------------------------------------------------------------------


def same(results, *without):
    """Asserts that all processes have one outcome, except for the fields `without`, and returns it."""
    outcomes = [{k: v for k, v in r.items() if k not in without} for r in results]
    assert all(k == outcomes[0] for k in outcomes[1:])
    return results[0]


@pytest.mark.parametrize("name, rank", [("stop on the last", 1), ("stop on all", 0)])
def test_a_signal_to_any_process_stops_all_after_the_same_step(ran, name, rank):
    agreed = same(ran[name])
    status, step, reason = agreed["stopped"]
    assert (status, reason) == ("aborted", f"SIGTERM on rank {rank}")
    assert 3 <= step < 60 and agreed["step"] == step == len(agreed["losses"]) and agreed["saved"] == [step]


def test_a_stop_before_the_first_block_and_in_an_evaluation(ran):
    before = same(ran["stop before"])
    assert before["stopped"] == ("aborted", 0, "SIGINT on rank 1") and before["evaluated"] == []
    during = same(ran["stop in evaluation"])
    assert during["stopped"] == ("aborted", 4, "SIGTERM on rank 0") and during["evaluated"] == []


def test_success_of_the_first_process_ends_all(ran):
    actual = same(ran["succeed"], "evaluated")
    assert actual["stopped"][:2] == ("success", 4)
    assert [len(r["evaluated"]) for r in ran["succeed"]] == [1, 0]
    results = ran["succeed while training"]
    actual = same(results, "evaluated", "stopped")
    assert [r["stopped"][0] for r in results] == ["success"] * NUMBER
    assert results[0]["stopped"][1] == 4 and 4 < actual["step"] < 404 and actual["blocks"] == [0, 4]


def test_all_wait_for_the_last_evaluation(ran):
    agreed = same(ran["wait"], "evaluated")
    assert "not reached in 4 steps" in agreed["stopped"][2] and len(ran["wait"][0]["evaluated"]) == 1


def test_a_loss_that_is_not_a_number_on_one_process_ends_all_which_name_its_cause(ran):
    agreed = same(ran["explode"], "evaluated")
    cause = "first not finite: the input 'x' of step 6, after the healthy step 5"
    assert agreed["stopped"][2] == f"loss is nan at step 6; {cause}; fix the data" and agreed["saved"] == [4]


def test_processes_that_start_from_different_states_are_reported(ran):
    weights, steps = same([dict(enumerate(m)) for m in ran["start apart"]]).values()
    assert weights.startswith("the weights' digest differs: rank 0 has ")
    assert steps.startswith("the first step differs: rank 0 has 0, rank ") and "--checkpoint_dir" in steps


def test_the_rank_and_the_variable_of_a_flipped_bit_are_named(ran):
    """The launcher takes the message of the process that erred, whose status says so."""
    (first, lost), (second, faulty) = ran["flip a bit"]
    assert second.startswith("rank 1 computed wrong: at step ") and first == second
    assert re.search(r"weights/dense\S*/kernel differs .* on replica 1 alone", second)
    assert (lost, faulty) == (PeerLostError().exit_code, guard.FAULTY)


@pytest.mark.parametrize("fault", [fail_on_one, die])
def test_the_survivor_of_a_process_that_failed_or_was_killed_knows(fault):
    """Under multiworker a survivor learns it only from a missed heartbeat, so that the launcher ends the survivors.

    A survivor knows within a second on an idle machine; the grace is for a busy one. A Horovod without the part of
    tools/horovod/process_sets.patch that closes the queues of tensors hangs here now and then, for ever.
    """
    calls = {"fault": functools.partial(fault, "horovod")}
    results = processes.run("horovod", NUMBER, calls, timeout=240, grace=120)
    lost, error = results.of(0, "fault")
    assert lost, error
    assert fault is die or "label out of range" in results.report
