"""Defines the task of GNMT: label-smoothed cross-entropy per sentence, BLEU of beam-searched translations."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.layers.cross_entropy import sparse_cross_entropy, spread_over_all
from common.layers.precision import Precision
from common.text import bleu, translation
from common.train.task import Batch, Outputs, WeightedSum
from gnmt import input as pipeline
from gnmt import model
from gnmt.config import Config


class Task(translation.Task):
    """Translation with one byte-pair encoding for both languages."""

    input = pipeline

    def __init__(self, config: Config, data_dir: str | None):
        super().__init__(config, data_dir)
        # Each bucket has a static shape.
        self.batch_shapes = [{"source": [n], "target": [n]} for n in config.bucket_limits]

    def build(self, replicas: Replicas, precision: Precision) -> model.Gnmt:
        return model.Gnmt(self.config, replicas, precision)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        """Repeats training batches of noise, cycling through the buckets."""
        return pipeline.synthetic(self.config, batch_size, self.config.bucket_limits)

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        return pipeline.synthetic_eval(self.config, batch_size)

    def loss(self, model_: model.Gnmt, batch: Batch) -> Mapping[str, WeightedSum]:
        """Sums cross-entropy over a sentence's tokens and averages over sentences.

        The reference's clipping norm of 5 assumes this scale (REF seq2seq/train/trainer.py). Google's code sums over
        sentences too: `optimizer.sums_examples`.
        """
        logits = model_([batch[name] for name in model.INPUTS], training=True)
        smoothing = self.config.label_smoothing, self.config.smoothing_over
        losses = smoothed_cross_entropy(logits, tf.transpose(batch["target"]), *smoothing)
        weight = tf.cast(batch["weight"], losses.dtype)
        # The lengths mask padding but count EOS, which the network must learn.
        real = tf.sequence_mask(batch["target_length"], tf.shape(losses)[0], losses.dtype)
        total = tf.reduce_sum(losses * tf.transpose(real) * weight)
        return {"cross_entropy": WeightedSum(total, tf.reduce_sum(weight))}

    def evaluate(self, model_: model.Gnmt, batch: Batch) -> Outputs:
        return self.outputs(model_.translate(batch["source"], batch["source_length"]).tokens, batch)

    def asset_names(self) -> Sequence[str]:
        return self.config.data.codes, self.config.data.vocabulary

    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """Computes sacreBLEU, lower-cased, with international tokens."""
        return bleu.sacre(references, hypotheses, lowercase=True, tokenize="intl")

    def decoded(self, rows: np.ndarray) -> list[str]:
        bpe, language = pipeline.encoding(self.config, self.data_dir), self.config.data.target_language
        return [bpe.decode(row, language) for row in rows]


def smoothed_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float, over: str = "all"
) -> tf.Tensor:
    """Computes cross-entropy with smoothed labels (docs/sources.md, mlperf 0.7); the minimum loss is above 0.

    Args:
      logits: [..., V].
      labels: int [...].
      smoothing: fraction of the target probability that is spread over the classes.
      over: "all" or "others"; see `spread_over_all`.

    Returns:
      [...].
    """
    classes = logits.shape[-1]
    part = spread_over_all(smoothing, over, classes)
    losses = sparse_cross_entropy(tf.reshape(logits, [-1, classes]), tf.reshape(labels, [-1]), part)
    return tf.reshape(losses, tf.shape(labels))
