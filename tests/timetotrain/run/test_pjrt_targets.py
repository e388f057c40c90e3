"""Tests that the tiny presets reach their targets through --replicas=pjrt, with valid logs; equal seeds, equal logs.

`make e2e-pjrt` runs this file alone. The sizes are those of cpu-tiny.
"""

import importlib.util
import pathlib

import pytest

from common.config import benchmarks
from compliance.api import check
from tests.benchmarks import log_name, runner, stock_findings, untimed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed (make setup)"),
]
TIMEOUT = 7200
# Benchmarks of MLPerf, whose logs the stock checker knows; the others have this project's own rules.
KNOWN = {"gnmt", "maskrcnn", "resnet", "ssd", "transformer"}
# Mask R-CNN has the seed of its preset and of its other end-to-end tests: with seed 1 it learns, and comes to a box mAP
# of 0.350 where 0.377 is wanted.
SEEDS = {"maskrcnn": 0}
# On four devices. Mask R-CNN's evaluation batch of 10 is no multiple of four, and a device has one of the step's four
# images, over all of which batch norm goes here as on one device: statistics of single images never reach the targets.
ON_FOUR = {
    "mnist": [],
    "resnet": [],
    "transformer": [],
    "maskrcnn": ["--config.eval_batch_size=12", "--config.batch_norm_span=4"],
}


def trained(benchmark: str, data: pathlib.Path, results: pathlib.Path, *flags: str) -> list[dict]:
    """Asserts that cpu-tiny reaches its target with a valid log, which it returns without times."""
    seed = f"--seed={SEEDS.get(benchmark, 1)}"
    done = runner(benchmark, timeout=TIMEOUT)(data, results, "--replicas=pjrt", seed, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    log = results / log_name(benchmark)
    assert [finding for finding in check([log]).findings if finding.severity == "error"] == []
    if benchmark in KNOWN:
        assert stock_findings(log) == []
    return untimed(log)


@pytest.mark.parametrize("benchmark", benchmarks.NAMES)
def test_one_device_reaches_the_target(benchmark: str, tmp_path: pathlib.Path) -> None:
    trained(benchmark, tmp_path / "data", tmp_path / "results")


@pytest.mark.parametrize("benchmark", ON_FOUR)
def test_four_devices_reach_the_target(benchmark: str, tmp_path: pathlib.Path) -> None:
    flags = ["--config.num_replicas=4", *ON_FOUR[benchmark]]
    trained(benchmark, tmp_path / "data", tmp_path / "results", *flags)


@pytest.mark.parametrize("benchmark", ["mnist", "transformer"])
def test_equal_seeds_give_equal_logs(benchmark: str, tmp_path: pathlib.Path) -> None:
    logs = [trained(benchmark, tmp_path / "data", tmp_path / name) for name in ("a", "b")]
    assert logs[0] == logs[1]
