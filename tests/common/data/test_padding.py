"""Tests padded evaluation: each example counts once, and every replica gets equally many batches."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import padding


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.integers(1, 16), st.integers(1, 6))
def test_each_example_counts_once(examples, batch_size, replicas):
    shards = [list(range(i, examples, replicas)) for i in range(replicas)]
    batches = padding.num_batches([len(shard) for shard in shards], batch_size)
    seen, total = [], 0.0
    for shard in shards:
        dataset = tf.data.Dataset.from_tensor_slices({"label": tf.constant(shard, tf.int32)})
        padded = list(padding.pad(dataset, {"label": -1}, batch_size, batches).as_numpy_iterator())
        assert len(padded) == batches
        for batch in padded:
            assert batch["label"].shape == batch["weight"].shape == (batch_size,)
            assert ((batch["label"] >= 0) == (batch["weight"] == 1)).all()
            assert ((batch["label"] == -1) == (batch["weight"] == 0)).all()
            seen += batch["label"][batch["weight"] == 1].tolist()
            total += float(batch["weight"].sum())
    assert sorted(seen) == list(range(examples))
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
