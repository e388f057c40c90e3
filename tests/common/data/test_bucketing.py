"""Tests bucketed batches: every example once, one bucket per step on all replicas, little padding."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from common.data.bucketing import Buckets, least_padding
from common.distributed.replicas.base import Shard
from common.errors import UserError

LIMITS = [10, 20, 30, 40, 48]


def random_lengths(count: int, seed: int = 0) -> np.ndarray:
    """Draws lengths distributed like those of sentences."""
    return np.clip(np.random.default_rng(seed).gamma(4, 5, count), 1, 48).astype(int)


@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 5), st.integers(0, 3))
def test_every_example_comes_once_in_the_fewest_steps(count, batch, seed, epoch):
    buckets = Buckets(random_lengths(count, seed), LIMITS)
    plan = buckets.epoch(seed, epoch, batch)
    assert plan.steps == buckets.steps_per_epoch(batch) == -(-count // batch)
    real = plan.examples[plan.examples >= 0]
    np.testing.assert_array_equal(np.sort(real), np.arange(count))
    assert (plan.examples < 0).sum() == plan.steps * batch - count


@given(st.integers(1, 300), st.sampled_from([1, 2, 4]), st.integers(1, 10), st.integers(0, 5))
def test_no_example_is_longer_than_its_bucket(count, shards, part, seed):
    buckets = Buckets(random_lengths(count, seed), LIMITS)
    plan = buckets.epoch(seed, 0, shards * part)
    for bucket, examples in zip(plan.buckets, plan.examples):
        lengths = buckets.lengths[examples[examples >= 0]]
        assert lengths.max() <= buckets.limits[bucket]
        assert bucket == 0 or lengths.max() > buckets.limits[bucket - 1]


@given(st.integers(1, 300), st.sampled_from([1, 2, 4]), st.integers(1, 10), st.integers(0, 5))
def test_shards_form_the_global_batch_without_communication(count, shards, part, seed):
    """Each host makes its own plan; in a step all use the same bucket, and their parts make up the global batch."""
    lengths = random_lengths(count, seed)
    whole = Buckets(lengths, LIMITS).epoch(seed, 1, shards * part)
    epochs = [
        Buckets(lengths, LIMITS).epoch(seed, 1, shards * part).shard(Shard(i, shards)) for i in range(shards)
    ]
    for one in epochs:
        np.testing.assert_array_equal(one.buckets, whole.buckets)
    np.testing.assert_array_equal(np.concatenate([p.examples for p in epochs], axis=1), whole.examples)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(0, 60))
def test_a_stream_entered_at_any_step_equals_the_whole_one_from_there(count, batch, start):
    buckets, shard = Buckets(random_lengths(count), LIMITS), Shard(0, 1)
    whole = buckets.ahead(7, batch, shard, 0, start + 10)
    later = buckets.ahead(7, batch, shard, start, start + 10)
    for one, other in zip(whole, later, strict=True):
        np.testing.assert_array_equal(one[start:], other)
    plan = buckets.epoch(7, 0, batch)
    count = min(plan.steps, start + 10)
    np.testing.assert_array_equal(whole[0][:count], buckets.limits[plan.buckets[:count]])
    np.testing.assert_array_equal(whole[1][:count], plan.examples[:count])


def test_seeds_and_epochs_differ():
    buckets = Buckets(random_lengths(500), LIMITS)
    plans = [buckets.epoch(s, e, 16).examples for s, e in ((0, 0), (0, 1), (1, 0))]
    assert not (plans[0] == plans[1]).all() and not (plans[0] == plans[2]).all()
    np.testing.assert_array_equal(plans[0], buckets.epoch(0, 0, 16).examples)


def test_each_bucket_is_a_plain_queue():
    """The plan equals the plain form: a queue per bucket over the shuffled examples."""
    buckets = Buckets(random_lengths(1000), LIMITS)
    plan = buckets.epoch(3, 2, 32)
    queues, expected = {b: [] for b in range(len(LIMITS))}, []
    for example in np.random.default_rng([3, 2]).permutation(1000):
        queue = queues[buckets.of[example]]
        queue.append(example)
        if len(queue) == 32:
            expected.append((buckets.of[example], list(queue)))
            queue.clear()
    for (bucket, examples), actual_bucket, actual in zip(expected, plan.buckets, plan.examples):
        assert bucket == actual_bucket and list(actual) == examples


def padding_shares(lengths: np.ndarray, limits: list[int], batch: int, replicas: int):
    """Padding shares: our plan; random batches padded to their longest example, or to the longest on any replica."""
    buckets = Buckets(lengths, limits)
    plan = buckets.epoch(0, 0, batch)
    computed = (buckets.limits[plan.buckets] * plan.examples.shape[1]).sum()
    ours = 1 - lengths[plan.examples[plan.examples >= 0]].sum() / computed
    order = np.random.default_rng(0).permutation(len(lengths))
    rows = lengths[order[: len(order) // batch * batch]].reshape(-1, batch)
    return ours, 1 - rows.sum() / (rows.max(1).sum() * batch)


def test_padding_is_a_third_or_less_of_unbucketed():
    lengths = random_lengths(20_000)
    ours, unbucketed = padding_shares(lengths, list(range(4, 49, 4)), 64, 4)
    assert unbucketed / ours > 3


def test_padding_against_tf_data():
    """tf.data's bucketing per replica pads as little, but the replicas of a step have different buckets."""
    lengths, replicas, batch = random_lengths(4000), 4, 16
    limits = [8, 16, 24, 32, 40, 48]

    def stream(replica):
        mine = tf.data.Dataset.from_tensor_slices(lengths[replica::replicas]).shuffle(4000, seed=replica)
        grouped = mine.map(lambda n: tf.ones([n])).bucket_by_sequence_length(
            tf.size, [n + 1 for n in limits[:-1]], [batch] * len(limits), drop_remainder=True
        )
        return [x.shape[1] for x in grouped.as_numpy_iterator()]

    theirs = [stream(r) for r in range(replicas)]
    steps = min(map(len, theirs))
    waits = np.array([t[:steps] for t in theirs])
    imbalance = (waits.max(0) - waits.min(0)).mean() / waits.mean()
    assert imbalance > 0.3  # Replicas wait for the one with the longest bucket.
    plan = Buckets(lengths, limits).epoch(0, 0, batch * replicas)
    lengths_of = [limits[b] for b in plan.buckets]
    assert all(
        plan.shard(Shard(r, replicas)).buckets.tolist() == plan.buckets.tolist() for r in range(replicas)
    )
    assert np.mean(lengths_of) <= waits.max(0).mean()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 5))
