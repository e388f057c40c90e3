"""What each of several runs has of a machine."""

from __future__ import annotations

import pytest

from common import cores


def test_runs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)))
    assert cores.share(1) == {}
    assert cores.share(4)["TF_NUM_INTRAOP_THREADS"] == "2"
    assert cores.share(16)["TF_NUM_INTRAOP_THREADS"] == "1"
