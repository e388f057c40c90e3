"""Partitioned images against whole ones: windows, operations, batch norm, backbones, the loop; float64 to 1e-8."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given
from hypothesis import strategies as st

from common import events
from common import replicas as backends
from common.clock import Clock
from common.config import Optimizer, RunConfig
from common.convolution import PaddedConv2D
from common.errors import UserError
from common.loop import Loop
from common.norm import SpanBatchNorm
from common.precision import precision
from common.replicas.base import Shard
from common.replicas.mirrored import Mirrored
from common.replicas.single import Single
from common.spatial import Spatial, shared_input
from common.spatial.geometry import Window, output_size, resolve, rows_of
from common.spatial.layers import AveragePool, Enter, GlobalAverage, Leave, MaxPool
from common.step import State, make_eval_step, make_train_step
from common.task import Over, WeightedSum
from resnet.config import PRESETS
from resnet.task import Task
from tests.common import processes, test_placement, toy

HEIGHTS = (300, 150, 75, 38, 19, 10, 5, 3, 1)  # of the SSD's feature maps
CHANNELS, FILTERS, BATCH = 2, 3, 2
# (kernel, stride, padding)
CONVOLUTIONS = [
    (1, 1, "same"),
    (1, 2, 0),
    (2, 2, "valid"),
    (3, 1, "same"),
    (3, 1, "valid"),
    (3, 2, "same"),
    (3, 2, 1),
    (3, 2, ((0, 1), (0, 1))),
    (5, 3, "same"),
    (7, 1, 3),
    (7, 2, "same"),
    (7, 2, 3),
]
POOLS = [(2, 2, "same"), (3, 1, "same"), (3, 2, "same"), (3, 2, "valid"), (3, 2, 1)]


def normal(shape, seed):
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def close(got, want, message=""):
    """1e-8, relative to the largest of the expected values."""
    want = np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8 * max(np.abs(want).max(), 1e-30), err_msg=message)


def whole_and_parts(k, network, images, weights, replicas):
    """(outputs, gradients of images and weights) of a network on one device and on groups of k replicas.

    `network(spatial, rows, weights)` returns tensors equal on all replicas; their scalar products with fixed
    noise are the loss, of which each replica takes its part, as a weighted sum would.
    """

    def one(replicas):
        spatial = Spatial(replicas, k)
        with tf.GradientTape() as tape:
            tape.watch([images, *weights])
            outputs = network(spatial, spatial.enter(images), weights)
            loss = tf.add_n([tf.reduce_sum(y * normal(y.shape, i)) for i, y in enumerate(outputs)])
        gradients = tape.gradient(
            loss / replicas.num_replicas,
            [images, *weights],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return outputs, gradients

    whole = one(Single())
    outputs, gradients = replicas.run(lambda: one(replicas))
    return whole, ([replicas.local_results(y) for y in outputs], [replicas.sum(g) for g in gradients])


def check(k, network, images, weights=(), replicas=None):
    """On a mirrored group of k, or on `replicas`."""
    replicas = replicas or Mirrored(k)
    (outputs, gradients), parts = whole_and_parts(k, network, images, list(weights), replicas)
    for number, (want, copies) in enumerate(zip(outputs, parts[0], strict=True)):
        for copy in copies:
            close(copy, want, f"output {number}")
    for number, (want, got) in enumerate(zip(gradients, parts[1], strict=True)):
        close(got, want, f"gradient {number}")


def fits(height, size, stride, padding):
    (top, bottom), _ = resolve(padding, height, height, size, stride)
    return output_size(height, size, stride, top, bottom) > 0


# -- Which rows ----------------------------------------------------------------------------------------------


@given(
    height=st.integers(1, 80),
    k=st.integers(1, 9),
    size=st.integers(1, 9),
    stride=st.integers(1, 4),
    top=st.integers(0, 4),
    bottom=st.integers(0, 4),
)
def test_a_window_holds_the_rows_of_every_output_that_exists(height, k, size, stride, top, bottom):
    if output_size(height, size, stride, top, bottom) < 1:
        return
    window, rows = Window.of(height, k, size, stride, top, bottom), rows_of(height, k)
    out_rows = rows_of(window.height, k)
    for position in range(k):
        held = range(position * rows - window.above, (position + 1) * rows + window.below)
        for row in range(position * out_rows, min((position + 1) * out_rows, window.height)):
            first = row * stride - top
            assert first in held and first + size - 1 in held
    aligned = rows == out_rows * stride
    assert not aligned or (window.above, window.below) == (top, max(size - stride - top, 0))


# -- Operations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("size, stride, padding", CONVOLUTIONS, ids=str)
def test_convolution(k, size, stride, padding):
    def network(spatial, x, weights):
        return [spatial.leave(spatial.conv2d(x, weights[0], stride, padding))]

    kernel = normal([size, size, CHANNELS, FILTERS], 1)
    for height in HEIGHTS:
        if fits(height, size, stride, padding):
            check(k, network, normal([BATCH, height, 9, CHANNELS], 2), [kernel])


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("size, stride, padding", POOLS, ids=str)
@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
def test_pool(k, kind, size, stride, padding):
    def network(spatial, x, weights):
        return [spatial.leave(getattr(spatial, kind)(x, size, stride, padding))]

    for height in HEIGHTS:
        if fits(height, size, stride, padding):
            # All negative: zeros outside of the image would win.
            check(k, network, -tf.exp(normal([BATCH, height, 9, CHANNELS], 3)))


@pytest.mark.parametrize("k", [2, 4, 8])
def test_global_average(k):
    for height in HEIGHTS:
        images = normal([BATCH, height, 4, CHANNELS], 4)
        check(k, lambda spatial, x, _: [spatial.global_average(x)], images)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_upsample_of_a_pyramid_s_levels(k):
    """Rows that do not divide lie otherwise on the coarser level than twice them on the finer one."""
    for height, width in ((52, 8), (51, 7), (26, 5), (21, 4), (13, 3), (7, 2), (3, 1)):

        def network(spatial, x, weights):
            fine = spatial.conv2d(x, weights[0], 1, "same")
            coarse = spatial.max_pool(x, 1, 2, "valid")
            return [spatial.leave(fine + spatial.upsample(coarse, fine))]

        images = normal([BATCH, height, width, CHANNELS], 10)
        check(k, network, images, [normal([3, 3, CHANNELS, CHANNELS], 11)])
        coarse = images[:, ::2, ::2]
        doubled = tf.repeat(tf.repeat(coarse, 2, axis=1), 2, axis=2)[:, :height, :width]
        np.testing.assert_array_equal(Spatial(Single()).upsample(coarse, images), doubled)


@pytest.mark.parametrize("k", [2, 4])
def test_rows_that_do_not_exist_may_hold_anything(k):
    """They are NaN in front of whatever mixes rows: nothing of it reaches an output, a statistic or a gradient."""

    def spoilt(spatial, x):
        first = spatial.position() * x.shape[1]
        rows = tf.reshape(first + np.arange(x.shape[1]) < spatial.height(x), [1, -1, 1, 1])
        return tf.where(rows, x, tf.constant(np.nan, x.dtype))

    def network(spatial, x, weights):
        x = spatial.conv2d(spoilt(spatial, x), weights[0], 2, 3)
        mean, variance, _ = spatial.moments(spoilt(spatial, x), 1)
        tf.debugging.assert_all_finite([mean, variance], "leaked into the moments")
        x = spatial.max_pool(spoilt(spatial, x), 3, 2, "same")
        x = spatial.avg_pool(spoilt(spatial, x), 3, 1, "same")
        x = spoilt(spatial, x)
        return [spatial.leave(x), spatial.global_average(x)]

    for height in (19, 38, 75):
        images = normal([BATCH, height, 19, CHANNELS], 5)
        check(k, network, images, [normal([7, 7, CHANNELS, FILTERS], 6)])


# -- Batch norm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [8, 5, 1])
@pytest.mark.parametrize("replicas, k", [(4, 4), (4, 2), (2, 2)])
@pytest.mark.parametrize("span", [1, 2, 4])
def test_batch_norm_counts_whole_images(height, replicas, k, span):
    """4 images; the span is of images, however many replicas share one."""
    images, upstream = normal([4, height, 3, CHANNELS], 7), normal([4, height, 3, CHANNELS], 8)
    groups = replicas // k
    if span > 4 // groups and (span * groups) % 4:
        return

    def one(backend, partitions, mine):
        spatial = Spatial(backend, partitions)
        layer = layers[backend.name]
        layer.spatial = spatial
        x, up = images[mine], upstream[mine]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = spatial.leave(layer(spatial.enter(x), training=True))
            loss = tf.reduce_sum(y * up) / spatial.partitions
        return y, tape.gradient(loss, x), layer.moving_variance.read_value()

    backend, layers = Mirrored(replicas), {}
    with backend.scope():
        layers["mirrored"] = SpanBatchNorm(backend, span, precision("fp64"), spatial=Spatial(backend, k))
        layers["mirrored"].build([4 // groups, rows_of(height, k), 3, CHANNELS])
    layers["single"] = SpanBatchNorm(Single(), span, precision("fp64"))
    layers["single"].build(images.shape)
    want, want_dx, want_variance = one(Single(), 1, slice(0, 4))

    def replica():
        first = int(tf.get_static_value(backend.replica_id())) // k * 4 // groups
        return one(backend, k, slice(first, first + 4 // groups))

    y, dx, variance = (backend.local_results(v) for v in backend.run(replica))
    close(np.concatenate(y[::k]), want)
    dx = [sum(dx[i : i + k]) for i in range(0, replicas, k)]
    close(np.concatenate(dx), want_dx)
    merged = np.concatenate(variance[::k])
    assert np.allclose(np.unique(merged.round(9)), np.unique(want_variance.numpy().round(9)))


# -- Backbones -----------------------------------------------------------------------------------------------


class Ssd:
    """The geometry of the SSD's ResNet-34 at 300 px, its third stage of stride 1, and of its extra layers, a
    few channels wide and with one block per stage (mlperf_facts 2).
    """

    STAGES = ((4, 1), (6, 2), (8, 1))  # (channels, stride): 75 rows, 38, 38
    # (channels of the 1x1 and of the 3x3, stride, padding): 19 rows, 10, 5, 3, 1
    EXTRAS = ((4, 8, 2, 1), (4, 8, 2, 1), (3, 5, 2, 1), (3, 5, 1, "valid"), (3, 5, 1, "valid"))

    def __init__(self):
        self._seed = 0
        self.weights = [self._kernel(7, 3, 4)]
        before = 4
        for channels, _ in self.STAGES:
            self.weights += [self._kernel(3, before, channels), self._kernel(3, channels, channels)]
            self.weights.append(self._kernel(1, before, channels))
            before = channels
        for narrow, wide, _, _ in self.EXTRAS:
            self.weights += [self._kernel(1, before, narrow), self._kernel(3, narrow, wide)]
            before = wide

    def _kernel(self, size, channels, filters):
        self._seed += 1
        return normal([size, size, channels, filters], self._seed) / (size * channels**0.5)

    def __call__(self, spatial, x, weights):
        """The feature maps of 38, 19, 10, 5, 3 and 1 rows."""
        weights = iter(weights)

        def conv(x, stride, padding):
            return spatial.conv2d(x, next(weights), stride, padding)

        def normalised(x):
            mean, variance, part = spatial.moments(x, 1)
            if spatial.partitions > 1:
                sums = spatial.all_reduce(tf.stack([mean, variance + mean * mean]) * part)
                mean, variance = sums[0], sums[1] - sums[0] ** 2
            return (x - mean) * tf.math.rsqrt(variance + 1e-5) + 0.1

        x = tf.nn.relu(normalised(conv(x, 2, 3)))
        x = spatial.max_pool(x, 3, 2, 1)
        for _, stride in self.STAGES:
            y = normalised(conv(tf.nn.relu(normalised(conv(x, stride, 1))), 1, 1))
            x = tf.nn.relu(y + normalised(conv(x, stride, 0)))
        maps = [x]
        for _, _, stride, padding in self.EXTRAS:
            x = tf.nn.relu(conv(tf.nn.relu(conv(x, 1, 0) + 0.1), stride, padding) + 0.1)
            maps.append(x)
        return [spatial.leave(x) for x in maps]


@pytest.mark.parametrize("k", [2, 4])
def test_ssd_backbone_at_300_pixels(k):
    ssd = Ssd()
    images = normal([1, 300, 300, 3], 9)
    heights = [y.shape[1] for y in ssd(Spatial(Single()), images, ssd.weights)]
    assert heights == [38, 19, 10, 5, 3, 1]
    check(k, ssd, images, ssd.weights)


def resnet_config(replicas, k, **changes):
    config = dataclasses.replace(
        PRESETS["cpu-tiny"],
        precision="fp64",
        width=8,
        image_size=40,  # 20, 10, 5, 3 and 2 rows
        global_batch_size=4,
        eval_batch_size=4,
        zero_init_last_gamma=False,
        optimizer=Optimizer(name="sgd", base_learning_rate=1.0, momentum=0.0),
        replicas="single" if replicas == 1 else "mirrored",
        num_replicas=replicas,
        partitions=k,
        **changes,
    )
    config.validate()
    return config


def resnet_step(config, replicas, weights=None):
    """(weights before, gradients, loss, evaluation sums) of one step on noise."""
    task, policy = Task(config, None), precision(config.precision)
    state = State(task, replicas, policy)
    variables = state.model.trainable_variables
    if weights is not None:
        for variable, value in zip(variables, weights, strict=True):
            for copy in replicas.local_results(variable):
                copy.assign(value)
    before = [replicas.local_results(v)[0].numpy() for v in variables]
    size = config.image_size
    rng = np.random.default_rng(3)
    batch = {
        "image": rng.integers(0, 256, [config.global_batch_size, size, size, 3]).astype(np.uint8),
        "label": rng.integers(0, config.num_classes, config.global_batch_size).astype(np.int32),
        "weight": np.array([1, 1, 0, 1], np.float32),
    }
    parts = tf.data.Dataset.from_tensor_slices(batch).batch(config.micro_batch_size)
    make = shared_input(lambda s: parts.shard(s.count, s.index).repeat(), config.partitions, replicas)
    batches = iter(replicas.dataset(make))
    step = make_train_step(task, state, policy, Clock.of(config))
    loss = replicas.sum(replicas.run(step, (next(batches), tf.constant(100, tf.int64))))
    # Momentum 0: a slot is rate times gradient.
    slots = [replicas.local_results(slot["momentum"])[0].numpy() for slot in state.update.slots]
    sums, _ = replicas.run(make_eval_step(task, state), (next(batches),))
    return before, slots, float(loss), {k: int(v) for k, v in replicas.sum(sums).items()}


@functools.cache
def whole_resnet_step():
    return resnet_step(resnet_config(1, 1, batch_norm_span=4), Single())


@pytest.mark.parametrize(
    "replicas, k", [(4, 4), *(pytest.param(n, 2, marks=pytest.mark.e2e) for n in (2, 4))]
)
def test_resnet50_step_from_equal_weights(replicas, k):
    """Loss and every weight's gradient; 4 images share their statistics, of one group of replicas or of two."""
    check_resnet(resnet_config(replicas, k, batch_norm_span=4, space_to_depth=k == 4))


