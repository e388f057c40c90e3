"""Defines what Transformer and GNMT share of an evaluation: its text, the outputs, BLEU of the translations."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from common.errors import UserError
from common.text import bleu, parallel
from common.train import task
from common.train.task import Batch, Outputs, Quality


class Task(task.Task):
    """A translation; a worker process scores it."""

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
        texts = read_references(self.config, self.data_dir)
        score = self.bleu(texts, hypotheses)
        value = score if self.config.ruleset == "0.6.0" else score / 100
        details = {"bleu": score, "sacrebleu": bleu.sacre(texts, hypotheses)}
        return Quality(value, self.config.meets_target(value), details)

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
def read_references(config: Any, data_dir: Path) -> list[str]:
    """Reads the reference translations, in order."""
    return [target for _, target in _pairs(config, data_dir)]


def _pairs(config: Any, data_dir: Path) -> Iterator[parallel.Pair]:
    return parallel.read_pairs(data_dir / config.data.eval_source, data_dir / config.data.eval_reference)


def sentences(config: Any, data_dir: Path, encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Encodes the sentences to evaluate on, in order.

    Raises UserError if a file is bad, or a sentence is longer than `decode.source_length`; evaluation drops nothing.
    """
    rows, longest = [encode(source) for source, _ in _pairs(config, data_dir)], config.decode.source_length
    for line, tokens in enumerate(rows, 1):
        if len(tokens) > longest:
            raise UserError(
                f"{data_dir / config.data.eval_source}: line {line} has {len(tokens)} tokens, more than "
                f"config.decode.source_length={longest}; raise it, evaluation leaves nothing out"
            )
    return rows


def check_count(config: Any, data_dir: Path, count: int) -> None:
    """Raises UserError if `count`, of the sentences to evaluate on, differs from the configuration's."""
    if count != config.num_eval_examples:
        raise UserError(
            f"{data_dir / config.data.eval_source} has {count} lines, config.num_eval_examples is "
            f"{config.num_eval_examples}; give --config.num_eval_examples={count}, or other data"
        )
