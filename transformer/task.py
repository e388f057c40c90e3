"""Defines the task of the Transformer: label-smoothed cross-entropy per token, BLEU of beam-searched translations."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.layers.cross_entropy import sparse_cross_entropy
from common.layers.precision import Precision
from common.text import bleu, translation
from common.text.subwords import Subwords
from common.train.task import Batch, Outputs, Reduction, WeightedSum
from transformer import input as pipeline
from transformer import model


class Task(translation.Task):
    """Translation with one subword vocabulary for both languages."""

    input = pipeline

    def build(self, replicas: Replicas, precision: Precision) -> model.Transformer:
        return model.Transformer(self.config, replicas, precision)

    def loss(self, model_: model.Transformer, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = model_([batch[name] for name in model.INPUTS], training=True)
        losses = smoothed_cross_entropy(logits, batch["targets"], self.config.label_smoothing)
        real = tf.cast(batch["targets"] != 0, logits.dtype) * tf.cast(batch["weight"], logits.dtype)[:, None]
        reduction = Reduction.REPLICA if self.config.mean_of_means else Reduction.GLOBAL
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * real), tf.reduce_sum(real), reduction)}

    def evaluate(self, model_: model.Transformer, batch: Batch) -> Outputs:
        length = self.config.decode.source_length
        hypotheses = model_.translate(batch["inputs"][:, :length], batch["inputs_position"][:, :length])
        return self.outputs(hypotheses.tokens, batch)

    def asset_names(self) -> Sequence[str]:
        return (self.config.data.vocabulary,)

    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """Computes BLEU as tensor2tensor does, lower-cased."""
        return bleu.t2t(references, hypotheses)

    def decoded(self, rows: np.ndarray) -> list[str]:
        subwords = _subwords(self.data_dir / self.config.data.vocabulary)
        return [subwords.decode(row) for row in rows]


def smoothed_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Computes cross-entropy with target 1 - smoothing for the label and smoothing / (V - 1) for each other class.

    This is the Transformer's definition, not the one in tf.losses (docs/sources.md, mlperf 0.7). The function subtracts
    the targets' entropy, so that the minimum loss is 0.

    Args:
      logits: [b, n, V].
      labels: int [b, n].
      smoothing: fraction of the target probability that the other classes share.

    Returns:
      [b, n].
    """
    classes = logits.shape[-1]
    confidence, rest = 1 - smoothing, smoothing / (classes - 1)
    probabilities = np.array([confidence] + [rest] * (classes - 1 if rest else 0))
    least = -float(np.sum(probabilities * np.log(probabilities)))
    # Spreading s over the other V - 1 classes equals spreading s V / (V - 1) over all V.
    losses = sparse_cross_entropy(tf.reshape(logits, [-1, classes]), tf.reshape(labels, [-1]), rest * classes)
    return tf.reshape(losses, tf.shape(labels)) - least


@functools.lru_cache(maxsize=1)
def _subwords(path: pathlib.Path) -> Subwords:
    return Subwords(path)