def check_resnet(config):
    replicas = backends.make(config)
    weights, gradients, loss, sums = whole_resnet_step()
    _, others, other_loss, other_sums = resnet_step(config, replicas, weights)
    assert other_loss == pytest.approx(loss, rel=1e-8)
    for number, (want, got) in enumerate(zip(gradients, others, strict=True)):
        assert np.linalg.norm(got - want) <= 1e-8 * np.linalg.norm(want), number
    assert other_sums["seen"] == sums["seen"] == 3
    assert other_sums["correct"] == sums["correct"]


# -- Processes -----------------------------------------------------------------------------------------------


def operations_in_a_process(backend, number):
    replicas = backends.make(RunConfig(replicas=backend, num_replicas=number))
    for height, size, stride, padding in (
        (75, 7, 2, 3),
        (38, 3, 2, "same"),
        (5, 3, 1, "valid"),
        (3, 3, 2, 1),
    ):

        def network(spatial, x, weights, size=size, stride=stride, padding=padding):
            y = spatial.conv2d(x, weights[0], stride, padding)
            z = spatial.avg_pool(spatial.max_pool(y, 3, 1, "same"), 3, 2, "same")
            return [spatial.leave(y), spatial.leave(z), spatial.global_average(z)]

        kernel = normal([size, size, CHANNELS, FILTERS], 1)
        check(number, network, normal([BATCH, height, 9, CHANNELS], 2), [kernel], replicas)
    ssd = Ssd()
    check(number, ssd, normal([1, 300, 300, 3], 9), ssd.weights, replicas)
    return True


