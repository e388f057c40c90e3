"""Defines the task of the language model: cross-entropy of the next word, perplexity (lower is better)."""

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas, Shard
from common.layers.cross_entropy import sparse_cross_entropy
from common.layers.precision import Precision
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum
from ptb import input as pipeline
from ptb import model, text
from ptb.config import Config


class Task(task.Task):
    """Next-word prediction on the Penn Treebank, or on any text in its file format."""

    input = pipeline

    def __init__(self, config: Config, data_dir: str | None):
        super().__init__(config, data_dir)
        # The check and the batches share one load.
        self._texts = functools.cache(functools.partial(pipeline.load, config, data_dir))

    def check_data(self) -> None:
        self._texts()

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._variable = precision.variable
        return model.build(self.config, replicas, precision)

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        words, _ = self._texts()
        return pipeline.train_input(self.config, words, shard, batch_size, start_step)

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        _, words = self._texts()
        return pipeline.eval_input(self.config, words, shard, batch_size)

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        """Sums cross-entropy over a sequence's words and averages over sequences, as ptb_word_lm.py does."""
        losses, weight = self._losses(model, batch, training=True)
        sequences = tf.reduce_sum(weight) / self.config.num_steps
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * weight), sequences)}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        losses, weight = self._losses(model, batch, training=False)
        return Outputs(
            sums={
                "loss": tf.reduce_sum(tf.cast(losses * weight, tf.float64)),
                "words": tf.reduce_sum(tf.cast(weight, tf.int32)),
            }
        )

    def labels(self) -> Sequence[str]:
        """Returns the words of the vocabulary, in the order of their numbers."""
        path = self.data_dir / self.config.data.train_file if self.data_dir else None
        return tuple(text.vocabulary(text.read(path))) if path else ()

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        words, expected = int(sums["words"]), self.config.num_eval_examples - 1
        if words != expected:
            raise ValueError(f"{words} words predicted, {expected} expected (config.num_eval_examples - 1)")
        loss = float(sums["loss"]) / words
        # A diverged model's perplexity would overflow a float.
        perplexity = math.exp(min(loss, 700.0))
        return Quality(perplexity, self.config.meets_target(perplexity), {"loss": loss})

    def _losses(self, model: tf_keras.Model, batch: Batch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes (cross-entropy of each word, its weight), each [b, T], and stores the new state."""
        stream, carried = batch["stream"], model.carried
        keep = batch["keep"] if self.config.carry else tf.zeros_like(batch["keep"])
        logits, state = model([batch["words"], carried.read(stream, keep, training)], training=training)
        carried.write(stream, state, training)
        rows = tf.reshape(logits, [-1, self.config.vocabulary_size])
        losses = sparse_cross_entropy(rows, tf.reshape(batch["targets"], [-1]))
        return tf.reshape(losses, tf.shape(batch["targets"])), tf.cast(batch["weight"], self._variable)
