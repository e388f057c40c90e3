"""Tests the backend of PJRT's devices: collectives against numpy, state on the devices, what it refuses."""

import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.distributed.replicas.base import UnsupportedError
from common.errors import UserError
from common.train.compilation import Compiled, plan
from common.train.describe import describe
from common.train.programs import Programs
from tests.common.distributed.replicas.test_replicas import (
    CALLS,
    GROUPS,
    N,
    check_linear,
    inputs,
    numpy_collective,
    probes,
)
from tests.common.train import toy

pytest.importorskip("jax", reason="jax is not installed (make setup)")


@pytest.fixture(scope="module")
def pjrt():
    return backends.make(RunConfig(replicas="pjrt", num_replicas=N))


def placed(pjrt, columns):
    """Arguments of `run` of which replica i gets row i."""
    batches = tf.data.Dataset.from_tensor_slices(tuple(np.stack(column) for column in columns))
    return next(iter(pjrt.dataset(lambda shard: batches)))


def results(pjrt, value):
    return [copy.numpy() for copy in pjrt.local_results(value)]


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
def test_collectives_and_their_gradients(pjrt, groups):
    """All of `CALLS` in one program."""
    values = inputs()
    expected = [numpy_collective(name, values, groups, **options) for name, options in CALLS]
    upstream = [
        [np.random.default_rng(10 + i).normal(size=e.shape) for i, e in enumerate(one)] for one in expected
    ]

    def every(x, *ups):
        actual = []
        for (name, options), up in zip(CALLS, ups, strict=True):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = getattr(pjrt, name)(x, groups=groups, **options)
            actual.append((y, tape.gradient(y, x, output_gradients=up)))
        return actual

    actual = pjrt.run(every, placed(pjrt, [values, *upstream]))
    for (name, options), ups, (y, gradient) in zip(CALLS, upstream, actual, strict=True):
        numbers = results(pjrt, y), ups, results(pjrt, gradient)
        check_linear(name, groups, options, values, *numbers, probes())


def test_every_replica_has_its_number_and_its_own_copy_of_a_variable(pjrt):
    with pjrt.scope():
        variable = pjrt.per_replica_variable(tf.constant([1.0, 2.0]), "own")

    def add():
        variable.assign_add(tf.cast(tf.stack([pjrt.replica_id()] * 2), tf.float32))
        return pjrt.replica_id()

    assert results(pjrt, pjrt.run(add)) == [0, 1, 2, 3]
    pjrt.local_results(variable)[2].assign([5, 6])
    pjrt.run(add)
    expected = [[1, 2], [3, 4], [7, 8], [7, 8]]
    np.testing.assert_array_equal(pjrt.all_values(variable), expected)


def test_new_values_take_the_memory_of_the_old_ones(pjrt):
    with pjrt.scope():
        variable = tf.Variable(tf.zeros([1000]))

    def add():
        variable.assign_add(tf.ones([1000]))
        return tf.reduce_sum(variable)

    pjrt.run(add)
    before = pjrt.state_of(variable.handle).array
    places = [piece.unsafe_buffer_pointer() for piece in pieces(before)]
    pjrt.run(add)
    assert before.is_deleted()
    after = pjrt.state_of(variable.handle).array
    assert [piece.unsafe_buffer_pointer() for piece in pieces(after)] == places
    assert results(pjrt, variable)[3][0] == 2 and variable.numpy()[0] == 0


def pieces(array):
    return [shard.data for shard in array.addressable_shards]


def test_a_program_sees_weights_that_another_one_has_changed(pjrt):
    """In place: XNNPACK's kernels would go on with the weights of the first call."""
    with pjrt.scope():
        weights = tf.Variable(tf.zeros([512, 512]))

    def product(x):
        return tf.linalg.matmul(x, weights.read_value())

    def add():
        return weights.assign_add(tf.ones_like(weights))[0, 0]

    for i in range(4):
        assert [y.mean() for y in results(pjrt, pjrt.run(product, (tf.ones([512, 512]),)))] == [512.0 * i] * N
        pjrt.run(add)