def resnet_in_a_process(backend, number, k):
    config = resnet_config(number, k, batch_norm_span=4)
    check_resnet(dataclasses.replace(config, replicas=backend))
    return True


@pytest.mark.parametrize("backend", ["multiworker", "horovod"])
@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.e2e)])
def test_processes_share_images(backend, number):
    """Operations, and the SSD's backbone at 300 pixels; then branches, see test_placement.py."""
    calls = {
        "operations": functools.partial(operations_in_a_process, backend, number),
        "branches": functools.partial(test_placement.check_in_a_process, backend, number),
    }
    results = processes.run(backend, number, calls)
    assert all(results["operations"]) and all(results["branches"])


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["multiworker", "horovod"])
@pytest.mark.parametrize("number, k", [(2, 2), (4, 4), (4, 2)])
def test_processes_share_images_of_a_resnet50(backend, number, k):
    calls = {"resnet": functools.partial(resnet_in_a_process, backend, number, k)}
    assert all(processes.run(backend, number, calls, timeout=900)["resnet"])


# -- The loop ------------------------------------------------------------------------------------------------


class ImageTask(toy.Task):
    """The toy's vectors as images of 5 rows and 2 columns: a convolution, batch norm, both poolings, two heads."""

    def build(self, replicas, precision):
        spatial = Spatial(replicas, self.config.partitions)
        inputs = replicas.model_input([toy.FEATURES], self.config.micro_batch_size, precision.variable)
        x = tf_keras.layers.Lambda(lambda x: tf.concat([x, x[:, :2]], 1), dtype=precision.full)(inputs)
        x = tf_keras.layers.Reshape([5, 2, 1], dtype=precision.full)(x)
        x = Enter(spatial, dtype=precision.full)(x)
        x = PaddedConv2D(6, 3, pad=1, spatial=spatial, use_bias=False, dtype=precision.full)(x)
        x = SpanBatchNorm(replicas, self.config.batch_norm_span, precision, spatial=spatial)(x)
        x = tf_keras.layers.Activation("tanh", dtype=precision.full)(x)
        x = MaxPool(spatial, 2, 1, "same", dtype=precision.full)(x)
        x = AveragePool(spatial, 3, 1, "same", dtype=precision.full)(x)
        x = PaddedConv2D(4, 1, pad=0, spatial=spatial, dtype=precision.full)(x)
        mean = GlobalAverage(spatial, dtype=precision.full)(x)
        flat = tf_keras.layers.Flatten(dtype=precision.full)(Leave(spatial, dtype=precision.full)(x))
        x = tf_keras.layers.Concatenate(dtype=precision.full)([mean, flat])
        return tf_keras.Model(inputs, tf_keras.layers.Dense(toy.CLASSES, dtype=precision.full)(x))


