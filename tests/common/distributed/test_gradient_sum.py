"""Tests gradient sums against numpy: buckets, routes, and the bf16 wire within its error bound.

The tests here run on the devices of one process; test_sharded_update_processes.py runs `sums` in several processes.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from common.config.schema import Communication
from common.distributed import gradient_sum
from common.distributed.gradient_sum import Route, route
from tests.common.distributed.replicas import processes
from tests.common.distributed.updates import buckets_of, replicas_of

SHAPES = [(3, 5), (7,), (), (2, 2, 2), (11, 3), (1,), (64,)]
SIZE = sum(int(np.prod(s)) for s in SHAPES)
CASES = {
    f"{algorithm} {wire} {size}": (Communication(algorithm, wire), size)
    for algorithm in ("flat", "2d")
    for wire in ("full", "bf16_sum")
    for size in (400, 1 << 20)
}


def bf16_error(plan: Route) -> float:
    """The largest error of a sum in bfloat16, relative to the sum of the summands' magnitudes.

    A rounding multiplies by 1 + d, |d| <= u = 2^-8: N - 1 additions and the summand itself, in any order. Each stage
    casts from float64 by way of float32, which multiplies by at most 1 + 2^-24. The bound ignores underflow.
    """
    return (1 + 2.0**-8) ** plan.num_replicas * (1 + 2.0**-24) ** len(plan.stages) - 1


def gradients_of(replica: int, dtype: type) -> list[np.ndarray]:
    """Gradients with magnitudes from 1e-4 to 1e4; some sums nearly cancel."""
    rng = np.random.default_rng(replica)
    values = [rng.normal(size=s) * 10 ** rng.uniform(-4, 4, size=s) * (-1) ** replica for s in SHAPES]
    return [np.asarray(v, dtype) for v in values]


def sums(backend: str, number: int, dtype: str) -> dict[str, list[list[np.ndarray]]]:
    """The summed gradients of every case, on every local replica."""
    replicas = replicas_of(backend, number)
    columns = [np.stack(c) for c in zip(*(gradients_of(r, np.dtype(dtype)) for r in range(number)))]

    def run():
        def one():
            mine = [tf.gather(tf.constant(c), replicas.replica_id()) for c in columns]
            totals = {}
            for name, (communication, size) in CASES.items():
                with buckets_of(size):
                    totals[name] = gradient_sum.sum_gradients(replicas, mine, communication)
            return totals

        return tf.nest.map_structure(replicas.local_results, replicas.run(one))

    results = run() if replicas.drives_from_host else tf.function(run, autograph=False)()
    local = number // replicas.num_processes
    return {n: [[v[j].numpy() for v in results[n]] for j in range(local)] for n in CASES}


def check_sums(results: dict[str, list[list[np.ndarray]]], number: int, dtype: str) -> None:
    """Compares the `results` of all replicas with numpy, and bitwise with each other."""
    all_of = [gradients_of(r, np.dtype(dtype)) for r in range(number)]
    for name, copies in results.items():
        plan = route(CASES[name][0], number)
        for i, values in enumerate(zip(*copies)):
            exact = np.sum([g[i].astype(np.float64) for g in all_of], 0)
            size = np.sum([np.abs(g[i]).astype(np.float64) for g in all_of], 0)
            bound = 1e-14 if dtype == "float64" else number * 2.0**-24
            if "bf16" in name and number > 1:
                bound = bf16_error(plan)
                assert np.array_equal(values[0], values[0].astype(tf.bfloat16.as_numpy_dtype).astype(dtype))
            assert values[0].shape == exact.shape and values[0].dtype == dtype
            assert np.all(np.abs(values[0] - exact) <= bound * size), name
            assert all(np.array_equal(values[0], v) for v in values), f"{name}: replicas differ"


@pytest.mark.parametrize("number, dtype", [(2, "float64"), (4, "float64"), (4, "float32")])
@pytest.mark.parametrize("backend", ["mirrored", "pjrt"])
def test_every_route_and_wire_sums_as_numpy_does(backend, number, dtype):
    processes.require(backend)
    check_sums(sums(backend, number, dtype), number, dtype)


def test_one_replica_returns_its_gradients_unchanged():
    gradients = [tf.constant(g) for g in gradients_of(0, np.float64)]
    for case in (Communication(), Communication("2d", wire="bf16_sum")):
        assert gradient_sum.sum_gradients(replicas_of("single", 1), gradients, case) == gradients


def test_the_bf16_bound_is_no_wider_than_needed():
    """Summands between two bfloat16 numbers lose at least a quarter of what the bound allows."""
    replicas, number = replicas_of("mirrored", 4), 4
    case, _ = CASES["2d bf16_sum 400"]
    value = 1 + 2.0**-8 - 2.0**-16

    @tf.function(autograph=False)
    def run():
        return replicas.local_results(
            replicas.run(lambda: gradient_sum.sum_gradients(replicas, [tf.fill([8], value)], case)[0])
        )

    error = np.max(np.abs(run()[0].numpy() - number * value)) / (number * value)
    bound = bf16_error(route(case, number))
    assert 0.2 * bound < error <= bound


def test_a_sum_is_added_in_bfloat16():
    """Of 256 + 1 + 1 + 1, bfloat16 keeps 256 or 260 by the order of additions; here 256."""
    replicas, communication = replicas_of("mirrored", 4), Communication(wire="bf16_sum")

    def one():
        mine = tf.fill([4], tf.gather([256.0, 1.0, 1.0, 1.0], replicas.replica_id()))
        return gradient_sum.sum_gradients(replicas, [mine], communication)[0]

    sums = tf.function(lambda: replicas.local_results(replicas.run(one)), autograph=False)()
    assert [s.numpy().tolist() for s in sums] == [[256.0] * 4] * 4


class Spy:
    """Counts the bytes that a replica sends: n (k - 1) / k for each half of an all-reduce."""

    def __init__(self, replicas, monkeypatch):
        self.inside, self.across, self.calls = 0.0, 0.0, []
        for name, factor in (("all_reduce", 2), ("reduce_scatter", 1), ("all_to_all", 1), ("all_gather", 1)):
            monkeypatch.setattr(replicas, name, self._spied(name, factor, getattr(replicas, name), replicas))
        monkeypatch.setattr(replicas, "sum_bucket", lambda x: super(type(replicas), replicas).sum_bucket(x))

    def _spied(self, name, factor, collective, replicas):
        def spied(x, *args, groups=None):
            groups = args[-1] if args else groups
            k = len(groups[0]) if groups else replicas.num_replicas
            # Counts one of the replicas that trace this.
            whole = x.shape.num_elements() * x.dtype.size * (k if name == "all_gather" else 1)
            traffic = factor * whole * (k - 1) / k / replicas.num_replicas
            self.calls.append(name)
            if groups and groups[0] == list(range(k)):
                self.inside += traffic
            else:
                self.across += traffic
            return collective(x, groups=groups)

        return spied


@pytest.mark.parametrize("name", [n for n in CASES if n.endswith(" 400")])
def test_bytes_moved_are_those_of_the_collectives(monkeypatch, name):
    replicas = replicas_of("mirrored", 4)
    spy = Spy(replicas, monkeypatch)
    gradients = [np.ones([16, 3], np.float32), np.ones([48], np.float32)]

    def one():
        return gradient_sum.sum_gradients(replicas, [tf.constant(g) for g in gradients], CASES[name][0])

    with buckets_of(400):
        tf.function(lambda: replicas.run(one), autograph=False).get_concrete_function()
    whole = 2 * 96 * (2 if "bf16" in name else 4)  # Of a reduce-scatter and an all-gather.
    # Half of it within rows of two, then half of a row's half along the columns; a flat sum has one stage.
    moved = (0, whole * 3 / 4) if name.startswith("flat") else (whole / 2, whole / 4)
    assert (spy.inside, spy.across) == pytest.approx(moved)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=20),
    doubles=st.sets(st.integers(0, 19)),
    limit=st.integers(1, 400),
)
def test_buckets_hold_every_tensor_once_and_keep_to_the_limit(sizes, doubles, limit):
    dtypes = [tf.float64 if i in doubles else tf.float32 for i in range(len(sizes))]
    tensors = [tf.TensorSpec([s], d) for s, d in zip(sizes, dtypes)]
    actual = gradient_sum.buckets(tensors, limit)
    assert sorted(i for bucket in actual for i in bucket) == list(range(len(sizes)))
    size = [s * d.size for s, d in zip(sizes, dtypes)]
    for bucket in actual:
        assert bucket == sorted(bucket, reverse=True)
        assert len({dtypes[i] for i in bucket}) == 1
        assert len(bucket) == 1 or sum(size[i] for i in bucket) <= limit
        assert len(bucket) == 1 or all(8 * size[i] < limit for i in bucket), "large ones travel alone"
    joined = [b for b in actual if 8 * size[b[0]] < limit]
    for bucket, after in zip(joined, joined[1:]):
        full = sum(size[i] for i in bucket) + size[after[0]] > limit
        assert full or dtypes[after[0]] != dtypes[bucket[0]], "a bucket ended early"


def test_a_bucket_leaves_when_it_is_full_not_when_it_begins():
    """Tensors become ready as 5, 4, ...; the large tensor 3 leaves before 2 and 1 fill the bucket of 5 and 4."""
    tensors = [tf.TensorSpec([n]) for n in (2, 2, 2, 90, 2, 2)]
    assert gradient_sum.buckets(tensors, 100) == [[3], [5, 4, 2, 1, 0]]
    assert gradient_sum.buckets(tensors, 70)[0] == [3]
    assert gradient_sum.buckets(tensors, 8) == [[5], [4], [3], [2], [1], [0]]


def test_a_bucket_ends_before_the_tensor_that_would_make_it_too_large():
    buckets = gradient_sum.buckets([tf.TensorSpec([3])] * 20, 100)
    assert [len(bucket) for bucket in buckets] == [8, 8, 4], "8 x 12 bytes"


@pytest.mark.parametrize("number, row", [(1, 1), (2, 2), (4, 2), (6, 2), (8, 2), (12, 3), (16, 4), (7, 7)])
def test_2d_rows_are_the_divisor_nearest_to_the_root(number, row):
    length = route(Communication("2d"), number).row
    assert length == row or length * row == number


@pytest.mark.parametrize("number", [1, 2, 4, 8, 12])
def test_parts_of_a_route_are_a_permutation(number):
    plan = route(Communication("2d"), number)
    assert sorted(plan.part(r) for r in range(number)) == list(range(number))
