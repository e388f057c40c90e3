"""Sorts an evaluation's translations into the order of the sentences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def in_order(arrays: Mapping[str, np.ndarray], expected: int) -> np.ndarray:
    """Returns the tokens of every evaluation sentence, [expected, n], in the order of the sentences.

    Args:
      arrays: an evaluation's "tokens" [N, n], "index" [N] (sentence number) and "weight" [N] (0 for padding).
      expected: config.num_eval_examples.

    Raises:
      ValueError: a sentence is missing or repeated.
    """
    real = arrays["weight"] > 0
    index, tokens = arrays["index"][real], arrays["tokens"][real]
    if not np.array_equal(np.sort(index), np.arange(expected)):
        raise ValueError(
            f"{len(index)} translations of {len(set(index.tolist()))} sentences, {expected} expected "
            "(config.num_eval_examples)"
        )
    return tokens[np.argsort(index)]