class UnevenTask(ImageTask):
    """With a term that is averaged over replicas, whose weights differ."""

    def loss(self, model, batch):
        logits = model(batch["x"], training=True)
        weight = tf.cast(batch["label"], logits.dtype) + 1
        total = tf.reduce_sum(tf.reduce_sum(logits**2, axis=1) * weight)
        return {**super().loss(model, batch), "norm": WeightedSum(total, tf.reduce_sum(weight), Over.REPLICA)}


def free_run(task=ImageTask, **changes):
    """(losses, qualities, weights) of 10 steps; quality() refuses what counts an image twice, or never."""
    config = toy.config(precision="fp64", train_steps=10, quality_target=2.0, **changes)
    config.validate()
    loop = Loop(task(config), backends.make(config))
    loop.compile()
    seen = list(loop.run())
    losses = [x for e in seen if isinstance(e, events.Trained) for x in e.losses]
    weights = [loop.replicas.local_results(v)[0].numpy() for v in loop.state.model.trainable_variables]
    return losses, [e.value for e in seen if isinstance(e, events.Evaluated)], weights


@pytest.mark.parametrize("replicas, k, accumulation", [(4, 4, 1), (4, 2, 1), (2, 2, 2)])
def test_a_run_is_that_of_one_device(replicas, k, accumulation):
    """Input shared by groups, losses, updates, merged moments, and evaluations that count images once."""
    changes = {"batch_norm_span": 8, "accumulation_steps": accumulation}
    losses, qualities, weights = free_run(**changes)
    other = free_run(replicas="mirrored", num_replicas=replicas, partitions=k, **changes)
    np.testing.assert_allclose(other[0], losses, rtol=1e-8)
    assert other[1] == qualities and len(qualities) == 3
    for got, want in zip(other[2], weights, strict=True):
        close(got, want)


