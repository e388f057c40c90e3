"""Defines the task of handwritten digits: cross-entropy, top-1 accuracy."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas, Shard
from common.layers.precision import Precision
from common.train import task
from common.train.classification import confused, seen_once, top_k_sums
from common.train.task import Batch, Outputs, Quality, WeightedSum
from mnist import input as pipeline
from mnist import model
from mnist.config import Config


class Task(task.Task):
    """Classification of MNIST, or of any data in its file format."""

    input = pipeline

    def __init__(self, config: Config, data_dir: str | None):
        super().__init__(config, data_dir)
        # The check and the batches share one load.
        self._load = functools.lru_cache(maxsize=2)(functools.partial(pipeline.load, config, data_dir))

    def check_data(self) -> None:
        for training in (True, False):
            self._load(training)

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._precision = precision
        return model.build(self.config, replicas, precision)

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        arrays = self._load(True)
        return pipeline.train_input(self.config, arrays, shard, batch_size, start_step)

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        arrays = self._load(False)
        return pipeline.eval_input(self.config, arrays, shard, batch_size)

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = self.logits(model, batch, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        weight = tf.cast(batch["weight"], logits.dtype)
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        logits = self.logits(model, batch, training=False)
        weight = tf.cast(batch["weight"], logits.dtype)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(batch["label"], 0), logits)
        return Outputs(sums={**top_k_sums(logits, batch), "loss": tf.reduce_sum(losses * weight)})

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        count = seen_once(sums, self.config.num_eval_examples)
        accuracy = int(sums["correct"]) / count
        wrong = confused(sums, self.labels)
        details = {"loss": float(sums["loss"]) / count}
        return Quality(accuracy, self.config.meets_target(accuracy), details, confused=wrong)

    def labels(self) -> Sequence[str]:
        return [str(digit) for digit in range(self.config.num_classes)]

    def logits(self, model: tf_keras.Model, batch: Batch, training: bool) -> tf.Tensor:
        """Computes the logits [b, classes] of the batch's `image`, uint8 [b, S, S]."""
        data, wide = self.config.data, self._precision.variable
        pixels = tf.cast(batch["image"], wide) * data.pixel_scale + data.pixel_offset
        return model(tf.cast(pixels, self._precision.compute), training=training)
