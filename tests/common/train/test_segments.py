"""Tests the cut of a graph into programs: equal results, what is in which program, and when gradients leave."""

import dataclasses
import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from common.distributed import replicas as backends
from common.train import compilation
from common.train.gradients import divided
from common.train.programs import Programs
from common.train.segments import Cut
from mnist import presets, task
from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.common.train import trace

WIDTH = 5


@pytest.mark.parametrize(
    "count, groups",
    [
        (1, [[5, 4, 3, 2, 1, 0]]),
        (2, [[5, 4, 3], [2, 1, 0]]),
        (3, [[5, 4], [3, 2], [1, 0]]),
        (9, [[5, 4], [3], [2], [1, 0]]),
    ],
)
def test_buckets_are_divided_by_bytes_in_their_order(count, groups):
    assert divided([[5, 4], [3], [2], [1, 0]], [10, 10, 20, 20, 10, 10], count) == groups


def test_one_bucket_is_one_group():
    assert divided([[1, 0]], [4, 4], 4) == [[1, 0]]


class Network:
    """Three layers of weights [WIDTH, WIDTH], and what graphs may have: a loop, a written variable, shapes."""

    def __init__(self, loops=()):
        start = np.random.default_rng(0).normal(size=[3, WIDTH, WIDTH])
        self.weights = [tf.Variable(w, name=f"w{i}") for i, w in enumerate(start)]
        self.moving_mean = tf.Variable(np.zeros(WIDTH), trainable=False)
        self._loops = loops

    def gradients(self, x):
        with tf.GradientTape() as tape:
            for i, weight in enumerate(self.weights):
                if i in self._loops:
                    x = tf.while_loop(
                        lambda k, _: k < 2,
                        lambda k, y, w=weight: (k + 1, tf.tanh(y @ w)),
                        (0, x),
                        maximum_iterations=2,
                    )[1]
                else:
                    x = tf.tanh(x @ weight)
                x = tf.reshape(x, tf.shape(x)) / tf.cast(tf.size(x), x.dtype)
            self.moving_mean.assign(0.9 * self.moving_mean + 0.1 * tf.reduce_mean(x, 0))
            loss = tf.reduce_sum(x * x)
        return [loss, tf.constant(7.0), *tape.gradient(loss, self.weights)]


def cut(network, groups):
    traced = tf.function(network.gradients, autograph=False).get_concrete_function(
        tf.TensorSpec([4, WIDTH], tf.float64)
    )
    return Cut(traced, groups)


X = np.random.default_rng(1).normal(size=[4, WIDTH])


@pytest.mark.parametrize(
    "loops, groups, programs",
    [
        ((), [[0, 1, 4], [3], [2]], 3),
        ((), [[0, 1, 2, 3, 4]], 1),
        (
            (),
            [[2], [3], [0, 1, 4]],
            3,
        ),  # The first program has nearly all, since the first layer's comes last.
        ((2,), [[0, 1, 4], [3], [2]], 3),
        ((1,), [[0, 1, 4], [3], [2]], 2),  # The loop's states cannot leave the program of its forward pass.
        ((0,), [[0, 1, 4], [3], [2]], 1),
    ],
)
def test_programs_compute_what_the_function_does(loops, groups, programs):
    network = Network(loops)
    actual = cut(network, groups)
    expected = [y.numpy() for y in network.gradients(tf.constant(X))]
    moved = network.moving_mean.numpy()
    network.moving_mean.assign(np.zeros(WIDTH))
    for call in (tf.function(lambda x: actual([x]), autograph=False), lambda x: actual([x])):
        network.moving_mean.assign(np.zeros(WIDTH))
        for mine, other in zip(call(tf.constant(X)), expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(network.moving_mean, moved, rtol=1e-12)
    assert len(actual.segments) == programs


def test_weights_are_read_and_not_passed_on():
    """A weight's value would be copied out of the first program; its handle is not."""
    network = Network()
    parts = cut(network, [[0, 1, 4], [3], [2]])
    assert not any("ReadVariableOp" in name for segment in parts.segments for name in segment.returns)
    assert [sum("resource" in name for name in segment.takes) for segment in parts.segments] == [4, 1, 1]


def test_what_is_only_written_is_in_the_program_of_the_forward_pass():
    first, *others = cut(Network(), [[0, 1, 4], [3], [2]]).segments
    assert any("resource" in name and "matmul" not in name for name in first.takes)
    assert not any("resource" in name and "matmul" not in name for other in others for name in other.takes)


# -- two processes: when the gradients leave ----------------------------------------------------------------------


RECORDED = 6


def recorded(folder, segments):
    """[(begin, end, type)] of what the first process's recorded steps did; None of the other process.

    A wide perceptron, so that the backward pass of the first layer takes longer than the exchange of a small tensor.
    """
    config = dataclasses.replace(
        presets.PRESETS["cpu-tiny"], model="mlp", hidden_units=1024, global_batch_size=1024,
        replicas="horovod", num_replicas=2, compile="on",
    )  # fmt: skip
    with updates.buckets_of(2**16), mock.patch.object(compilation, "ON_CPUS", segments):
        loop = Programs(task.Task(config, None), backends.make(config))
        loop.compile()
    main = loop.replicas.main
    if main:
        tf.profiler.experimental.start(str(folder))
    loop.call(loop.synthetic(True), loop.synthetic(False), RECORDED, 0)
    if not main:
        return None
    tf.profiler.experimental.stop()
    return trace.operations(folder)


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    calls = {
        str(segments): functools.partial(recorded, tmp_path_factory.mktemp("trace"), segments)
        for segments in (1, 3)
    }
    results = processes.run("horovod", 2, calls)
    return {segments: results[str(segments)][0] for segments in (1, 3)}


@pytest.mark.e2e  # The order of two processes' operations in a trace depends on their timing.
@pytest.mark.parametrize("segments", [1, 3])
def test_gradients_leave_while_others_are_computed(operations, segments):
    """Of several programs, exchanges begin before the last one ends, in some step; of one, none ever does.

    Which step shows it depends on when a busy machine lets the exchange's thread run.
    """
    step_operations = operations[segments]
    programs = [(begin, end) for begin, end, kind in step_operations if kind == "StatefulPartitionedCall"]
    exchanges = [begin for begin, _, kind in step_operations if kind == "HorovodAllreduce"]
    assert len(programs) == RECORDED * (segments + 1)  # The update is a program too.
    early = []
    for step in range(RECORDED):
        step_programs = programs[step * (segments + 1) :][: segments + 1]
        within = [begin for begin in exchanges if step_programs[0][0] < begin < step_programs[-2][1]]
        after = [begin for begin in exchanges if step_programs[-2][1] <= begin < step_programs[-1][0]]
        assert after or within
        early.append(len(within))
    # The first is the sum of the examples' weights; the others are gradients.
    assert max(early) >= 2 if segments > 1 else not any(early)