def test_terms_over_replicas_are_averaged_over_groups():
    """Two groups of two replicas are two replicas."""
    changes = {"task": UnevenTask, "batch_norm_span": 8, "replicas": "mirrored"}
    losses, _, weights = free_run(num_replicas=2, **changes)
    other_losses, _, others = free_run(num_replicas=4, partitions=2, **changes)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-8)
    for got, want in zip(others, weights, strict=True):
        close(got, want)


@pytest.mark.parametrize(
    "num_replicas, num_processes, k, expected",
    [
        (4, 1, 2, [[0, 0, 1, 1, 2, 2]]),  # mirrored: pairs in one process
        (4, 4, 2, [[0, 1, 2], [0, 1, 2], [10, 11, 12], [10, 11, 12]]),  # a pair of processes reads one shard
        (4, 2, 4, [[0, 0, 1, 1, 2, 2]] * 2),
        (4, 2, 2, [[0, 0, 1, 1, 2, 2], [10, 10, 11, 11, 12, 12]]),
        (2, 2, 1, [[0, 1, 2], [10, 11, 12]]),
    ],
)
def test_a_group_gets_the_same_batches(num_replicas, num_processes, k, expected):
    backend = Single()
    backend.num_replicas, backend.num_processes = num_replicas, num_processes

    def make(shard):
        assert shard.count == len({tuple(row) for row in expected})
        return tf.data.Dataset.range(10 * shard.index, 10 * shard.index + 3).map(lambda i: {"x": i})

    shared = shared_input(make, k, backend)
    for index, wanted in enumerate(expected):
        batches = shared(Shard(index, num_processes)).as_numpy_iterator()
        assert [int(b["x"]) for b in batches] == wanted


