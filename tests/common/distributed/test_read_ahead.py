"""Tests the thread that reads ahead: order, bound, errors and ends as without it; it ends with its reader."""

import gc
import itertools
import threading
import time

import pytest

from common.distributed.read_ahead import ReadAhead
from tests.benchmarks import wait_for


def threads():
    return [t for t in threading.enumerate() if t.name == "read ahead"]


def test_the_items_are_those_of_the_iterator_in_order():
    assert list(ReadAhead(iter(range(100)), 3)) == list(range(100))
    assert list(ReadAhead(iter(()), 1)) == []


@pytest.mark.parametrize("depth", [1, 3])
def test_so_many_items_are_made_before_they_are_asked_for(depth):
    produced = []
    items = ReadAhead((produced.append(i) or i for i in itertools.count()), depth)
    time.sleep(0.05)
    assert not produced  # Nothing before the first is asked for.
    for count in range(1, 5):
        assert next(items) == count - 1
        wait_for(lambda count=count: len(produced) == count + depth)
        time.sleep(0.05)
        assert len(produced) == count + depth


def test_an_error_comes_where_its_item_would_and_again():
    def items():
        yield 1
        raise ValueError("damaged")

    ahead = ReadAhead(items(), 4)
    assert next(ahead) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            next(ahead)


def test_the_end_stays_the_end():
    ahead = ReadAhead(iter([7]), 2)
    assert [next(ahead, None) for _ in range(3)] == [7, None, None]


def test_the_thread_ends_with_its_reader_whether_it_waits_or_works():
    def slow():
        while True:
            time.sleep(0.05)
            yield 0

    before = threads()
    for items in (itertools.count(), slow()):
        ahead = ReadAhead(items, 2)
        next(ahead)
        assert len(threads()) == len(before) + 1
        del ahead
        gc.collect()
        wait_for(lambda: threads() == before)
