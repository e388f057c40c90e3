"""Streams TFRecords: assigns records to shards and orders them reproducibly.

Every record carries its identity, (file number, record number), through the stream. Augmentation uses it as a key, and
errors can name it. A stream is a pure function of the seed, with or without a cache, and can start at any record.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from common.data.record_counts import counts
from common.data.tfrecords import READ_AHEAD
from common.distributed.replicas.base import Shard
from common.errors import UserError

# Number of files read in turns. The TPU reference reads 64 (G6 resnet/imagenet_input.py), which exceeds a replica's
# share of files.
_CYCLE = 16
# Maximum number of file groups. Each epoch permutes groups, not files; each group costs start-up time.
_GROUPS = 128
_LAST_EPOCH = 2**62

Transform = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], object]


@dataclasses.dataclass(frozen=True)
class Part:
    """The records r of file number `file` with r % stride == offset."""

    file: int
    stride: int = 1
    offset: int = 0

    def size(self, records: int) -> int:
        """Returns the number of this part's records in a file of `records` records."""
        return max(0, -(-(records - self.offset) // self.stride))


def assign(num_files: int, shard: Shard) -> list[Part]:
    """Returns the parts that `shard` reads: whole files, equally many per shard, and a share of the leftover files.

    The parts of all shards are disjoint and cover every record. They are equally large if the files are. There are
    fewer leftover files than shards, so several shards read each leftover file, as few as the numbers allow. Each of
    the n shards that read a file keeps every n-th record.
    """
    whole = num_files - num_files % shard.count
    shares = [Part(file) for file in range(shard.index, whole, shard.count)]
    groups = math.gcd(num_files - whole, shard.count)
    sharing, group, member = shard.count // groups, shard.index % groups, shard.index // groups
    for file in range(whole + group, num_files, groups):
        shares.append(Part(file, sharing, (member + file) % sharing))
    return shares


def size(files: Sequence[str], shard: Shard) -> int:
    """Returns the number of records in one pass of `shard` over the files."""
    numbers = counts(files)
    return sum(part.size(numbers[part.file]) for part in assign(len(files), shard))


def endless(
    files: Sequence[str],
    shard: Shard,
    seed: int,
    shuffle_buffer: int,
    start: int = 0,
    transform: Transform | None = None,
    cache: bool = False,
) -> tf.data.Dataset:
    """Returns this shard's records endlessly, epoch after epoch, in an order that depends only on seed and epoch.

    Each epoch permutes the files (groups of files if there are more than 128), reads them in turns, and shuffles their
    records through a buffer. Raises UserError if this shard has no record.

    Args:
      files: all files, of which this shard reads its part.
      shard: see `assign`.
      seed: determines the order.
      shuffle_buffer: size of the buffer, in records.
      start: records to skip. Skipping whole epochs reads at most record headers; the rest is read and dropped.
      transform: (file, record, serialized) -> any nest, applied before the cache; None keeps the serialized record.
      cache: whether to keep transformed records in memory; this does not change the order.

    Returns:
      Dataset of (epoch int64, file int64, record int64, transformed).
    """
    source = _source(files, shard, transform, cache)
    first_epoch, skip = 0, 0
    # An endless stream without records would block forever.
    per_epoch = size(files, shard) if start else sum(1 for _ in once(files, shard).take(1))
    if not per_epoch:
        raise UserError(
            f"{files[0]} and the like: no record for process {shard.index} of {shard.count}; use fewer processes"
        )
    if start:
        first_epoch, skip = divmod(start, per_epoch)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        # This sets the seed of this traced function only, so that the order does not depend on the caller's global
        # seed. It is not 0, because tf.data would then compare the seed tensor below with a Python number, which fails
        # in a graph.
        tf.random.set_seed(1)
        key = tf.stack([tf.constant(seed % 2**63, tf.int64), epoch])
        groups = tf.range(source.groups, dtype=tf.int64)
        order = tf.random.experimental.stateless_shuffle(groups, key, alg="philox")
        records = _interleave(tf.data.Dataset.from_tensor_slices(order), source)
        if shuffle_buffer > 1:
            draw = tf.random.stateless_uniform([], key, maxval=2**31 - 1, dtype=tf.int64, alg="philox")
            records = records.shuffle(shuffle_buffer, seed=draw, reshuffle_each_iteration=False)
        return records.map(lambda file, record, value: (epoch, file, record, value))

    def epochs(first: int, last: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(first, last).flat_map(one_epoch)

    if not skip:
        return epochs(first_epoch, _LAST_EPOCH)
    rest = epochs(first_epoch, first_epoch + 1).skip(skip)
    return rest.concatenate(epochs(first_epoch + 1, _LAST_EPOCH))


def once(
    files: Sequence[str], shard: Shard, transform: Transform | None = None, cache: bool = False
) -> tf.data.Dataset:
    """Returns one pass over this shard's records in a fixed order, as a dataset of (file, record, transformed)."""
    source = _source(files, shard, transform, cache)
    return _interleave(tf.data.Dataset.range(source.groups), source)


class _Source(NamedTuple):
    """Groups of files; `open(i)` is group i's dataset of (file, record, transformed), i < groups."""

    groups: int
    open: Callable[[tf.Tensor], tf.data.Dataset]


def _source(files: Sequence[str], shard: Shard, transform: Transform | None, cache: bool) -> _Source:
    shares = assign(len(files), shard)
    paths = tf.constant([files[part.file] for part in shares])
    numbers, strides, offsets = (
        tf.constant([getattr(part, field) for part in shares], tf.int64)
        for field in ("file", "stride", "offset")
    )

    def read_part(i: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(paths[i], buffer_size=READ_AHEAD).enumerate()
        if any(part.stride > 1 for part in shares):
            records = records.shard(strides[i], offsets[i])
        if transform is None:
            return records.map(lambda record, value: (numbers[i], record, value))
        return records.map(lambda record, value: (numbers[i], record, transform(numbers[i], record, value)))

    groups = min(len(shares), _GROUPS)

    def read_group(i: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(i, len(shares), groups).flat_map(read_part)

    if not cache:
        return _Source(groups, read_group)
    structure = []

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])  # Traced once, not once per group.
    def variant_of(i: tf.Tensor) -> tf.Tensor:
        group = read_group(i)
        structure.append(group.element_spec)
        return tf.data.experimental.to_variant(group)

    # A cache lives as long as its dataset and must outlast an epoch. So this keeps one dataset per group and picks it
    # by number.
    variants = []
    for i in range(groups):
        variant = variant_of(i)
        cached = tf.data.experimental.from_variant(variant, structure[0]).cache()
        variants.append(tf.data.experimental.to_variant(cached))
    variants = tf.stack(variants)
    return _Source(groups, lambda i: tf.data.experimental.from_variant(tf.gather(variants, i), structure[0]))


def _interleave(order: tf.data.Dataset, source: _Source) -> tf.data.Dataset:
    cycle = min(_CYCLE, source.groups)
    return order.interleave(source.open, cycle, num_parallel_calls=cycle, deterministic=True)