def test_mistakes_name_the_values():
    backend = Single()
    backend.num_replicas, backend.num_processes = 6, 2
    with pytest.raises(UserError, match="partitions=2: groups do not fit processes of 3 replicas"):
        shared_input(lambda shard: None, 2, backend)
    with pytest.raises(UserError, match="partitions=3 does not divide config.num_replicas=4"):
        resnet_config(4, 3)
    with pytest.raises(UserError, match="groups of 3 replicas do not divide 4"):
        Spatial(Mirrored(4), 3)
    with pytest.raises(UserError, match="alexnet_bn cannot partition"):
        resnet_config(2, 2, model="alexnet_bn")
    with pytest.raises(UserError, match="clip_replica_norm"):
        toy.config(
            num_replicas=2, partitions=2, optimizer=Optimizer(name="sgd", clip_replica_norm=1.0)
        ).validate()
    with pytest.raises(UserError, match="a window of 3 rows on 2"):
        Window.of(2, 2, 3, 1, 0, 0)
    spatial = Spatial(Mirrored(2), 2)
    with pytest.raises(UserError, match="5 rows of 7 columns come from no partitioned layer"):
        spatial.conv2d(tf.zeros([1, 5, 7, 1]), tf.zeros([3, 3, 1, 1]), 1, "same")
    Mirrored(2).run(lambda: spatial.enter(tf.zeros([1, 10, 7, 1])))
    with pytest.raises(UserError, match="would be of images of 10 and of 9 rows"):
        Mirrored(2).run(lambda: spatial.enter(tf.zeros([1, 9, 7, 1])))
