"""Configures tf.data without autotuning, which would delay a run; sets parallelism and prefetching by hand."""

import os
from collections.abc import Callable

import tensorflow as tf


def untuned(data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `data` without autotuning, so that deleting its iterators takes no time.

    tf.data tunes parallelism and buffers in a thread that wakes after 10 ms, then 20 ms, and so on up to a minute.
    Deleting an iterator wakes that thread before `IsCancelled` is true (`Model::OptimizeLoop` in
    tensorflow/core/framework/model.cc, `StartCancelWithStatus` in xla/tsl/framework/cancellation.cc), so the thread may
    sleep again. Then the deletion, and with it all of Python, waits as long as the iterator has lived, but at most a
    minute. A run deletes an iterator at each evaluation and at its end.

    Without autotuning, the caller must set `num_parallel_calls` (`parallel_calls`). `prefetch(tf.data.AUTOTUNE)` still
    grows its buffer automatically.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def parallel_calls() -> int:
    """Returns `num_parallel_calls`: the number of threads that all data sets share."""
    return len(os.sched_getaffinity(0))


def prepared(examples: tf.data.Dataset, prepare: Callable) -> tf.data.Dataset:
    """Applies `prepare` to each of the `examples`, on all threads, and keeps their order."""
    return examples.map(prepare, num_parallel_calls=parallel_calls(), deterministic=True)


def ahead(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `batches` in their order, prefetched ahead of the step."""
    options = tf.data.Options()
    options.deterministic = True
    options.threading.max_intra_op_parallelism = 1  # Images run in parallel; the ops of one image need not.
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
