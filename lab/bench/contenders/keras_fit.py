"""Keras `fit` as a contender: one epoch of N steps, and nothing else in the measured time."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras

from common.data import pipeline


def set_policy(precision: str) -> None:
    """Sets Keras's global policy for "fp32" or "bf16"."""
    tf_keras.mixed_precision.set_global_policy({"fp32": "float32", "bf16": "mixed_bfloat16"}[precision])


def fit(model: tf_keras.Model, data: tf.data.Dataset) -> Callable[[int], float]:
    """Returns a function that trains N steps and returns the last loss.

    Every call makes an iterator and drops it. With autotuning a call would take 1.27, 2.55, 5.11 or 10.23 seconds,
    whichever comes next (`common/data/pipeline.py`). The data is ready in memory and needs no tuning.
    """
    ready = pipeline.untuned(data)
    return lambda steps: model.fit(ready, steps_per_epoch=steps, verbose=0).history["loss"][-1]
