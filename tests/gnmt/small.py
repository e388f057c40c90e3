"""Builds a small GNMT network, and batches for it."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from common.config.optimizer import Adam
from common.config.schedule import Gnmt
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.text.bpe import EOS
from gnmt import model
from gnmt.config import Config, Decode

VOCABULARY = 13


@dataclasses.dataclass(frozen=True)
class Search(Decode):
    beam_size: ClassVar[int] = 3


SMALL = Config(
    division="open", smoke_run=True, precision="fp64", num_train_examples=40, num_eval_examples=5,
    vocabulary_size=VOCABULARY, max_sequence_length=8, bucket_limits=(5, 8), width=6, global_batch_size=3,
    eval_batch_size=3, optimizer=Adam(base_learning_rate=0.01, epsilon=1e-8, clip_replica_norm=5.0),
    schedule=Gnmt(warmup_epochs=0.0, warmup_steps=2.0, decay_start_step=4, decay_interval=2),
    decode=Search(source_length=9, target_length=6),
)  # fmt: skip
PLAIN = SMALL.__class__(**{**vars(SMALL), "dropout": 0.0})


def build(config: Config = PLAIN, name: str = "fp64") -> model.Gnmt:
    """The network with random values in every variable, so that no bias is zero and attention is not uniform."""
    network = model.Gnmt(config, Single(), precision(name))
    rng = np.random.default_rng(1)
    for v in network.trainable_variables:
        v.assign(tf.cast(rng.normal(0, 0.5, v.shape), v.dtype))
    return network


def batch(seed: int = 0, sources=(6, 4, 2), targets=(5, 3, 7)) -> dict[str, np.ndarray]:
    """A batch of sentence pairs with these numbers of tokens."""
    rng = np.random.default_rng(seed)

    def sentences(lengths):
        out = np.zeros([len(lengths), max(lengths)], np.int32)
        for row, length in zip(out, lengths):
            row[:length] = [*rng.integers(3, VOCABULARY, length - 1), EOS]
        return out

    return {
        "source": sentences(sources),
        "source_length": np.array(sources, np.int32),
        "target": sentences(targets),
        "target_length": np.array(targets, np.int32),
        "weight": np.ones(len(sources), np.float32),
        "index": np.arange(len(sources), dtype=np.int32),
    }


def tensors(batch_: dict[str, np.ndarray]) -> list[tf.Tensor]:
    return [tf.constant(batch_[name]) for name in model.INPUTS]
