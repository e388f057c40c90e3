"""Configures tf.data: no autotuning, for which a run would wait; parallelism and prefetching set by hand."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf


def untuned(data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `data` without autotuning, so that deleting its iterators takes no time.

    tf.data tunes parallelism and buffers in a thread that wakes after 10 ms, then 20 ms, and so on up to a minute.
    Deleting an iterator wakes that thread before `IsCancelled` is true (`Model::OptimizeLoop` in
    tensorflow/core/framework/model.cc, `StartCancelWithStatus` in xla/tsl/framework/cancellation.cc), so the thread may
    sleep again. The deletion, and all of Python with it, then waits as long as the iterator has lived, or a minute. A
    run deletes an iterator at each evaluation and at its end.

    Without autotuning, `num_parallel_calls` must be given (`parallel_calls`). `prefetch(tf.data.AUTOTUNE)` still grows
    its buffer by itself.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def parallel_calls(private_threads: int = 0) -> int:
    """Returns `num_parallel_calls`: the pipeline's private threads or, if 0, those that all data sets share."""
    return private_threads or len(os.sched_getaffinity(0))


def prepared(
    examples: tf.data.Dataset, prepare: Callable, private_threads: int, deterministic: bool = True
) -> tf.data.Dataset:
    """`examples` with `prepare` applied to each, on all threads."""
    return examples.map(
        prepare, num_parallel_calls=parallel_calls(private_threads), deterministic=deterministic
    )


def ahead(batches: tf.data.Dataset, deterministic: bool, private_threads: int) -> tf.data.Dataset:
    """Returns `batches`, prefetched ahead of the step.

    Args:
      batches: the batches.
      deterministic: False lets the pipeline overtake a slow element.
      private_threads: threads of this pipeline; 0 uses those that all data sets share.
    """
    options = tf.data.Options()
    options.deterministic = deterministic
    options.threading.max_intra_op_parallelism = 1  # Images run in parallel, the ops of one need not.
    if private_threads:
        options.threading.private_threadpool_size = private_threads
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
