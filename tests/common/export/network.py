"""A small network that holds every kind of exchange: rows of images, moments, branches, dropout, all gradients."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.optimizer import Sgd
from common.config.schedule import Constant
from common.config.schema import RunConfig
from common.distributed.graph_partition import branches
from common.distributed.replicas.base import Replicas
from common.distributed.spatial.partition import Spatial
from common.layers.batch_norm import SyncBatchNorm
from common.layers.dropout import Dropout
from common.layers.precision import Precision
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum

SIDE, CLASSES = 7, 4


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    batch_norm_span: int = 0


def config(num_replicas: int, **changes: Any) -> Config:
    """Returns a configuration of 2 images a group of replicas in float64, on `mirrored`."""
    groups = num_replicas // changes.get("partitions", 1)
    base = Config(
        benchmark="resnet", model="small", system="small", division="open", smoke_run=True, precision="fp64",
        replicas="mirrored", num_replicas=num_replicas, global_batch_size=2 * groups,
        eval_batch_size=2 * groups, num_train_examples=64, num_eval_examples=16, train_epochs=4,
        optimizer=Sgd(base_learning_rate=0.1, weight_decay=1e-4),
        schedule=Constant(warmup_epochs=0),
    )  # fmt: skip
    toy = dataclasses.replace(base, **changes)
    toy.validate()
    return toy


class Network(tf_keras.Model):
    """A convolution on rows, batch norm over a span, dropout, and two heads that a group of replicas shares out."""

    kinds = {"kernel": "kernel", "hidden": "kernel", "first": "kernel", "second": "kernel"}

    def __init__(self, config: Config, replicas: Replicas, precision: Precision):
        super().__init__(dtype=precision.full, autocast=False)
        self.spatial = Spatial(replicas, config.partitions)
        self.replicas = replicas
        self.norm = SyncBatchNorm(replicas, config.batch_norm_span, precision, spatial=self.spatial)
        self.dropout = Dropout(replicas, 0.25, 5, config.partitions, dtype=precision.full)
        shapes = {"kernel": [3, 3, 3, 6], "hidden": [6, 6], "first": [6, CLASSES], "second": [6, CLASSES]}
        rng = np.random.default_rng(2)
        for name, shape in shapes.items():
            setattr(self, name, tf.Variable(tf.cast(rng.normal(size=shape), precision.variable), name=name))
        self.norm.build([config.micro_batch_size, SIDE, SIDE, 6])
        self.dropout.build([config.micro_batch_size, 6])

    def call(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        x = self.spatial.conv2d(self.spatial.enter(images), self.kernel.read_value(), 1, "same")
        x = tf.nn.relu(self.norm(x, training=training))
        x = self.dropout(self.spatial.global_average(x), training=training)
        # A sum over replicas as a conditional's direct input is more than TensorFlow can lower.
        x = x @ self.hidden.read_value()
        # Read here: a conditional that one replica runs reads no variable.
        first, second = self.first.read_value(), self.second.read_value()
        outputs = branches(
            self.replicas, [lambda: x @ first, lambda: tf.tanh(x) @ second], self.spatial.groups
        )
        return tf.add_n(outputs)


class Task(task.Task):
    """Classifies noise."""

    def __init__(self, config: Config, data_dir: None = None):
        super().__init__(config, data_dir)

    def check_input(self) -> None:
        pass

    def check_data(self) -> None:
        pass

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        return Network(self.config, replicas, precision)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        rng = np.random.default_rng(self.config.seed)
        batch = {
            "image": rng.normal(size=[batch_size, SIDE, SIDE, 3]),
            "label": rng.integers(0, CLASSES, [batch_size]).astype(np.int32),
            "weight": rng.integers(1, 3, [batch_size]).astype(np.float64),
        }
        return tf.data.Dataset.from_tensors(batch).repeat()

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = model(batch["image"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        weight = batch["weight"]
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        logits = model(batch["image"], training=False)
        return Outputs(sums={"logits": tf.reduce_sum(logits)}, arrays={"logits": logits})

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        """The mean of the logits."""
        return Quality(float(sums["logits"]) / len(arrays["logits"]), False)