def test_no_other_limits_pad_less(lengths, count):
    """Beside every choice of limits."""

    def tokens(limits):
        return sum(min(limit for limit in limits if limit >= length) for length in lengths)

    actual = least_padding(np.array(lengths), count)
    sizes = sorted(set(lengths))
    every = itertools.combinations(sizes[:-1], min(count, len(sizes)) - 1)
    assert actual == sorted(set(actual)) and len(actual) <= count and actual[-1] == max(lengths)
    assert tokens(actual) == min(tokens([*some, sizes[-1]]) for some in every)


def test_a_single_short_example_counts():
    assert least_padding(np.array([1, *[10] * 5, 11]), 2) == [1, 11]
    assert least_padding(np.array([1, *[10] * 10, 11]), 2) == [10, 11]


@pytest.mark.parametrize(
    ("lengths", "limits", "message"),
    [
        ([3, 60], [10, 50], "example 1 has 60 tokens, the last bucket takes 50"),
        ([3], [10, 10], "must be positive and ascend"),
        ([], [10], "no examples to bucket"),
    ],
)
def test_bad_input_is_one_line(lengths, limits, message):
    with pytest.raises(UserError, match=message):
        Buckets(np.array(lengths, int), limits)


def test_a_batch_that_does_not_divide_is_one_line():
    with pytest.raises(UserError, match="a global batch of 6 does not divide into 4 shards"):
        Buckets(np.array([1, 2]), [5]).epoch(0, 0, 6).shard(Shard(0, 4))
