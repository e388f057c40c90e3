"""Tests lab/bench/detection.py when a contender is missing or wrong."""

import numpy as np
import pytest
import tensorflow as tf

from lab.bench import detection


def cannot() -> tf.Tensor:
    raise tf.errors.InvalidArgumentError(None, None, "no XLA kernel")


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(detection, "SECONDS", 0.0)
    contenders, check = detection.topk_case()

    def measure(**others) -> dict:
        monkeypatch.setitem(detection.CASES, "topk", lambda: ({**contenders, **others}, check))
        return detection.measure("topk", 2, jit=False)

    return measure


def test_contenders_are_compared_although_one_cannot_compile(measured) -> None:
    found = measured(top_k=cannot)
    assert found["cannot"] == {"top_k": "InvalidArgumentError"} and set(found["contenders"]) == {
        "ours",
        "argsort",
    }
    assert found["contenders"]["argsort"]["ratio_to_ours"] > 0
    wrong = lambda: tf.zeros([32, 8732], tf.bool)  # noqa: E731
    with pytest.raises(AssertionError):
        measured(top_k=cannot, argsort=wrong)
    with pytest.raises(AssertionError):
        measured(ours=cannot, argsort=wrong)


def test_without_ours_there_is_no_ratio(measured) -> None:
    found = measured(ours=cannot)
    assert [row["ratio_to_ours"] for row in found["contenders"].values()] == [None, None]
    assert np.isfinite([row["seconds"] for row in found["contenders"].values()]).all()
    assert measured(ours=cannot, top_k=cannot, argsort=cannot)["contenders"] == {}
