"""Tests the TPU backend without a TPU: the operations it builds, and their results under stand-ins on logical CPUs."""

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.distributed.replicas import tpu
from common.distributed.replicas.base import linear
from common.distributed.replicas.mirrored import Mirrored
from common.errors import UserError
from tests.common.distributed.replicas import test_replicas as reference

N = reference.N
PAIRS = [[0, 1], [2, 3]]


class Unconnected(tpu.Tpu):
    """The TPU backend, which builds a network's operations, without a connection to a TPU."""

    def __init__(self, mirrored=None):
        self.num_replicas = N
        self.strategy = mirrored and mirrored.strategy


def built(call):
    """[(type, values of the second input)] of the collectives in the graph of `call(x)` and of its gradient."""
    collectives = ("CrossReplicaSum", "AllToAll", "CollectivePermute")
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 8, 3])
        tf.gradients(call(x), x)
    operations = [op for op in graph.get_operations() if op.type in collectives]
    return [
        (op.type, value if (value := tf.get_static_value(op.inputs[1])) is None else value.tolist())
        for op in operations
    ]


@pytest.mark.parametrize("groups", [None, PAIRS, [[0, 2], [1, 3]]])
@pytest.mark.parametrize(
    "name, kind",
    [
        ("all_reduce", "CrossReplicaSum"),
        ("all_gather", "AllToAll"),
        ("reduce_scatter", "AllToAll"),
        ("all_to_all", "AllToAll"),
    ],
)
def test_one_operation_forward_and_one_backward_with_the_groups(name, kind, groups):
    expected = groups or [list(range(N))]
    operations = built(lambda x: getattr(Unconnected(), name)(x, groups=groups))
    assert operations == [(kind, expected)] * 2


def test_a_shift_permutes_within_groups():
    replicas = Unconnected()
    assert built(lambda x: replicas.shift(x, 1))[0] == ("CollectivePermute", [[0, 1], [1, 2], [2, 3]])
    assert built(lambda x: replicas.shift(x, -1, PAIRS))[0] == ("CollectivePermute", [[1, 0], [3, 2]])
    assert [kind for kind, _ in built(lambda x: replicas.shift(x, 1))] == ["CollectivePermute"] * 2


def test_groups_of_one_need_no_operation():
    replicas, alone = Unconnected(), [[i] for i in range(N)]
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert built(lambda x, name=name: getattr(replicas, name)(x, groups=alone)) == []


def test_groups_must_partition_the_replicas():
    with pytest.raises(UserError, match="do not partition 4 replicas"):
        Unconnected().all_reduce(tf.zeros([4]), [[0, 1], [2]])


@pytest.fixture(scope="module")
def mirrored():
    return Mirrored(N)


@pytest.fixture
def stand_ins(mirrored, monkeypatch):
    """Replaces tpu_ops by operations on logical CPUs, after their documentation."""

    def all_to_all(x, concat_dimension, split_dimension, split_count, group_assignment):
        assert concat_dimension == split_dimension and split_count == len(group_assignment[0])
        return mirrored.all_to_all(x, split_dimension, group_assignment)

    def collective_permute(x, pairs):
        def permuted(pairs):
            sources = {target: source for source, target in pairs}

            def function(values):
                return [values[sources[i]] if i in sources else tf.zeros_like(values[i]) for i in range(N)]

            return lambda x: mirrored.group(None).merged(function, x)

        return linear(x, permuted(pairs), permuted([p[::-1] for p in pairs]))

    monkeypatch.setattr(tpu.tpu_ops, "cross_replica_sum", mirrored.all_reduce)
    monkeypatch.setattr(tpu.tpu_ops, "all_to_all", all_to_all)
    monkeypatch.setattr(tpu.tpu_ops, "collective_permute", collective_permute)
    return Unconnected(mirrored)


@pytest.mark.parametrize("groups", reference.GROUPS.values(), ids=reference.GROUPS.keys())
def test_collectives_and_their_gradients_under_stand_ins(stand_ins, mirrored, groups):
    values = reference.inputs()
    for name, options in reference.CALLS:
        expected = reference.numpy_collective(name, values, groups, **options)
        upstream = [np.random.default_rng(10 + i).normal(size=e.shape) for i, e in enumerate(expected)]

        def with_gradient(x, up, name=name, options=options):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = getattr(stand_ins, name)(x, groups=groups, **options)
            zero = tf.UnconnectedGradients.ZERO  # A shift out of the group gives a constant.
            return y, tape.gradient(y, x, output_gradients=up, unconnected_gradients=zero)

        actual, gradient = reference.run(mirrored, with_gradient, values, upstream)
        reference.check_linear(name, groups, options, values, actual, upstream, gradient, reference.probes())


def test_without_a_tpu_it_says_so(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    with pytest.raises(UserError, match="config.replicas=tpu: no TPU found as TPU_NAME=local.*mirrored"):
        backends.make(RunConfig(replicas="tpu", num_replicas=8))
