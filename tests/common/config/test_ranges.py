"""Tests the checks of a configuration's fields at their bounds."""

import dataclasses
import math

import pytest

from common.config import ranges
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Data:
    boxes: int = 1
    cache: str = "none"


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 2
    dropout: float = 0.0
    data: Data = Data()


def test_values_in_range_pass():
    ranges.at_least(Config(), 2, "width")
    ranges.at_least(Config(), 1, "width", "data.boxes")
    ranges.fraction(Config(), "dropout")
    ranges.fraction(Config(dropout=0.999), "dropout")
    ranges.one_of(Config(), "data.cache", ("none", "memory"))


@pytest.mark.parametrize("value", [1, -1, math.nan])
def test_at_least_names_the_field_and_the_bound(value):
    with pytest.raises(UserError) as error:
        ranges.at_least(Config(width=value), 2, "width")
    assert str(error.value) == f"config.width={value}: must be at least 2"


def test_every_field_is_looked_at():
    with pytest.raises(UserError) as error:
        ranges.at_least(Config(), 2, "width", "data.boxes")
    assert str(error.value) == "config.data.boxes=1: must be at least 2"


@pytest.mark.parametrize("value", [-0.001, 1.0, math.nan, math.inf])
def test_a_fraction_is_below_one(value):
    with pytest.raises(UserError) as error:
        ranges.fraction(Config(dropout=value), "dropout")
    assert str(error.value) == f"config.dropout={value}: must be at least 0 and below 1"


def test_an_unknown_value_gets_the_nearest_known_one():
    with pytest.raises(UserError) as error:
        ranges.one_of(Config(data=Data(cache="memry")), "data.cache", ("none", "memory"))
    assert (
        str(error.value) == "config.data.cache='memry': unknown (did you mean memory?); known: none, memory"
    )
