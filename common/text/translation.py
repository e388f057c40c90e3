"""Defines what the tasks of Transformer and GNMT share: the evaluation's outputs, and BLEU of the translations."""

from __future__ import annotations

import abc
import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.text import bleu
from common.train import task
from common.train.task import Batch, Outputs, Quality


class Task(task.Task):
    """A translation, whose `input` has `references(config, data_dir)`; a worker process scores it."""

    evaluate_in_worker = True

    @staticmethod
    def outputs(tokens: tf.Tensor, batch: Batch) -> Outputs:
        """Returns the outputs of an evaluation step from the searches' hypotheses [b, beam, n], best first."""
        return Outputs(arrays={"tokens": tokens[:, 0], "index": batch["index"], "weight": batch["weight"]})

    def assets(self) -> Mapping[str, bytes]:
        names = self.asset_names() if self.data_dir else ()
        return {name: (self.data_dir / name).read_bytes() for name in names}

    @abc.abstractmethod
    def asset_names(self) -> Sequence[str]:
        """Returns the names of the data files that the trained network needs."""

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        """Computes `bleu`; from 0 to 1, or from 0 to 100 in round v0.6."""
        hypotheses = self.translations(arrays)
        texts = _references(self.input.references, self.config, self.data_dir)
        score = self.bleu(texts, hypotheses)
        value = score if self.config.ruleset == "0.6.0" else score / 100
        details = {"bleu": score, "sacrebleu": bleu.sacre(texts, hypotheses)}
        return Quality(value, self.config.met(value), details)

    @abc.abstractmethod
    def bleu(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """Returns the score of the benchmark's rules, from 0 to 100."""

    def translations(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Decodes the translation of every evaluation sentence, in order.

        Raises ValueError if a sentence is missing or duplicated.
        """
        return self.decoded(bleu.in_order(arrays, self.config.num_eval_examples))

    @abc.abstractmethod
    def decoded(self, rows: np.ndarray) -> list[str]:
        """Returns the texts of rows of tokens."""


@functools.lru_cache(maxsize=1)
def _references(read: object, config: object, data_dir: pathlib.Path) -> list[str]:
    return read(config, data_dir)
