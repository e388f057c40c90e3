"""Defines the task of the Transformer: label-smoothed cross-entropy per token, BLEU of beam-searched translations."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.errors import UserError
from common.layers.cross_entropy import sparse_cross_entropy
from common.layers.precision import Precision
from common.text import bleu
from common.text.bleu import in_order
from common.text.subwords import Subwords
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum
from transformer import input as pipeline
from transformer import model
from transformer.config import Config


class Task(task.Task):
    """Translation with one subword vocabulary for both languages."""

    input = pipeline
    evaluate_in_worker = True

    def find_damage(self) -> UserError | None:
        return pipeline.diagnose(self.config, self.data_dir)

    def build(self, replicas: Replicas, precision: Precision) -> model.Transformer:
        return model.build(self.config, replicas, precision)

    def loss(self, model_: model.Transformer, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = model_([batch[name] for name in model.INPUTS], training=True)
        losses = smoothed_cross_entropy(logits, batch["targets"], self.config.label_smoothing)
        real = tf.cast(batch["targets"] != 0, logits.dtype) * tf.cast(batch["weight"], logits.dtype)[:, None]
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * real), tf.reduce_sum(real))}

    def evaluate(self, model_: model.Transformer, batch: Batch) -> Outputs:
        length = self.config.decode.source_length
        found = model_.translate(batch["inputs"][:, :length], batch["inputs_position"][:, :length])
        return Outputs(
            arrays={"tokens": found.tokens[:, 0], "index": batch["index"], "weight": batch["weight"]}
        )

    def assets(self) -> Mapping[str, bytes]:
        name = self.config.data.vocabulary
        return {name: (self.data_dir / name).read_bytes()} if self.data_dir else {}

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        """Computes BLEU as tensor2tensor does, lower-cased; from 0 to 1, or from 0 to 100 in round v0.6."""
        hypotheses = self.translations(arrays)
        texts = _references(self.config, self.data_dir)
        score = bleu.t2t(texts, hypotheses)
        value = score if self.config.ruleset == "0.6.0" else score / 100
        details = {"bleu": score, "sacrebleu": bleu.sacre(texts, hypotheses)}
        return Quality(value, self.config.met(value), details)

    def translations(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Decodes the translation of every evaluation sentence, in order.

        Raises:
          ValueError: a sentence is missing or duplicated.
        """
        tokens = in_order(arrays, self.config.num_eval_examples)
        subwords = _subwords(self.data_dir / self.config.data.vocabulary)
        return [subwords.decode(row) for row in tokens]


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
    parts = np.array([confidence] + [rest] * (classes - 1 if rest else 0))
    least = -float(np.sum(parts * np.log(parts)))
    # Spreading s over the other V - 1 classes equals spreading s V / (V - 1) over all V.
    losses = sparse_cross_entropy(tf.reshape(logits, [-1, classes]), tf.reshape(labels, [-1]), rest * classes)
    return tf.reshape(losses, tf.shape(labels)) - least


@functools.lru_cache(maxsize=1)
def _subwords(path: pathlib.Path) -> Subwords:
    return Subwords(path)


@functools.lru_cache(maxsize=1)
def _references(config: Config, data_dir: pathlib.Path) -> list[str]:
    return pipeline.references(config, data_dir)
