"""Builds a small Transformer, and packed batches for it."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from transformer import model
from transformer.config import Config, Decode
from transformer.presets import PRESETS

PACKED, VOCABULARY = 24, 30


@dataclasses.dataclass(frozen=True)
class Search(Decode):
    beam_size: ClassVar[int] = 3


SMALL = dataclasses.replace(
    PRESETS["cpu-tiny"], vocabulary_size=VOCABULARY, packed_length=PACKED, layers=2, width=16, hidden=32,
    heads=2, global_batch_size=2, decode=Search(source_length=10, extra_length=4),
)  # fmt: skip
PLAIN = dataclasses.replace(SMALL, residual_dropout=0.0, attention_dropout=0.0, relu_dropout=0.0)


def build(config: Config = PLAIN, name: str = "fp64") -> model.Transformer:
    """The network with random biases and norms, so that each affects the output."""
    network = model.Transformer(config, Single(), precision(name))
    rng = np.random.default_rng(1)
    for v in network.trainable_variables:
        if len(v.shape) == 1:
            v.assign(v + rng.normal(0, 0.3, v.shape))
    return network


def sentence(rng: np.random.Generator, length: int) -> list[int]:
    """`length` tokens, the last of which is EOS."""
    return [*rng.integers(2, VOCABULARY, length - 1).tolist(), model.EOS]


# (source, target) lengths of the sentence pairs in each row.
LENGTHS = [[(5, 7), (8, 3), (6, 9)], [(10, 12), (4, 4)]]


def pairs(seed: int = 0) -> list[list[tuple[list[int], list[int]]]]:
    rng = np.random.default_rng(seed)
    return [[(sentence(rng, s), sentence(rng, t)) for s, t in row] for row in LENGTHS]


def packed(rows: list, length: int = PACKED) -> list[tf.Tensor]:
    """The six inputs of rows of sentence pairs."""
    arrays = np.zeros([6, len(rows), length], np.int32)
    for i, row in enumerate(rows):
        for side in (0, 1):
            at = 0
            for number, pair in enumerate(row, 1):
                n = len(pair[side])
                arrays[3 * side, i, at : at + n] = pair[side]
                arrays[3 * side + 1, i, at : at + n] = number
                arrays[3 * side + 2, i, at : at + n] = range(n)
                at += n
    return [tf.constant(a) for a in arrays]


def distance(a, b) -> float:
    return float(np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b))
