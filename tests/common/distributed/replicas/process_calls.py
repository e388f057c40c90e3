"""What test_process_collectives.py calls in each process of a group of processes, under horovod and multiworker."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.errors import UserError
from tests.common.distributed.replicas import test_replicas as reference

BACKENDS = ["horovod", "multiworker"]
# The dtypes of which a backend adds tensors, all collectives in the first ones, and of which it only moves them.
DTYPES = {"horovod": ["float64", "bfloat16"], "multiworker": ["float64", "float32", "bfloat16"]}
SUMMED = ["float64", "float32", "float16", "bfloat16", "int32", "int64"]
MOVED = {
    "horovod": [*SUMMED, "uint8", "int16", "bool"],
    "multiworker": ["float16", "int32", "int64", "uint8", "int16", "bool", "uint32"],
}


@functools.cache
def backend_of(backend, number):
    return backends.make(RunConfig(replicas=backend, num_replicas=number))


def number_of(replicas):
    """This replica's number, as a plain number: under horovod, `replica_id` is a variable."""
    return replicas.process_index if replicas.name == "horovod" else replicas.replica_id()


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


def linear_collectives(backend, number, dtype):
    """[{(name, options, groups): (result, gradient)}] by local replica; all in one function."""
    replicas = backend_of(backend, number)

    def all_of_them(x):
        actual = []
        for (name, _, _), groups, options, expected in cases(number):
            mine = number_of(replicas)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = getattr(replicas, name)(x, groups=groups, **options)
            up = tf.constant(upstream(mine, expected[mine].shape), dtype)
            actual.append((y, tape.gradient(y, x, output_gradients=up)))
        return actual

    keys = [key for key, *_ in cases(number)]
    return [dict(zip(keys, actual, strict=True)) for actual in by_replica(replicas, all_of_them, dtype)]


def dtypes(backend, number):
    """{(collective, dtype): first and last element of the result}: of sums, and of what only moves data."""
    replicas, actual = backend_of(backend, number), {}
    sums = [(f, n) for f in (replicas.all_reduce, replicas.reduce_scatter) for n in SUMMED]
    for call, name in [
        *sums,
        *((f, n) for f in (replicas.all_gather, replicas.all_to_all) for n in MOVED[backend]),
    ]:
        mine = tf.cast(tf.fill([number], replicas.process_index + 1), name)
        y = replicas.run(call, (mine,))
        assert y.dtype.name == name
        actual[call.__name__, name] = tf.cast(tf.stack([y[0], y[-1]]), tf.float64).numpy().tolist()
    actual["nan"] = np.isnan(
        tf.cast(replicas.run(lambda: replicas.all_gather(tf.constant([np.nan], tf.bfloat16))), tf.float32)
    ).tolist()
    with pytest.raises(UserError, match=f"{backend}:? cannot send tensors of string"):
        replicas.run(lambda: replicas.all_gather(tf.constant(["x"])))
    with pytest.raises(UserError, match=f"{backend}:? cannot add tensors of bool"):
        replicas.run(lambda: replicas.all_reduce(tf.constant([True])))
    return actual


def in_loops(backend, number):
    """Ten rounds of a fused loop around `run`, and of a loop within it, each round with a gradient."""
    replicas = backend_of(backend, number)
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
        unrolled = functools.partial(functools.reduce, lambda x, _: once(x), range(5))
        return around, within, replicas.run(unrolled, (x,))

    mine = inputs(number, 1)[replicas.process_index][:1, :1] / 4
    return [v.numpy() for v in both(tf.constant(mine))]


def after_a_failed_trace(backend, number):
    """Traces a function that fails, then one that must still find its peers."""
    replicas = backend_of(backend, number)

    def fails():
        replicas.all_reduce(tf.ones([2]))
        raise ValueError

    with pytest.raises(ValueError):
        tf.function(lambda: replicas.run(fails), autograph=False)()
    total = tf.function(lambda: replicas.run(lambda: replicas.all_reduce(1.0)), autograph=False)()
    return [float(x) for x in replicas.local_results(total)]


