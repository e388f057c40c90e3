"""Keras `fit` as a contender: an epoch of the steps asked for, and nothing else in its time."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras

from common.data import pipeline


def set_policy(precision: str) -> None:
    """Keras's global policy for "fp32" or "bf16"."""
    tf_keras.mixed_precision.set_global_policy({"fp32": "float32", "bf16": "mixed_bfloat16"}[precision])


def fit(model: tf_keras.Model, data: tf.data.Dataset) -> Callable[[int], float]:
    """Trains so many steps a call and gives the last loss.

    Every call makes an iterator and drops it: tuned, it would take 1.27, 2.55, 5.11 or 10.23 seconds, whichever comes
    next (`common/data/pipeline.py`). Data that is ready in memory needs no tuning.
    """
    ready = pipeline.untuned(data)
    return lambda steps: model.fit(ready, steps_per_epoch=steps, verbose=0).history["loss"][-1]
