"""Tests that the guard sees a changed bit, names the replica, and that a run with it equals one without."""

import functools
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Lars
from common.config.schema import Communication
from common.errors import UserError
from common.train import events, guard
from common.train.programs import Programs
from tests.common.train import loops
from tests.common.train.loops import notes, of, run


def make(replicas: str, number: int = 2, **changes) -> Programs:
    changes = {"steps_per_block": 20, "train_steps": 40, **changes}
    return loops.make(replicas=replicas, num_replicas=number, **changes)


def flip(loop: Programs, variable: tf.Variable, replica: int, bit: int = 20) -> None:
    """Flips a bit of a variable's last element on one replica."""
    copy = loop.replicas.local_results(variable)[replica]
    value = np.array(copy.numpy())
    value.reshape(-1).view(np.uint32)[-1] ^= np.uint32(1 << bit)
    copy.assign(value)


def run_with(loop: Programs, at: int, fault, steps: int = 8, each=lambda *_: None) -> list:
    """Runs a loop; `fault()` happens once, after step `at`, where the guard cuts the block."""
    call, done = loop.call, []

    def faulty(train, evaluation, steps, eval_steps):
        result = call(train, evaluation, steps, eval_steps)
        if int(loop.state.step) == at and not done:
            done.append(fault())
        return result

    loop.call = faulty
    return run(loop, each, guard_steps=steps)


def test_any_single_bit_changes_a_digest():
    array = np.random.default_rng(0).normal(size=21).astype(np.float32)
    sound = guard.digest(array)
    for i in range(array.size):
        for bit in range(32):
            changed = array.copy()
            changed.view(np.uint32)[i] ^= np.uint32(1 << bit)
            assert sound != guard.digest(changed) < 1 << 61


@pytest.mark.parametrize("replicas", ["mirrored", "pjrt"])
def test_a_run_with_the_guard_equals_one_without(replicas):
    runs = []
    for steps in (8, 0):
        loop = make(replicas, batch_norm_span=8)
        history = [
            e for e in run(loop, guard_steps=steps) if isinstance(e, events.Trained | events.Evaluated)
        ]
        losses = [x for e in history if isinstance(e, events.Trained) for x in e.losses]
        runs.append((losses, [e.value for e in history if isinstance(e, events.Evaluated)]))
    assert len(runs[0][0]) == 40
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-6)
    assert runs[0][1] == runs[1][1]


@pytest.mark.parametrize("replicas, where", [("mirrored", "slot"), ("pjrt", "weight")])
def test_the_replica_and_the_variable_of_a_flipped_bit_are_named(replicas, where):
    optimizer = Lars(base_learning_rate=0.5)
    loop = make(replicas, optimizer=optimizer)
    weight = loop.state.model.trainable_variables[-2]  # dense_1's kernel
    variable = weight if where == "weight" else loop.state.update.slots[-2]["momentum"]
    with pytest.raises(UserError) as caught:
        run_with(loop, 16, lambda: flip(loop, variable, 1))
    message = str(caught.value)
    assert message.startswith("rank 0 computed wrong: at step 16, ") and "on replica 1 alone" in message
    # A slot's error is in its weight at the next step; both belong to the same weight.
    assert "kernel" in message and "since 8" in message
    assert caught.value.exit_code == guard.FAULTY


@pytest.mark.parametrize("replicas, number", [("mirrored", 2), ("mirrored", 3), ("pjrt", 2)])
def test_a_wrong_weight_is_named_although_it_makes_all_later_gradients_wrong(replicas, number):
    """Every replica then gets other bits in the replay: one that differs from the others, or is farther, erred."""
    loop = make(replicas, number, global_batch_size=12, eval_batch_size=12)
    one = guard.Guard(loop, 8)
    one.on_start()
    train, nothing = loop.train_input(0), loop.synthetic(False)
    loop.call(train, nothing, 3, 0)
    flip(loop, loop.state.model.trainable_variables[-2], 1)
    loop.call(train, nothing, 5, 0)
    with pytest.raises(UserError, match="^rank 0 computed wrong: at step 8, .*on replica 1 alone"):
        one.check(8)


