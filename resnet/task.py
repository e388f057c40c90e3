"""ResNet-50 as a task: label-smoothed cross-entropy, top-1 accuracy."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas, Shard
from common.errors import UserError
from common.layers.precision import Precision
from common.train.task import Batch, Outputs, Quality, WeightedSum
from resnet import alexnet, model
from resnet import input as pipeline
from resnet.config import Config

MODELS = {"resnet50": model.build, "alexnet_bn": alexnet.build}


class Task:
    """Image classification on ImageNet, or on anything in its TFRecord layout."""

    evaluate_in_worker = False

    def __init__(self, config: Config, data_dir: str | None):
        """`data_dir` None is for what needs no data: --describe, --dry_run, tests."""
        self.config = config
        self.data_dir = pathlib.Path(data_dir) if data_dir else None

    def check_input(self) -> None:
        pipeline.check(self.config, self.data_dir)

    def diagnose(self, error: tf.errors.OpError) -> UserError | None:
        if isinstance(
            error, (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
        ):
            return pipeline.diagnose(self.config, self.data_dir)
        return None

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._precision = precision
        return MODELS[self.config.model](self.config, replicas, precision)

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        # One stream may feed several replicas: a step takes so many of its batches.
        per_step = self.config.global_batch_size // shard.count // batch_size
        return pipeline.train_input(self.config, self.data_dir, shard, batch_size, start_step * per_step)

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        per_step = self.config.eval_batch_size // shard.count // batch_size
        return pipeline.eval_input(self.config, self.data_dir, shard, batch_size, per_step)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        return pipeline.synthetic(self.config, batch_size)

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = self._logits(model, batch, training=True)
        labels = tf.one_hot(batch["label"], self.config.num_classes, dtype=logits.dtype)
        # ls/V on all classes: the definition of tf.losses, which G6 and the reference used (mlperf_facts 0.7).
        smoothing = self.config.label_smoothing
        targets = labels * (1 - smoothing) + smoothing / self.config.num_classes
        losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
        weight = tf.cast(batch["weight"], logits.dtype)
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        logits = self._logits(model, batch, training=False)
        # Padding has label -1, which no argmax equals.
        correct = tf.equal(tf.argmax(logits, -1, tf.int32), batch["label"])
        top5 = tf.math.in_top_k(
            tf.maximum(batch["label"], 0), tf.cast(logits, tf.float32), min(5, logits.shape[-1])
        )
        real = batch["weight"] > 0
        sums = {"correct": correct, "correct_top5": top5 & real, "seen": real}
        return Outputs(sums={name: tf.reduce_sum(tf.cast(hit, tf.int32)) for name, hit in sums.items()})

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        seen = int(sums["seen"])
        if seen != self.config.num_eval_examples:
            raise ValueError(
                f"{seen} examples seen, {self.config.num_eval_examples} expected (config.num_eval_examples)"
            )
        top1 = int(sums["correct"]) / seen
        return Quality(top1, top1 >= self.config.quality_target, {"top5": int(sums["correct_top5"]) / seen})

    def _logits(self, model: tf_keras.Model, batch: Batch, training: bool) -> tf.Tensor:
        return model(pipeline.normalise(batch["image"], self._precision.compute), training=training)
