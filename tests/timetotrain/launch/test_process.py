"""Tests the share of a machine's cores that each of several runs gets, and a process's place in a run."""

from __future__ import annotations

import pytest

from common.config.schema import RunConfig
from common.distributed import process
from timetotrain.launch import plan


def test_runs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: set(range(8)))
    assert process.core_share(1) == {}
    assert process.core_share(4)["TF_NUM_INTRAOP_THREADS"] == "2"
    assert process.core_share(16)["TF_NUM_INTRAOP_THREADS"] == "1"


def test_pjrt_is_one_process_or_those_of_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = RunConfig(replicas="pjrt", num_replicas=4)
    assert process.of(config) == process.Process()
    ranks = plan.ranks([plan.Host("localhost", 2)])
    for name, value in plan.multiworker_environment(ranks[1], ["a:1", "a:2"]).items():
        monkeypatch.setenv(name, value)
    assert process.of(config) == process.Process(1, 2)
