"""Tests the checks of a configuration's fields at their bounds."""

import dataclasses
import math

import pytest

from common.config import ranges
from common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 2
    dropout: float = 0.0


@pytest.mark.parametrize("value", [1, -1, math.nan])
def test_at_least_names_the_field_and_the_bound(value):
    with pytest.raises(UserError) as error:
        ranges.at_least(Config(width=value), 2, "width")
    assert str(error.value) == f"config.width={value}: must be at least 2"


@pytest.mark.parametrize("value", [-0.001, 1.0, math.nan, math.inf])
def test_a_fraction_is_below_one(value):
    with pytest.raises(UserError) as error:
        ranges.fraction(Config(dropout=value), "dropout")
    assert str(error.value) == f"config.dropout={value}: must be at least 0 and below 1"
