"""How input pipelines end and how many threads they have: tf.data without its tuning, for which a run would wait."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf


def untuned(data: tf.data.Dataset) -> tf.data.Dataset:
    """`data` whose iterators are dropped at once.

    tf.data tunes parallelism and buffers in a thread that looks every 10 ms, then every 20, and so on up to a minute.
    Dropping an iterator wakes that thread before `IsCancelled` says what for (`Model::OptimizeLoop` in
    tensorflow/core/framework/model.cc, `StartCancelWithStatus` in xla/tsl/framework/cancellation.cc), so that it may
    sleep on; whoever drops waits for it, as long as the iterator has lived or a minute, and all of Python with it. A
    run drops one at each evaluation and one at its end.

    What is not tuned is to be said: `parallel_calls`. `prefetch(tf.data.AUTOTUNE)` grows its buffer by itself.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def parallel_calls(private_threads: int = 0) -> int:
    """For `num_parallel_calls`: as many as there are threads, 0 private ones being those of all data sets."""
    return private_threads or len(os.sched_getaffinity(0))


def prepared(
    examples: tf.data.Dataset, prepare: Callable, private_threads: int, deterministic: bool = True
) -> tf.data.Dataset:
    """`examples` with `prepare` applied to each, on all threads."""
    return examples.map(
        prepare, num_parallel_calls=parallel_calls(private_threads), deterministic=deterministic
    )


def ahead(batches: tf.data.Dataset, deterministic: bool, private_threads: int) -> tf.data.Dataset:
    """The batches, made ahead of the step by threads of their own; 0 private threads: by those of all data sets."""
    options = tf.data.Options()
    options.deterministic = deterministic
    options.threading.max_intra_op_parallelism = 1  # Images run in parallel; their ops need not.
    if private_threads:
        options.threading.private_threadpool_size = private_threads
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
