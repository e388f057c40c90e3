"""Tests that tf.data autotunes none of the data sets that a run reads, and that their parallelism is explicit."""

import os

import tensorflow as tf

from common.data import pipeline
from common.distributed import replicas as backends
from common.train.loop import Loop
from tests.common.train import toy


def test_data_sets_that_a_run_reads_are_not_autotuned(monkeypatch):
    config = toy.config()
    replicas = backends.make(config)
    read, dataset = [], replicas.dataset

    def seen(make):
        def kept(shard):
            read.append(make(shard))
            return read[-1]

        return dataset(kept)

    monkeypatch.setattr(replicas, "dataset", seen)
    loop = Loop(toy.Task(config), replicas)
    for use in (loop.compile, lambda: list(loop.run()), loop.evaluate, loop.one_step):
        read.clear()
        use()
        assert read and all(data.options().autotune.enabled is False for data in read)


def test_disabling_autotune_keeps_elements_and_other_options():
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    data = pipeline.untuned(tf.data.Dataset.range(5).with_options(options))
    assert list(data.as_numpy_iterator()) == [0, 1, 2, 3, 4]
    assert data.options().deterministic is False and data.options().threading.private_threadpool_size == 3


def test_parallel_calls_default_to_the_available_cores():
    assert pipeline.parallel_calls(48) == 48
    assert pipeline.parallel_calls() == len(os.sched_getaffinity(0))
