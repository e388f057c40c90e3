"""Tests collectives of processes under multiworker, and their gradients, against numpy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.errors import UserError
from tests.common.distributed.replicas import processes
from tests.common.distributed.replicas import test_replicas as reference

DTYPES = ["float64", "float32", "bfloat16"]
MOVED = ["float16", "int32", "int64", "uint8", "int16", "bool", "uint32"]


@functools.cache
def made(number):
    return backends.make(RunConfig(replicas="multiworker", num_replicas=number))


def inputs(number, seed):
    """Small whole numbers: their sums are exact in every dtype, so that results can be compared bit by bit."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, [4, 4, 3]).astype(np.float64) for _ in range(number)]


def cases(number):
    for label, groups in reference.groups_of(number).items():
        for name, options in reference.CALLS:
            expected = reference.numpy_collective(name, inputs(number, 0), groups, **options)
            yield (name, tuple(options.items()), label), groups, options, expected


def upstream(replica, shape):
    return np.random.default_rng(10 + replica).integers(-4, 5, shape).astype(np.float64)


# -- called in every process -------------------------------------------------------------------------------------


def with_two_devices_each():
    """Gives a process two logical CPUs, and so two replicas, as two GPUs would."""
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    from common.distributed.replicas.multiworker import MultiWorker

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    CollectiveAllReduceExtended._initialize_local_devices = lambda self, resolver, worker: (
        tuple(f"{worker}/device:CPU:{i}" for i in range(2)),
        "CPU",
    )
    MultiWorker.devices_here = staticmethod(lambda: 2)


def by_replica(replicas, function, dtype="float64", column=None):
    """Results of `function` on each local replica's input, as numpy: a list by local replica."""

    @tf.function(autograph=False)
    def step(stacked):
        return replicas.run(
            lambda: tf.nest.map_structure(
                lambda y: tf.cast(y, tf.float64), function(tf.cast(stacked[replicas.replica_id()], dtype))
            )
        )

    values = step(tf.constant(np.stack(inputs(replicas.num_replicas, 0) if column is None else column)))
    local = replicas.num_replicas // replicas.num_processes
    flat = [[x.numpy() for x in replicas.local_results(v)] for v in tf.nest.flatten(values)]
    return [tf.nest.pack_sequence_as(values, [column[i] for column in flat]) for i in range(local)]


def linear_collectives(number, dtype):
    """[{(name, options, groups): (result, gradient)}] by local replica; all in one function."""
    replicas = made(number)

    def all_of_them(x):
        actual = []
        for (name, _, _), groups, options, expected in cases(number):
            mine = replicas.replica_id()
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = getattr(replicas, name)(x, groups=groups, **options)
            up = tf.constant(upstream(mine, expected[mine].shape), dtype)
            actual.append((y, tape.gradient(y, x, output_gradients=up)))
        return actual

    keys = [key for key, *_ in cases(number)]
    return [dict(zip(keys, actual, strict=True)) for actual in by_replica(replicas, all_of_them, dtype)]


def dtypes(number):
    """Results of the collectives that only move data, for other dtypes."""
    replicas, actual = made(number), {}
    for name in MOVED:
        for call, size in ((replicas.all_gather, 1), (replicas.all_to_all, number)):
            mine = tf.cast(tf.fill([size], replicas.process_index + 1), name)
            y = replicas.run(call, (mine,))
            assert y.dtype.name == name
            actual[call.__name__, name] = tf.cast(y, tf.float64).numpy().tolist()
    actual["nan"] = np.isnan(
        tf.cast(replicas.run(lambda: replicas.all_gather(tf.constant([np.nan], tf.bfloat16))), tf.float32)
    ).tolist()
    with pytest.raises(UserError, match="multiworker cannot send tensors of string"):
        replicas.run(lambda: replicas.all_gather(tf.constant(["x"])))
    with pytest.raises(UserError, match="multiworker cannot add tensors of bool"):
        replicas.run(lambda: replicas.all_reduce(tf.constant([True])))
    return actual


