"""Tests batches of several shapes: a program for each, all compiled before the clock starts, on any replicas."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.distributed import replicas
from common.distributed.replicas.base import Shard
from common.train import events
from common.train.programs import Programs
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import run

LENGTHS = (2, 3, 5)


def varied(batches: tf.data.Dataset, per_step: int = 1) -> tf.data.Dataset:
    """Repeats the vectors of a step's `per_step` batches by a factor from the step's number."""

    def repeat(i: tf.Tensor, batch: dict) -> dict:
        length = tf.gather(LENGTHS, (i // per_step) % 3)
        return {**batch, "x": tf.repeat(batch["x"][:, None], length, axis=1)}

    return batches.enumerate().map(repeat)


class Task(toy.Task):
    """Repeats the toy's vectors by a factor from the step's number; records the traced and the run shapes."""

    batch_shapes = tuple({"x": [n, toy.FEATURES]} for n in LENGTHS)

    def __init__(self, config: toy.Config):
        super().__init__(config)
        self.traced: list[int] = []
        self.ran: list[int] = []

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        per_step = self.config.global_batch_size // shard.count // batch_size
        return varied(super().train_input(shard, batch_size, start_step), per_step)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        return varied(super().synthetic_input(batch_size))

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        return super().synthetic_input(batch_size)

    def loss(self, model, batch):
        assert all(x.shape.is_fully_defined() for x in batch.values())
        length = batch["x"].shape[1]
        self.traced.append(length)

        def note(actual: np.ndarray) -> np.ndarray:
            self.ran.append((length, int(actual)))
            return actual

        (actual,) = tf.numpy_function(note, [tf.shape(batch["x"])[1]], [tf.int32])
        with tf.control_dependencies([actual]):
            return super().loss(model, {**batch, "x": tf.reduce_mean(batch["x"], 1)})


def trained(task: toy.Task) -> tuple[list[float], Programs]:
    loop = Programs(task, replicas.make(task.config))
    loop.compile()
    if hasattr(task, "ran"):
        task.compiled, task.ran, before = task.ran[:], [], task.traced[:]
    losses = [x for e in run(loop) if isinstance(e, events.Trained) for x in e.losses]
    if hasattr(task, "ran"):
        assert task.traced == before  # The clock was running.
    return losses, loop


@pytest.mark.parametrize("count", [1, 2])
def test_every_shape_compiles_before_the_clock_and_trains_as_if_there_were_one(count):
    changes = {"replicas": "mirrored", "num_replicas": 2} if count == 2 else {}
    config = toy.config(train_epochs=2, precision="fp64", **changes)
    task = Task(config)
    losses, loop = trained(task)
    assert sorted(set(task.compiled)) == [(n, n) for n in LENGTHS]
    assert sorted(set(task.traced)) == list(LENGTHS)
    steps = list(itertools.islice(itertools.cycle(LENGTHS), len(losses)))
    assert sorted(task.ran) == sorted([(n, n) for n in steps] * count)
    plain, other = trained(toy.Task(config))
    np.testing.assert_allclose(losses, plain, rtol=1e-12)
    for mine, theirs in zip(loop.state.model.trainable_variables, other.state.model.trainable_variables):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10)


def test_a_batch_of_an_unknown_shape_is_an_error():
    task = Task(toy.config(train_epochs=2))
    task.batch_shapes = task.batch_shapes[:2]
    loop = Programs(task, replicas.make(task.config))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected shape"):
        run(loop)


def test_compiled_by_xla_it_is_compiled_once_per_shape():
    task = Task(toy.config(train_epochs=2, compile="on"))
    plain = toy.Task.loss
    task.loss = lambda model, batch: plain(task, model, {**batch, "x": tf.reduce_mean(batch["x"], 1)})
    loop = Programs(task, replicas.make(task.config))
    loop.compile()
    assert loop.block._train_step.experimental_get_tracing_count() == 3
    assert len(run(loop)) and loop.block._train_step.experimental_get_tracing_count() == 3


@pytest.mark.parametrize("count", [1, 2])
def test_programs_of_pjrt_are_compiled_before_the_clock_one_for_each_shape(count):
    processes.require("pjrt")
    config = toy.config(
        train_epochs=2, precision="fp64", quality_target=2.0, replicas="pjrt", num_replicas=count
    )
    task = Both(config)
    plain = toy.Task.loss
    task.loss = lambda model, batch: plain(task, model, {**batch, "x": tf.reduce_mean(batch["x"], 1)})
    loop = Programs(task, replicas.make(config))
    loop.compile()
    programs = list(loop.replicas._programs)
    assert len(programs) == 3 + 3 + 1  # Training, evaluation, and the moments' merge before it.
    losses = [x for e in run(loop) if isinstance(e, events.Trained) for x in e.losses]
    assert list(loop.replicas._programs) == programs
    np.testing.assert_allclose(losses, trained(toy.Task(config))[0], rtol=1e-12)

    task.batch_shapes = task.batch_shapes[:2]
    loop = Programs(task, replicas.make(config))
    loop.compile()
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected shape"):
        run(loop)


class Evaluating(toy.Task):
    """Evaluates the toy on vectors repeated by a factor from the batch's number."""

    eval_batch_shapes = Task.batch_shapes

    def __init__(self, config: toy.Config):
        super().__init__(config)
        self.traced: list[int] = []

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        copies = self.config.eval_batch_size // shard.count // batch_size
        return varied(super().eval_input(shard, batch_size), copies)

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        return varied(super().synthetic_input(batch_size))

    def evaluate(self, model, batch):
        self.traced.append(batch["x"].shape[1])
        return super().evaluate(model, {**batch, "x": tf.reduce_mean(batch["x"], 1)})


