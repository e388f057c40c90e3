"""Defines the task of ResNet-50 and AlexNet-BN: label-smoothed cross-entropy, top-1 accuracy."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas
from common.layers.cross_entropy import spread_over_all
from common.layers.precision import Precision
from common.train import task
from common.train.classification import confused, seen_once, top_k_sums
from common.train.task import Batch, Outputs, Quality, WeightedSum
from resnet import alexnet, model
from resnet import input as pipeline

MODELS = {"resnet50": model.build, "alexnet_bn": alexnet.build}


class Task(task.Task):
    """Image classification on ImageNet, or on any data in its TFRecord layout."""

    input = pipeline

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._precision = precision
        return MODELS[self.config.model](self.config, replicas, precision)

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = self.logits(model, batch, training=True)
        labels = tf.one_hot(batch["label"], self.config.num_classes, dtype=logits.dtype)
        classes = self.config.num_classes
        smoothing = spread_over_all(self.config.label_smoothing, self.config.details.smoothing_over, classes)
        targets = labels * (1 - smoothing) + smoothing / classes
        losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
        weight = tf.cast(batch["weight"], logits.dtype)
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        return Outputs(sums=top_k_sums(self.logits(model, batch, training=False), batch))

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        count = seen_once(sums, self.config.num_eval_examples)
        top1 = int(sums["correct"]) / count
        details = {"top5": int(sums["correct_top5"]) / count}
        return Quality(top1, self.config.meets_target(top1), details, confused=confused(sums, self.labels))

    def logits(self, model: tf_keras.Model, batch: Batch, training: bool) -> tf.Tensor:
        return model(pipeline.normalize(batch["image"], self._precision.compute), training=training)