def in_loops(number):
    """Ten rounds of a fused loop around `run`, and of a loop within it, each round with a gradient."""
    replicas = made(number)
    pairs = [[i, i + 1] for i in range(0, number, 2)]

    def once(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(replicas.all_reduce(x * x, pairs) * replicas.all_gather(x[:1]))
        return tape.gradient(total, x) / 64 + replicas.shift(x, 1)

    def loop(step, x):
        return tf.while_loop(
            lambda i, _: i < 5, lambda i, x: (i + 1, step(x)), (0, x), parallel_iterations=1
        )[1]

    @tf.function(autograph=False)
    def both(x):
        around = loop(lambda x: replicas.run(once, (x,)), x)
        within = replicas.run(lambda x: loop(once, x), (x,))
        return around, within, replicas.run(lambda x: unrolled(once, x), (x,))

    mine = inputs(number, 1)[replicas.process_index][:1, :1] / 4
    return [v.numpy() for v in both(tf.constant(mine))]


def unrolled(step, x):
    for _ in range(5):
        x = step(x)
    return x


def after_a_failed_trace(number):
    """Traces a function that fails, then one that must still find its peers."""
    replicas = made(number)

    def fails():
        replicas.all_reduce(tf.ones([2]))
        raise ValueError

    with pytest.raises(ValueError):
        tf.function(lambda: replicas.run(fails), autograph=False)()
    total = tf.function(lambda: replicas.run(lambda: replicas.all_reduce(1.0)), autograph=False)()
    return [float(x) for x in replicas.local_results(total)]


def outside(number):
    replicas = made(number)
    rank = replicas.process_index
    with replicas.scope():
        own = replicas.per_replica_variable(tf.zeros([2]), "own")
        shared = tf.Variable(tf.zeros([2]), name="shared")
        drawn = tf.Variable(
            tf.fill([2], float(rank + 7))
        )  # Every process takes the initial value of process 0.

    @tf.function(autograph=False)
    def graph():
        def one():
            mine = tf.fill([1], float(replicas.replica_id()))
            own.assign(tf.tile(mine, [2]))
            replicas.assign([shared], [replicas.all_reduce(tf.tile(mine, [2]))])
            return {"x": mine}

        returned = replicas.run(one)
        return replicas.sum(returned), replicas.gather(returned)

    added, gathered = graph()
    data = iter(
        replicas.dataset(lambda shard: tf.data.Dataset.range(100 * shard.index, 100 * shard.index + 8))
    )
    return {
        "agree": [replicas.agree(v) for v in (rank, -rank, 7)],
        "all_values": replicas.all_values(own).tolist(),
        "sum": added["x"].numpy().tolist(),
        "gather": gathered["x"].numpy().tolist(),
        "shared": [v.numpy().tolist() for v in replicas.local_results(shared)],
        "drawn": [v.numpy().tolist() for v in replicas.local_results(drawn)],
        "data": [[int(x) for x in replicas.local_results(next(data))] for _ in range(2)],
        "main": replicas.main,
        "processes": (replicas.process_index, replicas.num_processes),
    }


def wrong_number(number):
    with pytest.raises(UserError, match=rf"num_replicas=7: TF_CONFIG names {number} processes.*={number}"):
        backends.make(RunConfig(replicas="multiworker", num_replicas=7))
    made(number).close()


def calls(number):
    linear = {dtype: functools.partial(linear_collectives, number, dtype) for dtype in DTYPES}
    others = (dtypes, in_loops, after_a_failed_trace, outside)
    named = {f.__name__: functools.partial(f, number) for f in others}
    return {**linear, **named, "wrong_number": functools.partial(wrong_number, number)}


@pytest.fixture(scope="module", params=[2, 4])
def ran(request):
    """(number of processes, the results of all calls in them)."""
    return request.param, processes.run("multiworker", request.param, calls(request.param), timeout=240)


@pytest.fixture(scope="module")
def two_devices_each():
    """Two processes of two replicas."""
    chosen = {
        "with_two_devices_each": with_two_devices_each,
        **{dtype: functools.partial(linear_collectives, 4, dtype) for dtype in ("float64", "bfloat16")},
        **{f.__name__: functools.partial(f, 4) for f in (after_a_failed_trace, outside)},
    }
    return processes.run("multiworker", 2, chosen, timeout=240)


# -- claims --------------------------------------------------------------------------------------------------------


def check_linear(number, found):
    """Compares exactly, in whole numbers."""
    for key, groups, options, expected in cases(number):
        got, gradient = zip(*(values[key] for values in found), strict=True)
        ups = [upstream(i, e.shape) for i, e in enumerate(expected)]
        probes, values = [inputs(number, 100 + seed) for seed in range(5)], inputs(number, 0)
        reference.check_linear(key[0], groups, options, values, got, ups, gradient, probes, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_collectives_and_their_gradients(ran, dtype):
    number, results = ran
    check_linear(number, [found for local in results[dtype] for found in local])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_collectives_of_processes_with_two_replicas(two_devices_each, dtype):
    check_linear(4, [found for local in two_devices_each[dtype] for found in local])


def test_other_dtypes_only_move(ran):
    number, results = ran
    for found in results["dtypes"]:
        assert found.pop("nan") == [True] * number
        for (_, dtype), values in found.items():
            assert values == [1 if dtype == "bool" else i + 1 for i in range(number)]


def test_collectives_in_loops(ran):
    for around, within, straight in ran[1]["in_loops"]:
        np.testing.assert_allclose(around, straight, rtol=1e-12)
        np.testing.assert_allclose(within, straight, rtol=1e-12)
        assert np.any(straight)


def test_keys_agree_after_a_failed_trace(ran, two_devices_each):
    assert ran[1]["after_a_failed_trace"] == [[ran[0]]] * ran[0]
    assert two_devices_each["after_a_failed_trace"] == [[4.0, 4.0]] * 2


def check_outside(number, results, local):
    total = float(sum(range(number)))
    for rank, found in enumerate(results["outside"]):
        first = [100 * rank + i for i in range(2 * local)]
        assert found == {
            "drawn": results["outside"][0]["drawn"][:1] * local,
            "agree": [number // local - 1, 0, 7],
            "all_values": [[float(i)] * 2 for i in range(number)],
            "sum": [total],
            "gather": [float(i) for i in range(number)],
            "shared": [[total] * 2] * local,
            "data": [first[:local], first[local:]],
            "main": rank == 0,
            "processes": (rank, number // local),
        }


def test_outside_run(ran):
    check_outside(*ran, local=1)


def test_outside_run_with_two_replicas_in_a_process(two_devices_each):
    check_outside(4, two_devices_each, local=2)


def test_a_wrong_number_of_replicas_is_named(ran):
    assert ran[1]["wrong_number"] == [None] * ran[0]
