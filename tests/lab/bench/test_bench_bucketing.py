"""Tests the measures of bucketing."""

import numpy as np
import pytest

from lab.bench import bucketing


def test_a_plan_of_batches_is_judged_by_its_slowest_replica() -> None:
    lengths = np.array([2, 4, 3])
    one, two = np.array([0, 2]), np.array([1])
    found = bucketing.judge(lengths, [[[(one, 2, 3), (two, 1, 4)]]])
    assert found["padding_share"] == pytest.approx(1 - 9 / 10)
    assert found["imbalance"] == pytest.approx(6 / 5 - 1)
    assert found["every_example_once_an_epoch"]
    assert not bucketing.judge(lengths, [[[(one, 2, 3)]]])["every_example_once_an_epoch"]


def test_every_plan_uses_each_example_once_and_ours_has_no_imbalance() -> None:
    lengths = np.random.default_rng(0).integers(1, 41, 150)
    found = bucketing.measure(lengths, bucketing.kinds(lengths, 4)["of equal width"], 16)
    assert all(row["every_example_once_an_epoch"] for row in found["plans"].values())
    assert found["no_imbalance"]


def test_limits_of_least_padding_pad_less() -> None:
    lengths = np.minimum(np.random.default_rng(0).integers(1, 100, 600), 40)
    kinds = bucketing.kinds(lengths, 4)
    equal, least = (bucketing.measure(lengths, limits, 16)["plans"]["ours"] for limits in kinds.values())
    assert least["padding_share"] < equal["padding_share"]
