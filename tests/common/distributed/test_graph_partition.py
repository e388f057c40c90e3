"""Tests branches on different replicas against all branches on each replica, float64 to 1e-8."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.distributed.graph_partition import branches
from common.distributed.replicas.base import contiguous_groups
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.errors import UserError

FEATURES = 6


class Heads:
    """The heads of a two-stage detector: classes, boxes and masks, of different depths and shapes."""

    def __init__(self, replicas, seed=0):
        rng = np.random.default_rng(seed)
        shapes = [(FEATURES, 5), (FEATURES, 8), (8, 4), (FEATURES, 9)]
        with replicas.scope():
            self.variables = [tf.Variable(rng.normal(size=shape)) for shape in shapes]

    def functions(self, x):
        classes, hidden, boxes, masks = self.variables
        return [
            lambda: {"logits": x @ classes, "best": tf.argmax(x @ classes, axis=1)},
            lambda: tf.nn.relu(x @ hidden) @ boxes,
            lambda: tf.reshape(tf.sigmoid(x @ masks), [-1, 3, 3]),
        ]


def loss_of(results):
    classes, boxes, masks = results
    weight = tf.cast(classes["best"], tf.float64)[:, None]
    return tf.reduce_sum(classes["logits"] ** 2 * weight) + tf.reduce_sum(boxes**3) + tf.reduce_sum(masks)


def run(replicas, size, run_heads, dynamic=False, traced=False):
    """(results by replica, gradients of the input and the variables, summed over replicas) of one loss per
    group of `size`, which is split between the group's replicas.
    """
    groups = contiguous_groups(replicas.num_replicas, size)
    heads = Heads(replicas)
    if dynamic:  # As on a backend with one program for all replicas.
        number = replicas.replica_id
        replicas.replica_id = lambda: tf.raw_ops.PlaceholderWithDefault(input=number(), shape=[])

    def one():
        x = tf.constant(np.random.default_rng(9).normal(size=[7, FEATURES]))
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = run_heads(replicas, heads.functions(x), groups)
            loss = loss_of(results) / size
        sources = [x, *heads.variables]
        zero = tf.UnconnectedGradients.ZERO
        return tf.nest.flatten(results), tape.gradient(loss, sources, unconnected_gradients=zero)

    def step():
        outputs, gradients = replicas.run(one)
        return [replicas.local_results(y) for y in outputs], [replicas.sum(g) for g in gradients]

    return (tf.function(step, autograph=False) if traced else step)()


def everywhere(replicas, functions, groups):
    return [function() for function in functions]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("replicas, size", [(2, 2), (4, 4), (4, 2), (2, 1)])
def test_branches_equal_every_head_on_every_replica(replicas, size, dynamic):
    """Three heads on groups of 2 (one replica runs two heads), of 4 (one runs none) and of 1."""
    check(Mirrored(replicas), size, dynamic)


def check(replicas, size, dynamic=False):
    naive_outputs, naive_gradients = run(replicas, size, everywhere)
    outputs, gradients = run(replicas, size, branches, dynamic, traced=True)
    for copies, expected in zip(outputs, naive_outputs, strict=True):
        for copy, want in zip(copies, expected, strict=True):
            np.testing.assert_allclose(copy, want, rtol=1e-8)
    for actual, want in zip(gradients, naive_gradients, strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-8)


def check_in_a_process(backend, number):
    """Called by tests/common/distributed/spatial/test_spatial_networks.py in each process."""
    replicas = backends.make(RunConfig(replicas=backend, num_replicas=number))
    for size in {2, number}:
        check(replicas, size)
    return True


def test_a_replica_runs_its_own_branches_only():
    calls = []

    def branch(name):
        def function():
            inside = tf.distribute.get_replica_context() is not None
            tf.py_function(lambda: calls.append(name) if inside else None, [], [])
            return tf.ones([2])

        return function

    replicas = Mirrored(2)

    @tf.function(autograph=False)
    def step():
        functions = [branch("a"), branch("b"), branch("c")]
        return replicas.local_results(replicas.run(lambda: tf.add_n(branches(replicas, functions, [[0, 1]]))))

    assert [x.numpy().tolist() for x in step()] == [[3, 3], [3, 3]]
    assert sorted(calls) == ["a", "b", "c"]


def test_one_device_runs_all_branches():
    functions = Heads(Single()).functions(tf.ones([2, FEATURES], tf.float64))
    results = branches(Single(), functions, [[0]])
    assert results[1].shape == [2, 4] and results[2].shape == [2, 3, 3]


def test_results_of_unknown_shape_are_refused():
    replicas = Mirrored(2)
    x = tf.constant([1.0, 0.0, 2.0])
    functions = [lambda: x, lambda: tf.boolean_mask(x, x > 0)]
    with pytest.raises(UserError, match="branch 1: results of unknown shape"):
        replicas.run(lambda: branches(replicas, functions, [[0, 1]]))


def test_layers_can_be_branches():
    """The branches are Keras layers built beforehand."""
    replicas = Mirrored(2)
    with replicas.scope():
        layers = [tf_keras.layers.Dense(n) for n in (2, 3)]
        for layer in layers:
            layer.build([None, 4])
    x = tf.ones([5, 4])
    results = replicas.run(lambda: branches(replicas, [lambda: layers[0](x), lambda: layers[1](x)], [[0, 1]]))
    for layer, result in zip(layers, results):
        for copy in replicas.local_results(result):
            np.testing.assert_allclose(copy, layer(x), rtol=1e-6)
