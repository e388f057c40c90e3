"""Tests that a converter whose worker process is killed ends with one line."""

import os

import pytest

from common.data import conversion
from common.errors import UserError
from common.text import conversion as text


def die(number: int) -> int:
    if number == 2:
        os._exit(9)
    return number


def test_a_killed_worker_of_shards_is_one_line() -> None:
    assert sorted(conversion.write_shards(die, [(0,), (1,)], 2)) == [0, 1]
    with pytest.raises(UserError, match="a worker process died; is there enough memory"):
        conversion.write_shards(die, [(0,), (1,), (2,)], 2)


def test_a_killed_worker_of_sentences_is_one_line() -> None:
    with text.pool(2) as spread:
        assert list(spread(die, [0, 1, 3])) == [0, 1, 3]
        with pytest.raises(UserError, match="a worker process died; is there enough memory"):
            list(spread(die, [0, 1, 2]))