def test_a_replay_that_does_not_repeat_names_no_one(monkeypatch):
    loop = make("mirrored")
    variable = loop.state.model.trainable_variables[0]
    replay = guard.Guard.replay

    def worse(self, step):
        since = replay(self, step)
        flip(loop, variable, 0)
        return since

    monkeypatch.setattr(guard.Guard, "replay", worse)
    with pytest.raises(UserError, match="a replay of the steps since 8 does not say which is wrong"):
        run_with(loop, 16, lambda: flip(loop, variable, 1))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_replay_tells_its_progress_and_whether_it_was_stopped(monkeypatch, stopped):
    loop, phases = make("mirrored", steps_per_block=40), []
    one = guard.Guard(loop, 40)
    monkeypatch.setattr(
        guard.heartbeat, "at_step", lambda step, *_: phases.append((guard.heartbeat.phase(""), step))
    )
    weight = loop.state.model.trainable_variables[0]
    fault = lambda: (flip(loop, weight, 1), phases.clear(), stopped and loop.block.stop())  # noqa: E731
    with pytest.raises(
        UserError, match="which is wrong: a signal stopped it" if stopped else "on replica 1 alone"
    ):
        one.on_start()
        loop.call(loop.train_input(0), loop.synthetic(False), 40, 0)
        fault()
        one.check(40)
    assert phases[0] == ("repeats steps", 0 if stopped else 20)


def test_a_sharded_run_compares_its_weights():
    loop = make("mirrored", communication=Communication(weight_update="sharded"))
    with pytest.raises(UserError, match="on replica 1 alone"):
        run_with(loop, 16, lambda: flip(loop, loop.state.model.trainable_variables[0], 1))


@pytest.mark.parametrize(("target", "at"), [(2.0, 40), (0.0, 20)], ids=["missed", "success"])
def test_nobody_learns_of_the_end_before_the_last_comparison(target, at):
    """Of a run that is shorter than the steps between comparisons, and saves nothing."""
    loop, history = make("pjrt", quality_target=target), []
    fault = functools.partial(flip, loop, loop.state.model.trainable_variables[0], 1)
    with pytest.raises(UserError, match=f"at step {at}, .* on replica 1 alone"):
        run_with(loop, at, fault, 1000, lambda event, _: history.append(event))
    assert of(events.Evaluated, history)[-1].interval.end_step == at and not of(events.RunStopped, history)


@pytest.mark.parametrize("target", [2.0, 0.0])
def test_no_checkpoint_of_replicas_that_differ_is_saved(target):
    """Not even that of a run that has met its target."""
    loop, saved = make("mirrored", quality_target=target), []
    call = loop.call

    def faulty(*arguments):
        result = call(*arguments)
        if arguments[2]:
            flip(loop, loop.state.model.trainable_variables[0], 1)
        return result

    loop.call = faulty
    with pytest.raises(UserError, match="at step 20"):
        run(loop, save=notes(saved), guard_steps=1000)
    assert saved == []


def test_one_replica_and_zero_steps_compare_nothing_and_keep_the_first_state_for_a_while(monkeypatch):
    monkeypatch.setattr(guard.Guard, "_state", lambda _: [])
    for number, steps in ((1, 8), (2, 0)):
        replicas = types.SimpleNamespace(num_replicas=number, num_processes=2)
        config = types.SimpleNamespace(state_bytes=0)
        loop = types.SimpleNamespace(replicas=replicas, config=config, state=types.SimpleNamespace(step=0))
        one = guard.Guard(loop, steps)
        one.on_start()
        one.check(5)
        assert one.next_pause(3, 100) == math.inf and one.can_replay
        with monkeypatch.context() as later:
            later.setattr(guard, "REPLAY_SECONDS", -1)
            one.next_pause(4, 100)
        assert not one.can_replay
