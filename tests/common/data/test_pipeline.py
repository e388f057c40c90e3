"""Tests parts of input pipelines: no autotuning, padded evaluation that counts each example once, normalized pixels."""

import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import images, padding, pipeline
from common.distributed import replicas as backends
from common.train.probe import Probe
from common.train.programs import Programs
from tests.common.train import toy
from tests.common.train.loops import run


def test_data_sets_that_a_run_reads_are_not_autotuned(monkeypatch):
    config = toy.config()
    replicas = backends.make(config)
    read, dataset = [], replicas.dataset

    def record_make(make):
        def make_and_keep(shard):
            read.append(make(shard))
            return read[-1]

        return dataset(make_and_keep)

    monkeypatch.setattr(replicas, "dataset", record_make)
    loop = Programs(toy.Task(config), replicas)
    probe = Probe(loop)
    for use in (loop.compile, lambda: run(loop), probe.evaluate, probe.one_step):
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


def test_parallel_calls_are_the_available_cores():
    assert pipeline.parallel_calls() == len(os.sched_getaffinity(0))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.integers(1, 16), st.integers(1, 6))
def test_each_example_counts_once(examples, batch_size, replicas):
    shards = [list(range(i, examples, replicas)) for i in range(replicas)]
    batches = padding.num_batches([len(shard) for shard in shards], batch_size)
    labels, total = [], 0.0
    for shard in shards:
        dataset = tf.data.Dataset.from_tensor_slices({"label": tf.constant(shard, tf.int32)})
        padded = list(padding.pad(dataset, {"label": -1}, batch_size, batches).as_numpy_iterator())
        assert len(padded) == batches
        for batch in padded:
            assert batch["label"].shape == batch["weight"].shape == (batch_size,)
            assert ((batch["label"] >= 0) == (batch["weight"] == 1)).all()
            assert ((batch["label"] == -1) == (batch["weight"] == 0)).all()
            labels += batch["label"][batch["weight"] == 1].tolist()
            total += float(batch["weight"].sum())
    assert sorted(labels) == list(range(examples))
    assert total == examples


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 4096))
def test_batches_are_enough_and_no_more(sizes, batch_size):
    batches = padding.num_batches(sizes, batch_size)
    assert batches * batch_size >= max(sizes)
    assert batches == 1 or (batches - 1) * batch_size < max(sizes)


def test_padding_must_have_the_examples_keys():
    dataset = tf.data.Dataset.from_tensor_slices({"label": [1], "image": [[1.0]]})
    with pytest.raises(KeyError, match="image"):
        padding.pad(dataset, {"label": -1}, 2, 1)


@pytest.mark.parametrize("repeats", [1, 2])
def test_pixels_lose_the_mean_and_are_divided_by_the_deviation(repeats: int) -> None:
    """Beside the numbers that torchvision's documentation gives for ImageNet."""
    pixels = np.random.default_rng(0).integers(0, 256, [2, 3, 3 * repeats], np.uint8)
    mean, deviation = (np.tile(x, repeats) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = (pixels / 255.0 - mean) / deviation
    for dtype, tolerance in ((tf.float64, 1e-12), (tf.bfloat16, 1e-5)):
        normalized = images.normalize_rgb(tf.constant(pixels), dtype, repeats)
        assert normalized.dtype == (tf.float64 if dtype == tf.float64 else tf.float32)
        np.testing.assert_allclose(normalized, expected, rtol=tolerance, atol=tolerance)