def test_a_call_returns_before_the_devices_have_finished(pjrt):
    with pjrt.scope():
        variable = tf.Variable(tf.eye(600))

    def multiply():
        value = tf.while_loop(lambda i, x: i < 40, lambda i, x: (i + 1, x @ x), (0, variable.read_value()))[1]
        variable.assign(value)
        return tf.reduce_sum(value)

    pjrt.run(multiply).first()
    began = time.perf_counter()
    value = pjrt.run(multiply)
    started = time.perf_counter()
    value.first()
    assert started - began < 0.5 * (time.perf_counter() - began)


def test_a_value_that_was_read_stays_when_the_devices_go_on(pjrt):
    with pjrt.scope():
        variable = tf.Variable(tf.zeros([64]))
    copy = pjrt.local_results(variable)[0]
    values = copy.numpy()
    for _ in range(3):
        pjrt.run(lambda: variable.assign_add(tf.ones([64])))
    assert values.max() == 0 and tf.identity(copy).numpy().min() == 3


def test_a_second_call_compiles_nothing(pjrt):
    def double(x):
        return x * 2

    pjrt.run(double, (tf.constant(1.0),))
    count = len(pjrt._programs)
    assert results(pjrt, pjrt.run(double, (tf.constant(4.0),))) == [8.0] * N
    assert len(pjrt._programs) == count
    pjrt.run(double, (tf.constant([4.0]),))
    assert len(pjrt._programs) == count + 1


def test_compiled_programs_are_kept_in_a_folder(pjrt, tmp_path):
    import jax

    names = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in names}
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
    from jax.experimental.compilation_cache import compilation_cache

    try:
        for name, value in names.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        for _ in range(2):  # The same program under two names of TensorFlow's.
            assert (
                results(pjrt, pjrt.run(lambda x: pjrt.all_reduce(x * 3), (tf.constant(2.0),))) == [24.0] * N
            )
        assert hits.count("/jax/compilation_cache/cache_hits") == 1
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_what_it_refuses(pjrt, monkeypatch):
    with pytest.raises(
        UserError, match=r"^config.num_replicas=99: jax has \d+ CPU devices here; .*start anew"
    ):
        backends.make(RunConfig(replicas="pjrt", num_replicas=99))
    outside = tf.Variable(1.0)
    with pytest.raises(UserError, match="made outside of the replicas' scope"):
        pjrt.run(lambda: outside + 1)
    with pytest.raises(UnsupportedError, match="outside of tf.function"):
        tf.function(lambda: pjrt.run(lambda: tf.constant(0)))()
    with pytest.raises(UserError, match="^config.replicas=pjrt: XLA cannot compile the step: .*"):
        pjrt.run(lambda x: tf.strings.as_string(x), (tf.constant(1.0),))
    with pytest.raises(UserError, match="replica's number as a constant"):
        pjrt.run(lambda x: tf.slice(x, [pjrt.replica_id()], [1]), (tf.range(8.0),))
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        UserError, match="^config.replicas=pjrt: jax is not installed here; run `make setup`$"
    ):
        backends.make(RunConfig(replicas="pjrt"))


def test_every_step_is_compiled_and_off_is_refused():
    config = toy.config(replicas="pjrt", num_replicas=2)
    replicas = backends.make(config)
    assert plan(config, replicas, None).compiled is Compiled.STEP
    off = toy.config(replicas="pjrt", num_replicas=2, compile="off")
    with pytest.raises(UserError, match="^config.compile=off: .*use auto or on"):
        off.validate()
    assert describe(toy.Task(config), [])["compiled_here"] == "the whole step"


def test_the_next_batch_is_placed_while_the_step_runs(pjrt):
    """Two steps are started before the loss of the first is read."""
    order = []
    loop = Programs(
        toy.Task(toy.config(replicas="pjrt", num_replicas=2)),
        backends.make(toy.config(replicas="pjrt", num_replicas=2)),
    )
    loop.compile()
    block, run = loop.block, loop.replicas.run
    read = block._read
    block._read = lambda *call: order.append("read") or read(*call)
    loop.replicas.run = lambda *args: order.append("start") or run(*args)
    loop.call(loop.synthetic(True), loop.synthetic(False), 4, 0)
    assert order == ["start", "start", "read", "start", "read", "start", "read", "read", "start"]
