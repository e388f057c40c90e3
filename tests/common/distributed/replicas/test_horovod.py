"""Tests collectives of two and four processes under Horovod, and their gradients, against numpy; error messages."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.errors import UserError
from tests.common.distributed.replicas import processes
from tests.common.distributed.replicas import test_replicas as reference

DTYPES = ["float64", "float32", "float16", "bfloat16", "int32", "int64"]
MOVED = [*DTYPES, "uint8", "int16", "bool"]


@functools.cache
def made(number):
    return backends.make(RunConfig(replicas="horovod", num_replicas=number))


def inputs(number, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=[4, 8, 3]) for _ in range(number)]


# -- called in every process -------------------------------------------------------------------------------------


def linear_collectives(number):
    """{(name, options, groups): (result, gradient)} in a function, and in a loop of a function."""
    replicas = made(number)
    rank = replicas.process_index
    actual = {}
    for label, groups in reference.groups_of(number).items():
        for name, options in reference.CALLS:

            @tf.function(autograph=False)
            def step(x, upstream, name=name, options=options, groups=groups):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = getattr(replicas, name)(x, groups=groups, **options)
                return y, tape.gradient(y, x, output_gradients=upstream)

            x = tf.constant(inputs(number, 0)[rank])
            shape = getattr(replicas, name)(x, groups=groups, **options).shape
            upstream = np.random.default_rng(10 + rank).normal(size=shape)
            actual[name, tuple(options.items()), label] = [v.numpy() for v in step(x, tf.constant(upstream))]
    return actual


def dtypes(number):
    """Results of a sum and of a gather for each dtype: (dtype, first element)."""
    replicas = made(number)

    def one(function, dtype):
        y = function(tf.cast(tf.fill([number], replicas.process_index + 1), dtype))
        return y.dtype.name, float(tf.cast(y[0], tf.float64)), float(tf.cast(y[-1], tf.float64))

    sums = {
        (f.__name__, d): one(f, d) for f in (replicas.all_reduce, replicas.reduce_scatter) for d in DTYPES
    }
    moves = {(f.__name__, d): one(f, d) for f in (replicas.all_gather, replicas.all_to_all) for d in MOVED}
    return sums | moves


def looped(number):
    """Ten rounds of x <- all_reduce(x) / number + shift(x) in one while loop, with its gradient."""
    replicas = made(number)

    @tf.function(autograph=False)
    def loop(x):
        def body(i, x):
            return i + 1, replicas.all_reduce(x) / number + replicas.shift(x, 1)

        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, _: i < 10, body, (0, x), parallel_iterations=1, maximum_iterations=10
            )
            total = tf.reduce_sum(y)
        return y, tape.gradient(total, x)

    return [v.numpy() for v in loop(tf.constant(inputs(number, 1)[replicas.process_index]))]


def many_at_once(number):
    """Collectives without an order between them, in different groups."""
    replicas = made(number)
    groups = [list(range(number)), *([[0, 1], [2, 3]] if number == 4 else [])]

    @tf.function(autograph=False)
    def step(x):
        parts = [replicas.all_reduce(x * i, None if i % 2 else groups[1:] or None) for i in range(40)]
        return tf.add_n(parts)

    return step(tf.constant(inputs(number, 2)[replicas.process_index])).numpy()


def constants_and_unused_results(number):
    """A collective of a constant; one whose result only some processes use."""
    replicas = made(number)

    @tf.function(autograph=False)
    def step():
        mine = replicas.shift(tf.ones([3]), number - 1)
        return replicas.all_reduce(tf.constant(2.0)), mine

    return [v.numpy() for v in step()]


def shifted(number):
    """(what a shift's graph sends with, {dtype: the first element that a shift brings})."""
    replicas = made(number)

    @tf.function(autograph=False)
    def step(x):
        return replicas.run(lambda x: replicas.shift(x, 1), (x,))

    actual = {}
    for dtype in MOVED:
        x = tf.cast(tf.fill([2], replicas.process_index + 1), dtype)
        actual[dtype] = float(tf.cast(step(x), tf.float32).numpy()[0])
    graph = step.get_concrete_function(tf.zeros([2])).graph
    return sorted(
        {op.type for op in graph.get_operations() if op.type.startswith(("Horovod", "Collective"))}
    ), actual


def outside(number):
    replicas = made(number)
    rank = replicas.process_index
    own = replicas.per_replica_variable(tf.fill([2], float(rank)), "own")
    data = list(replicas.dataset(lambda shard: tf.data.Dataset.from_tensors([shard.index, shard.count])))

    @tf.function(autograph=False)
    def graph(x):
        return replicas.sum({"x": x}), replicas.gather({"x": x})

    added, gathered = graph(tf.fill([rank + 1], 1.0)[:1])
    return {
        "agree": [replicas.agree(v) for v in (rank, -rank, 7)],
        "all_values": replicas.all_values(own).tolist(),
        "sum": added["x"].numpy().tolist(),
        "gather": gathered["x"].numpy().tolist(),
        "uneven": replicas.gather(tf.range(rank + 1)).numpy().tolist(),
        "shard": data[0].numpy().tolist(),
        "main": replicas.main,
        "processes": (replicas.process_index, replicas.num_processes),
    }


def wrong_number(number):
    with pytest.raises(UserError, match=f"num_replicas=7: the launcher started {number} processes"):
        backends.make(RunConfig(replicas="horovod", num_replicas=7))
    with pytest.raises(UserError, match="cannot add tensors of complex64"):
        made(number).all_reduce(tf.zeros([2], tf.complex64))
    with pytest.raises(UserError, match="cannot send tensors of string"):
        made(number).all_gather(tf.constant(["x"]))
    made(number).close()


CALLS = [
    linear_collectives, dtypes, looped, many_at_once, constants_and_unused_results, shifted, outside,
    wrong_number,
]  # fmt: skip


@pytest.fixture(scope="module", params=[2, 4])
def ran(request):
    """(number of processes, the results of all calls in them)."""
    calls = {f.__name__: functools.partial(f, request.param) for f in CALLS}
    return request.param, processes.run("horovod", request.param, calls, timeout=120)


# -- claims --------------------------------------------------------------------------------------------------------


def test_collectives_and_their_gradients(ran):
    number, results = ran
    actual = results["linear_collectives"]
    values = inputs(number, 0)
    for (name, options, label), _ in actual[0].items():
        groups, options = reference.groups_of(number)[label], dict(options)
        got, gradient = zip(*(values[name, tuple(options.items()), label] for values in actual))
        upstream = [np.random.default_rng(10 + i).normal(size=y.shape) for i, y in enumerate(got)]
        probes = [inputs(number, 100 + seed) for seed in range(5)]
        reference.check_linear(name, groups, options, values, got, upstream, gradient, probes)


def test_dtypes_are_kept(ran):
    number, results = ran
    total = number * (number + 1) / 2
    for rank, found in enumerate(results["dtypes"]):
        for (name, dtype), (kept, first, last) in found.items():
            assert kept == dtype
            ends = (total, total) if name in ("all_reduce", "reduce_scatter") else (1, number)
            assert (first, last) == ((1, 1) if dtype == "bool" else ends), (name, dtype, rank)


def test_collectives_in_a_loop_and_their_gradients(ran):
    number, results = ran
    matrix = np.full([number, number], 1 / number) + np.eye(number, k=-1)
    power = np.linalg.matrix_power(matrix, 10)
    values = np.stack(inputs(number, 1))
    for rank, (y, gradient) in enumerate(results["looped"]):
        np.testing.assert_allclose(y, np.tensordot(power[rank], values, 1), rtol=1e-10)
        np.testing.assert_allclose(gradient, np.full([4, 8, 3], power[:, rank].sum()), rtol=1e-10)


def test_many_collectives_at_once(ran):
    number, results = ran
    values = inputs(number, 2)
    for rank, got in enumerate(results["many_at_once"]):
        pair = values[rank // 2 * 2] + values[rank // 2 * 2 + 1]
        expected = sum(range(1, 40, 2)) * sum(values) + sum(range(0, 40, 2)) * pair
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_collectives_of_constants_and_results_that_some_ignore(ran):
    number, results = ran
    for rank, (total, mine) in enumerate(results["constants_and_unused_results"]):
        assert total == 2 * number and mine.tolist() == [float(rank == number - 1)] * 3


def test_a_shift_sends_to_the_neighbour_alone(ran):
    number, results = ran
    for rank, (operations, found) in enumerate(results["shifted"]):
        assert operations == ["HorovodAlltoall"]
        assert found == {dtype: min(1, rank) if dtype == "bool" else rank for dtype in found}


def test_outside_run(ran):
    number, results = ran
    for rank, found in enumerate(results["outside"]):
        assert found == {
            "agree": [number - 1, 0, 7],
            "all_values": [[float(i)] * 2 for i in range(number)],
            "sum": [float(number)],
            "gather": [1.0] * number,
            "uneven": [x for i in range(number) for x in range(i + 1)],
            "shard": [rank, number],
            "main": rank == 0,
            "processes": (rank, number),
        }


def test_mistakes_are_named_and_close_ends_it(ran):
    assert ran[1]["wrong_number"] == [None] * ran[0]


def test_without_a_launcher_it_names_one():
    code = (
        "from common.distributed import replicas; from common.config.schema import RunConfig\n"
        "try: replicas.make(RunConfig(replicas='horovod', num_replicas=2))\n"
        "except replicas.base.UserError as error: print(error)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=processes.ROOT, env=environment, capture_output=True, text=True
    )
    assert "timetotrain launch --replicas=horovod" in done.stdout, done.stderr
