"""Tests the share of a machine's cores that each of several runs gets."""

from __future__ import annotations

import pytest

from common.launch import process


def test_runs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: set(range(8)))
    assert process.core_share(1) == {}
    assert process.core_share(4)["TF_NUM_INTRAOP_THREADS"] == "2"
    assert process.core_share(16)["TF_NUM_INTRAOP_THREADS"] == "1"
