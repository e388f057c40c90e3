"""Tests networks on partitioned images against whole ones, also in several processes; float64 to 1e-8."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Sgd
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed import replicas as backends
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.distributed.spatial import Spatial, shared_input
from common.distributed.spatial.geometry import Window
from common.errors import UserError
from common.layers.precision import precision
from common.train.state import State
from common.train.step import make_eval_step, make_train_step
from resnet.presets import PRESETS
from resnet.task import Task
from tests.common.distributed import test_graph_partition
from tests.common.distributed.replicas import processes
from tests.common.distributed.spatial.partitioned import BATCH, CHANNELS, FILTERS, check, normal
from tests.common.train import toy

# -- Backbones -----------------------------------------------------------------------------------------------


class Ssd:
    """The geometry of the SSD's ResNet-34 at 300 px, its third stage of stride 1, and of its extra layers, a
    few channels wide and with one block per stage (docs/sources.md, mlperf 2).
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

        def normalized(x):
            means, part = spatial.means(x, 1)
            if spatial.partitions > 1:
                means = spatial.all_reduce(means * part)
            return (x - means[0]) * tf.math.rsqrt(means[1] - means[0] ** 2 + 1e-5) + 0.1

        x = tf.nn.relu(normalized(conv(x, 2, 3)))
        x = spatial.max_pool(x, 3, 2, 1)
        for _, stride in self.STAGES:
            y = normalized(conv(tf.nn.relu(normalized(conv(x, stride, 1))), 1, 1))
            x = tf.nn.relu(y + normalized(conv(x, stride, 0)))
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
        implementation="tensorflow2",
        optimizer=Sgd(base_learning_rate=1.0, momentum=0.9),
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
    step = make_train_step(task, state, RunLength.of(config))
    loss = replicas.sum(replicas.run(step, (next(batches), tf.constant(100, tf.int64))))
    # The first momentum is rate times gradient.
    slots = [replicas.local_results(slot["momentum"])[0].numpy() for slot in state.update.slots]
    sums, _ = replicas.run(make_eval_step(task, state), (next(batches),))
    return before, slots, float(loss), {k: np.asarray(v) for k, v in replicas.sum(sums).items()}


@functools.cache
def whole_resnet_step():
    return resnet_step(resnet_config(1, 1, batch_norm_span=4), Single())


@pytest.mark.parametrize(
    "replicas, k", [(4, 4), *(pytest.param(n, 2, marks=pytest.mark.e2e) for n in (2, 4))]
)
def test_resnet50_step_from_equal_weights(replicas, k):
    """Compares the loss and all gradients; 4 images, on one group of replicas or two, share their statistics."""
    check_resnet(resnet_config(replicas, k, batch_norm_span=4, space_to_depth=k == 4))


def check_resnet(config):
    replicas = backends.make(config)
    weights, gradients, loss, sums = whole_resnet_step()
    _, others, other_loss, other_sums = resnet_step(config, replicas, weights)
    assert other_loss == pytest.approx(loss, rel=1e-8)
    for number, (gradient, other) in enumerate(zip(gradients, others, strict=True)):
        assert np.linalg.norm(other - gradient) <= 1e-8 * np.linalg.norm(gradient), number
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
            z = spatial.max_pool(spatial.max_pool(y, 3, 1, "same"), 3, 2, "same")
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
    """Operations, the SSD's backbone at 300 pixels, and the branches of test_graph_partition.py."""
    calls = {
        "operations": functools.partial(operations_in_a_process, backend, number),
        "branches": functools.partial(test_graph_partition.check_in_a_process, backend, number),
    }
    results = processes.run(backend, number, calls)
    assert all(results["operations"]) and all(results["branches"])


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["multiworker", "horovod"])
@pytest.mark.parametrize("number, k", [(2, 2), (4, 4), (4, 2)])
def test_processes_share_images_of_a_resnet50(backend, number, k):
    calls = {"resnet": functools.partial(resnet_in_a_process, backend, number, k)}
    assert all(processes.run(backend, number, calls, timeout=900)["resnet"])


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
        toy.config(num_replicas=2, partitions=2, optimizer=Sgd(clip_replica_norm=1.0)).validate()
    with pytest.raises(UserError, match="a window of 3 rows on 2"):
        Window.for_image(2, 2, 3, 1, 0, 0)
    spatial = Spatial(Mirrored(2), 2)
    with pytest.raises(UserError, match="5 rows of 7 columns come from no partitioned layer"):
        spatial.conv2d(tf.zeros([1, 5, 7, 1]), tf.zeros([3, 3, 1, 1]), 1, "same")
    Mirrored(2).run(lambda: spatial.enter(tf.zeros([1, 10, 7, 1])))
    with pytest.raises(UserError, match="would be of images of 10 and of 9 rows"):
        Mirrored(2).run(lambda: spatial.enter(tf.zeros([1, 9, 7, 1])))
