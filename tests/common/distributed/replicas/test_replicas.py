"""Tests collectives of four mirrored logical CPUs, and their gradients, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.distributed.replicas.base import UnsupportedError, contiguous_groups, placement
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.errors import UserError

N = 4
GROUPS = {
    "all": None, "pairs": [[0, 1], [2, 3]], "strided": [[0, 2], [1, 3]], "backwards": [[3, 0], [2, 1]],
    "alone": [[0], [1], [2], [3]], "one list, other order": [[2, 0, 3, 1]],
}  # fmt: skip


def groups_of(number):
    """GROUPS, or as many of them as two replicas have."""
    return GROUPS if number == 4 else {"all": None, "alone": [[0], [1]], "backwards": [[1, 0]]}


@pytest.fixture(scope="module")
def mirrored():
    return Mirrored(N)


def numpy_collective(name, values, groups, axis=0, distance=0):
    """The collective by definition, on a list of arrays."""
    result = [None] * len(values)
    for group in groups or [list(range(len(values)))]:
        mine = [values[r] for r in group]
        for i, replica in enumerate(group):
            result[replica] = one_result(name, mine, i, axis, distance)
    return result


def one_result(name, mine, i, axis, distance):
    n = len(mine)
    if name == "all_reduce":
        return sum(mine)
    if name == "all_gather":
        return np.concatenate(mine, axis)
    if name == "reduce_scatter":
        return np.split(sum(mine), n, axis)[i]
    if name == "all_to_all":
        return np.concatenate([np.split(v, n, axis)[i] for v in mine], axis)
    return mine[i - distance] if 0 <= i - distance < n else np.zeros_like(mine[i])


def check_linear(name, groups, options, values, actual, upstream, gradient, probes, rtol=1e-10):
    """Compares a collective C with numpy's, and its gradient with C's transpose: <u, C p> = <C^T u, p> for all p."""
    expected = numpy_collective(name, values, groups, **options)
    for mine, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=rtol, err_msg=f"{name} {options} {groups}")
    for probe in probes:
        image = numpy_collective(name, probe, groups, **options)
        forward, backward = (sum(map(np.vdot, *pair)) for pair in ((upstream, image), (gradient, probe)))
        assert forward == pytest.approx(backward, rel=rtol, abs=rtol), (name, options, groups)


def inputs(dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=[4, 8, 3]).astype(dtype) for _ in range(N)]


def probes():
    return [inputs(seed=100 + seed) for seed in range(5)]


def run(mirrored, function, *columns):
    """Calls `function` on every replica with its row of each column; the results as numpy, by replica."""

    @tf.function(autograph=False)
    def step():
        def one():
            i = mirrored.replica_id()
            return function(*(tf.gather(tf.constant(np.stack(column)), i) for column in columns))

        return [mirrored.local_results(v) for v in tf.nest.flatten(mirrored.run(one))]

    outputs = [[value.numpy() for value in values] for values in step()]
    return outputs[0] if len(outputs) == 1 else outputs


CALLS = [
    ("all_reduce", {}), ("all_gather", {"axis": 0}), ("all_gather", {"axis": 1}),
    ("reduce_scatter", {"axis": 0}), ("reduce_scatter", {"axis": 1}), ("all_to_all", {"axis": 0}),
    ("all_to_all", {"axis": 1}), ("shift", {"distance": 1}), ("shift", {"distance": -1}),
    ("shift", {"distance": 3}), ("shift", {"distance": 0}),
]  # fmt: skip


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize("name, options", CALLS, ids=lambda v: str(v))
def test_collective_and_its_gradient(mirrored, name, options, groups):
    values = inputs()
    expected = numpy_collective(name, values, groups, **options)
    upstream = [np.random.default_rng(10 + i).normal(size=e.shape) for i, e in enumerate(expected)]

    def with_gradient(x, up):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(mirrored, name)(x, groups=groups, **options)
        return y, tape.gradient(y, x, output_gradients=up)

    actual, gradient = run(mirrored, with_gradient, values, upstream)
    check_linear(name, groups, options, values, actual, upstream, gradient, probes())


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16, tf.int32])
def test_collectives_keep_the_dtype(mirrored, dtype):
    values = [np.full([2], i + 1, np.float32) for i in range(N)]
    actual = run(mirrored, lambda x: mirrored.all_reduce(tf.cast(x, dtype)), values)
    assert all(v.dtype == dtype.as_numpy_dtype for v in actual)
    assert [float(v[0]) for v in actual] == [10] * N


def test_second_collective_on_the_result_of_the_first(mirrored):
    """Rows, then columns: a 2-D all_reduce."""
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    values = inputs()
    actual = run(mirrored, lambda x: mirrored.all_reduce(mirrored.all_reduce(x, rows), columns), values)
    np.testing.assert_allclose(actual, [sum(values)] * N, rtol=1e-12)


def test_sum_bucket_sum_and_gather(mirrored):
    values = inputs()
    actual = run(mirrored, lambda x: mirrored.sum_bucket([x, 2 * x]), values)
    np.testing.assert_allclose(actual[0], [sum(values)] * N)
    np.testing.assert_allclose(actual[1], [2 * sum(values)] * N)

    @tf.function(autograph=False)
    def outside():
        mine = mirrored.run(lambda: {"x": tf.gather(tf.constant(np.stack(values)), mirrored.replica_id())})
        return mirrored.sum(mine), mirrored.gather(mine)

    added, gathered = outside()
    np.testing.assert_allclose(added["x"], sum(values))
    np.testing.assert_allclose(gathered["x"], np.concatenate(values))


def test_per_replica_variables_differ_and_shared_ones_do_not(mirrored):
    with mirrored.scope():
        variable = mirrored.per_replica_variable(tf.zeros([2]), "own")
        shared = tf.Variable(tf.zeros([2]), name="shared")

    @tf.function(autograph=False)
    def step():
        def one():
            mine = tf.cast(mirrored.replica_id(), tf.float32)
            variable.assign(tf.fill([2], mine))
            mirrored.assign([shared], [mirrored.all_reduce(tf.fill([2], mine))])
            return variable.read_value()

        return mirrored.local_results(mirrored.run(one))

    assert [v.numpy().tolist() for v in step()] == [[i, i] for i in range(N)]
    assert [v.numpy().tolist() for v in mirrored.local_results(variable)] == [[i, i] for i in range(N)]
    assert [v.numpy().tolist() for v in mirrored.local_results(shared)] == [[6, 6]] * N


def test_consecutive_batches_go_to_consecutive_replicas(mirrored):
    def make(shard):
        assert (shard.index, shard.count) == (0, 1)
        return tf.data.Dataset.range(16).batch(2, drop_remainder=True)

    data = iter(mirrored.dataset(make))
    for step in range(2):
        actual = [v.numpy().tolist() for v in mirrored.local_results(next(data))]
        assert actual == [[8 * step + 2 * i, 8 * step + 2 * i + 1] for i in range(N)]


@pytest.mark.parametrize(
    "groups",
    [[[0, 1], [2]], [[0, 1], [1, 2]], [[0, 1, 2]], [[0, 1], [2, 3], []], [[0, 0], [1, 2]], [[0, 1], [2, 7]]],
)
def test_groups_must_partition_the_replicas(mirrored, groups):
    with pytest.raises(UserError, match="do not partition 4 replicas"):
        list(placement(groups, N))
    with pytest.raises(UserError, match="do not partition 4 replicas"):
        mirrored.all_reduce(tf.zeros([4]), groups)


def test_contiguous_groups():
    assert contiguous_groups(4, 2) == [[0, 1], [2, 3]]
    for size in (0, 3, 8, -1):
        with pytest.raises(UserError, match="do not divide"):
            contiguous_groups(4, size)


def test_single_is_the_identity_and_refuses_other_groups():
    single, x = Single(), tf.reshape(tf.range(6.0), [2, 3])
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for groups in (None, [[0]]):
            assert getattr(single, name)(x, groups=groups).numpy().tolist() == x.numpy().tolist()
        with pytest.raises(UnsupportedError, match="single has one replica"):
            getattr(single, name)(x, groups=[[0, 1]])
    assert single.shift(x, 0).numpy().tolist() == x.numpy().tolist()
    assert not single.shift(x, 1).numpy().any()


def test_make():
    assert isinstance(backends.make(RunConfig()), Single)
    replicas = backends.make(RunConfig(replicas="mirrored", num_replicas=2))
    assert isinstance(replicas, Mirrored) and replicas.num_replicas == 2
    with pytest.raises(UserError, match=r"num_replicas=2.*single.*mirrored"):
        backends.make(RunConfig(num_replicas=2))
    with pytest.raises(UserError, match="TensorFlow already runs with 8 CPU devices"):
        backends.make(RunConfig(replicas="mirrored", num_replicas=9))
