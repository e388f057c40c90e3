"""Tests a step on replicas that share images by rows and the second stage by heads against a step on one device."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.distributed.spatial import shared_input
from common.layers.precision import precision
from common.train.state import State
from common.train.step import make_train_step
from maskrcnn import loss, model
from maskrcnn.config import Config
from tests.maskrcnn import small

# 64 rows are 16, 8, 4, 2 and 1 on the levels: the last two levels leave some of four workers without a row, the last
# one also some of two. 192 rows are 6 and 3 on these levels. All widths differ, so that a part identifies its map.
WIDE, TALL = (64, 192), (192, 64)


class Task:
    """A task with the losses only, so that this test needs no input pipeline."""

    def __init__(self, config: Config):
        self.config = config

    def build(self, replicas, precision):
        return model.build(self.config, replicas, precision)

    def loss(self, net, batch):
        return loss.losses(net, batch, self.config, net.next_draw())


def config_of(replicas: int, partitions: int, **changes) -> Config:
    config = small.config(
        replicas="single" if replicas == 1 else "mirrored",
        num_replicas=replicas,
        partitions=partitions,
        # The span is equal for one replica and groups of four, because losses are means over a replica's images.
        batch_norm_span=2,
        long_side=192,
        **changes,
    )
    config.validate()
    return config


def step(config: Config, replicas, shape, weights=None) -> tuple[list, list, float]:
    """(weights, gradients, loss) of a step on noise."""
    task, policy = Task(config), precision(config.precision)
    state = State(task, replicas, policy)
    variables = state.model.trainable_variables
    if weights is None:
        small.randomize(variables, 7)
        weights = [v.numpy() for v in variables]
    for variable, value in zip(variables, weights, strict=True):
        for copy in replicas.local_results(variable):
            copy.assign(value)
    arrays = small.batch(config, shape, seed=8)
    data = tf.data.Dataset.from_tensors(arrays).repeat()
    batches = iter(replicas.dataset(shared_input(lambda s: data, config.partitions, replicas)))
    train_step = make_train_step(task, state, RunLength.of(config))
    loss_sum = float(replicas.sum(replicas.run(train_step, (next(batches), tf.constant(0, tf.int64)))))
    # After a first step the momentum is the gradient.
    slots = [replicas.local_results(slot["momentum"])[0].numpy() for slot in state.update.slots]
    return weights, slots, loss_sum


@functools.cache
def whole(shape, **changes):
    return step(config_of(1, 1, **changes), Single(), shape)


E2E = pytest.mark.e2e


@pytest.mark.parametrize(
    ("partitions", "shape"),
    [(2, WIDE), *(pytest.param(*case, marks=E2E) for case in ((2, TALL), (4, WIDE), (4, TALL)))],
    ids=str,
)
def test_loss_and_gradients_are_those_of_whole_images(partitions, shape):
    """Backbone, pyramid and proposals are split by rows; replicas of a group share boxes and masks out."""
    weights, gradients, expected = whole(shape)
    _, values, other = step(config_of(partitions, partitions), Mirrored(partitions), shape, weights)
    assert other == pytest.approx(expected, rel=1e-8)
    assert len(values) == len(gradients)
    for a, b in zip(values, gradients, strict=True):
        assert np.linalg.norm(a - b) <= 1e-8 * max(np.linalg.norm(b), 1e-3)


@pytest.mark.e2e
def test_frozen_parts_too():
    changes = {"batch_norm": "frozen"}
    weights, gradients, expected = whole(WIDE, **changes)
    _, values, other = step(config_of(2, 2, **changes), Mirrored(2), WIDE, weights)
    assert other == pytest.approx(expected, rel=1e-8)
    for a, b in zip(values, gradients, strict=True):
        assert np.linalg.norm(a - b) <= 1e-8 * max(np.linalg.norm(b), 1e-3)


@pytest.mark.parametrize("partitions, slices", [(1, 1), (2, 1), (4, 2), (8, 2)])
def test_at_most_four_replicas_of_a_group_compute_the_second_stage(monkeypatch, partitions, slices):
    """Two of eight for boxes, two for masks: "up to four different cores" (section 3 of the pods paper)."""
    arguments = []

    def branches(replicas, functions, groups):
        arguments.append(len(functions))
        return [function() for function in functions]

    monkeypatch.setattr(model, "branches", branches)
    network = types.SimpleNamespace(
        spatial=types.SimpleNamespace(partitions=partitions, groups=[list(range(partitions))]),
        replicas=None,
        crops=[lambda maps, regions: regions] * 2,
        box_head=lambda x: (x, x),
        mask_head=types.SimpleNamespace(of_class=lambda x, classes: x),
    )
    network._mask_slices = functools.partial(model.MaskRCNN._mask_slices, network)
    regions, classes = tf.random.uniform([1, 10, 4]), tf.zeros([1, 10], tf.int32)
    outputs = model.MaskRCNN.heads(network, [], regions, regions, classes)
    assert arguments == [2 * slices]
    np.testing.assert_array_equal(outputs[0], regions)
    np.testing.assert_array_equal(outputs[2], regions)