@pytest.mark.parametrize("count", [1, 2])
def test_evaluation_batches_of_several_shapes_count_as_if_there_were_one(count):
    changes = {"replicas": "mirrored", "num_replicas": 2} if count == 2 else {}
    config = toy.config(train_epochs=2, precision="fp64", **changes)
    tasks = Evaluating(config), toy.Task(config)
    actual = []
    for task in tasks:
        loop = Programs(task, replicas.make(config))
        loop.compile()
        before = list(getattr(task, "traced", ()))
        actual.append([e.value for e in run(loop) if isinstance(e, events.Evaluated)])
        assert list(getattr(task, "traced", ())) == before  # The clock was running.
    assert actual[0] == actual[1] and len(actual[0]) == 2
    assert set(tasks[0].traced) == set(LENGTHS)


class Both(Evaluating, Task):
    """Batches of several shapes in training and in evaluation."""

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        return self.synthetic_input(batch_size)


def whole_run(**changes: Any) -> dict[str, list]:
    """Losses, values of evaluations, weights, and (traced length, length) of every step of this process."""
    task = Both(toy.config(train_epochs=2, precision="fp64", num_replicas=2, quality_target=2.0, **changes))
    loop = Programs(task, replicas.make(task.config))
    loop.compile()
    task.ran = []
    history = run(loop)
    variables = loop.state.model.trainable_variables
    return {
        "losses": [float(x) for e in history if isinstance(e, events.Trained) for x in e.losses],
        "values": [e.value for e in history if isinstance(e, events.Evaluated)],
        "weights": [loop.replicas.local_results(v)[0].numpy() for v in variables],
        "ran": sorted(task.ran),
    }


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["horovod", "multiworker"])
def test_two_processes_take_the_same_shape_in_a_step_and_train_as_one_does(backend):
    calls = {"run": functools.partial(whole_run, replicas=backend)}
    actual = processes.run(backend, 2, calls, timeout=200)["run"]
    one = whole_run(replicas="mirrored")
    assert len(one["losses"]) == 8 and len(one["values"]) == 2
    # Only the first process computes an evaluation's value, from the outputs of all.
    assert [mine["values"] for mine in actual] == [one["values"], []]
    for mine in actual:
        np.testing.assert_allclose(mine["losses"], one["losses"], rtol=1e-10)
        assert sorted(mine["ran"] * 2) == one["ran"]
        for weight, other in zip(mine["weights"], one["weights"], strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-9, atol=1e-12)
