"""Tests how weights are cut into blocks; test_sharded_update.py compares the update itself with the whole one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.distributed.block_update import grid


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
    replicas=st.integers(1, 64),
    rows_only=st.booleans(),
)
def test_every_element_belongs_to_one_replica(shape, replicas, rows_only):
    layout = grid(shape, replicas, rows_only)
    owners = np.zeros(shape, int)
    for replica in range(replicas):
        inside, there = layout.slices_of(replica)
        owners[inside] += 1
        sizes = [s.stop - s.start for s in inside]
        assert sizes == [s.stop - s.start for s in there]
        assert all(s.stop <= length for s, length in zip(there, layout.block, strict=True))
    assert (owners == 1).all() and math.prod(layout.counts) == replicas


@pytest.mark.parametrize(
    "shape, block",
    [
        # Two whole tiles of 8 x 128 for each of 2,048 replicas.
        ((1024, 4096), (8, 256)),
        ((4096, 1024), (8, 256)),
        # An attention kernel [features, heads, features of a head]: the padded tile of one feature, cut no further.
        ((1024, 16, 64), (1, 8, 64)),
        # A convolution of whole tiles is cut as the matrix that its rows are, into two tiles that are not full.
        ((3 * 3 * 512, 512), (9, 128)),
        # A vector has fewer elements than there are replicas.
        ((1024,), (1,)),
    ],
)
def test_blocks_take_few_tiles(shape, block):
    assert grid(shape, 2048).block == block


def test_a_table_whose_rows_are_skipped_is_cut_between_rows():
    assert grid((33708, 1024), 2048, rows_only=True).block == (17, 1024)
