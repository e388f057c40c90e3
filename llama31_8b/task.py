"""Defines the task of Llama 3.1 8B: cross-entropy of the next token; its mean over the evaluation is the quality."""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.layers.chunked_cross_entropy import cross_entropies, summed_cross_entropy
from common.layers.cross_entropy import sparse_cross_entropy
from common.layers.dense import rows
from common.layers.precision import Precision
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum
from llama31_8b import input as pipeline
from llama31_8b import model
from llama31_8b.config import Config


class Task(task.Task):
    """Prediction of the next token, on C4 or on any text."""

    input = pipeline
    config: Config

    def build(self, replicas: Replicas, precision: Precision) -> model.Llama:
        return model.build(self.config, replicas, precision)

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        return pipeline.synthetic(self.config, batch_size, training=False)

    def loss(self, model_: model.Llama, batch: Batch) -> Mapping[str, WeightedSum]:
        """Averages cross-entropy over all tokens of the batch; windows have no padding."""
        inputs, labels = shifted(batch["tokens"])
        x, labels, kernel = rows(model_.features(inputs)), tf.reshape(labels, [-1]), self._kernel(model_)
        weights = tf.ones(labels.shape, kernel.dtype)
        if self.config.logit_chunks == 1:
            logits = tf.cast(tf.matmul(x, tf.cast(kernel, x.dtype)), kernel.dtype)
            total = tf.reduce_sum(sparse_cross_entropy(logits, labels))
        else:
            total = summed_cross_entropy(x, kernel, labels, weights, self.config.logit_chunks, x.dtype)
        return {"cross_entropy": WeightedSum(total, tf.reduce_sum(weights))}

    def evaluate(self, model_: model.Llama, batch: Batch) -> Outputs:
        inputs, labels = shifted(batch["tokens"])
        x, kernel = rows(model_.features(inputs)), self._kernel(model_)
        losses = cross_entropies(x, kernel, tf.reshape(labels, [-1]), self.config.logit_chunks, x.dtype)
        real = batch["weight"] > 0
        per_window = tf.reduce_sum(tf.reshape(losses, tf.shape(labels)), 1)
        # Selects zeros, because a product with 0 would turn an infinite loss into NaN.
        window_losses = tf.where(real, tf.cast(per_window, tf.float64), tf.zeros([], tf.float64))
        return Outputs(
            sums={"loss": tf.reduce_sum(window_losses), "windows": tf.reduce_sum(tf.cast(real, tf.int32))}
        )

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        windows, config = int(sums["windows"]), self.config
        if not config.num_eval_examples <= windows <= config.examples_per_evaluation:
            raise ValueError(
                f"{windows} windows evaluated, {config.num_eval_examples} to {config.examples_per_evaluation} expected"
            )
        loss = float(sums["loss"]) / (windows * config.sequence_length)
        bytes_per_token = config.data.bytes_per_token
        details = {"bits_per_byte": loss / math.log(2) / bytes_per_token} if bytes_per_token else {}
        return Quality(loss, config.meets_target(loss), details)

    def assets(self) -> Mapping[str, bytes]:
        """Returns the tokenizer, if the data folder has one."""
        name = self.config.data.tokenizer
        path = self.data_dir / name if self.data_dir and name else None
        return {name: path.read_bytes()} if path and path.is_file() else {}

    def _kernel(self, model_: model.Llama) -> tf.Tensor:
        return model_.head.whole(model_.head.kernel)


def shifted(tokens: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits windows [b, n + 1] into inputs and labels, [b, n] each: the label of a token is the one after it."""
    return tokens[:, :-1], tokens[:, 1:]
