"""A small text in Megatron's format, and a configuration that fits it, for the tests of llama31_8b."""

import dataclasses
import pathlib

import numpy as np

from llama31_8b import indexed, order
from llama31_8b.config import Config, Data

DATA = Data(train_prefix="train", eval_prefix="valid")


def write(folder: pathlib.Path, vocab_size: int = 50, length: int = 8) -> Config:
    """Writes train and valid into `folder`; returns a configuration of 4 windows a step, 5 an evaluation."""
    rng, counts = np.random.default_rng(5), {}
    for name, count in (("train", 60), ("valid", 12)):
        documents = [rng.integers(0, vocab_size, rng.integers(1, 15)) for _ in range(count)]
        tokens = indexed.write(folder / name, documents, indexed.dtype_for(vocab_size))
        counts[name] = order.window_count(tokens, length)
    return dataclasses.replace(
        Config(data=DATA, division="open", smoke_run=True, vocab_size=vocab_size, sequence_length=length),
        num_train_examples=counts["train"],
        num_eval_examples=5,
        global_batch_size=4,
        eval_batch_size=4,
        train_steps=40,
        steps_per_block=10,
    )


def documents(folder: pathlib.Path, name: str) -> list[np.ndarray]:
    """Returns the documents of a data set, its tokens read by numpy alone."""
    lengths = indexed.read_index(folder / name).lengths
    return np.split(np.fromfile(folder / f"{name}.bin", np.uint16), np.cumsum(lengths)[:-1])
