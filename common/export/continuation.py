"""Continues texts token by token: the network scores the next token, and the host chooses it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from common.train.serving import Codec


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
      tokens: number of tokens to add.
      temperature: divides the logarithms of the probabilities before a token is drawn; 0 takes the most probable token.
      seed: seed of the draws. A text's draws depend on the seed and on the text, not on the other texts.
    """

    tokens: int = 64
    temperature: float = 0.0
    seed: int = 0


GREEDY = Sampling()


def continued(
    network: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    codec: Codec,
    texts: Sequence[str],
    sampling: Sampling,
) -> list[dict[str, Any]]:
    """Returns {"continuation": text} of each text, or {"error": line} of a text without tokens.

    Args:
      network: maps tokens int32 [b, codec.length], -1 after each text, to `scores` [b, vocabulary] of the next
        token; it sees the last tokens of a longer text.
      codec: makes tokens of a text and text of tokens.
      texts: what to continue.
      sampling: how the next token is chosen.
    """
    rows = [list(codec.encode(text)) for text in texts]
    starts = [len(row) for row in rows]
    live = [i for i, row in enumerate(rows) if row]
    draws = {i: np.random.default_rng([sampling.seed, zlib.crc32(texts[i].encode())]) for i in live}
    for _ in range(sampling.tokens if live else 0):
        batch = np.full([len(live), codec.length], -1, np.int32)
        for line, i in zip(batch, live):
            context = rows[i][-codec.length :]
            line[: len(context)] = context
        for i, scores in zip(live, network(batch)["scores"]):
            rows[i].append(_sample(scores, sampling.temperature, draws[i]))
    ends = [codec.decode(row[start:]) for row, start in zip(rows, starts)]
    return [
        {"continuation": end} if row else {"error": "the text has no token; write some"}
        for row, end in zip(rows, ends)
    ]


def _sample(scores: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Returns a token drawn with probabilities in proportion to exp(scores / temperature), by Gumbel's method."""
    if temperature > 0:
        scores = scores.astype(np.float64) / temperature + rng.gumbel(size=scores.shape)
    return int(np.argmax(scores))