def outside(backend, number):
    replicas = backend_of(backend, number)
    rank = replicas.process_index
    with replicas.scope():
        mine_alone = replicas.per_replica_variable(tf.zeros([2]), "own")
        shared = tf.Variable(tf.zeros([2]), name="shared")
        random_start = tf.Variable(tf.fill([2], float(rank + 7)))

    @tf.function(autograph=False)
    def graph():
        def one():
            mine = tf.cast(tf.reshape(replicas.replica_id(), [1]), tf.float32)
            mine_alone.assign(tf.tile(mine, [2]))
            replicas.assign([shared], [replicas.all_reduce(tf.tile(mine, [2]))])
            return {"x": mine}

        returned = replicas.run(one)
        return replicas.sum(returned), replicas.gather(returned)

    added, gathered = graph()
    data = iter(
        replicas.dataset(lambda shard: tf.data.Dataset.range(100 * shard.index, 100 * shard.index + 8))
    )
    return {
        "all_reduce_max": [replicas.all_reduce_max(v) for v in (rank, -rank, 7)],
        "all_values": replicas.all_values(mine_alone).tolist(),
        "sum": added["x"].numpy().tolist(),
        "gather": gathered["x"].numpy().tolist(),
        "shared": [v.numpy().tolist() for v in replicas.local_results(shared)],
        "drawn": [v.numpy().tolist()[0] for v in replicas.local_results(random_start)],
        "data": [[int(x) for x in replicas.local_results(next(data))] for _ in range(2)],
        "main": replicas.main,
        "processes": (replicas.process_index, replicas.num_processes),
    }


def looped(backend, number):
    """Ten rounds of x <- all_reduce(x) / number + shift(x) in one while loop, with its gradient."""
    replicas = backend_of(backend, number)

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


def many_at_once(backend, number):
    """Collectives without an order between them, in different groups."""
    replicas = backend_of(backend, number)
    groups = [list(range(number)), *([[0, 1], [2, 3]] if number == 4 else [])]

    @tf.function(autograph=False)
    def step(x):
        parts = [replicas.all_reduce(x * i, None if i % 2 else groups[1:] or None) for i in range(40)]
        return tf.add_n(parts)

    return step(tf.constant(inputs(number, 2)[replicas.process_index])).numpy()


def constants_and_unused_results(backend, number):
    """A collective of a constant; one whose result only some processes use."""
    replicas = backend_of(backend, number)

    @tf.function(autograph=False)
    def step():
        mine = replicas.shift(tf.ones([3]), number - 1)
        return replicas.all_reduce(tf.constant(2.0)), mine

    return [v.numpy() for v in step()]


def shifted(backend, number):
    """(what a shift's graph sends with, {dtype: the first element that a shift brings})."""
    replicas = backend_of(backend, number)

    @tf.function(autograph=False)
    def step(x):
        return replicas.run(lambda x: replicas.shift(x, 1), (x,))

    actual = {}
    for dtype in MOVED[backend]:
        x = tf.cast(tf.fill([2], replicas.process_index + 1), dtype)
        actual[dtype] = float(tf.cast(step(x), tf.float32).numpy()[0])
    graph = step.get_concrete_function(tf.zeros([2])).graph
    return sorted(
        {op.type for op in graph.get_operations() if op.type.startswith(("Horovod", "Collective"))}
    ), actual


def uneven(backend, number):
    """A gathering of more rows from each further process."""
    replicas = backend_of(backend, number)
    return replicas.gather(tf.range(replicas.process_index + 1)).numpy().tolist()


def wrong_number(backend, number):
    message = {
        "horovod": f"the launcher started {number} processes",
        "multiworker": f"TF_CONFIG names {number}",
    }
    with pytest.raises(UserError, match=rf"num_replicas=7: {message[backend]}.*={number}"):
        backends.make(RunConfig(replicas=backend, num_replicas=7))
    backend_of(backend, number).close()


OWN = {
    "horovod": (looped, many_at_once, constants_and_unused_results, shifted, uneven),
    "multiworker": (after_a_failed_trace,),
}


def calls(backend, number):
    linear = {d: functools.partial(linear_collectives, backend, number, d) for d in DTYPES[backend]}
    others = (dtypes, in_loops, *OWN[backend], outside, wrong_number)
    return linear | {f.__name__: functools.partial(f, backend, number) for f in others}
