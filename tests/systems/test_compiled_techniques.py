"""Looks for the pods paper's techniques in what the TPU compiler left of the presets' programs (the kept results)."""

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from common.config import benchmarks
from common.config.schema import RunConfig
from systems.compile import series
from timetotrain.machines import presets

POD = "tpu-v3-2048"
SLOTS = {"lars": 1, "sgd": 1, "adam": 2, "lazy_adam": 2}
# Parts of weights are rounded up to whole elements, and layouts to tiles.
ROUNDING = 1.02


def preset(benchmark: str, system: str) -> RunConfig:
    return benchmarks.module(benchmark, "presets").PRESETS[system]


@functools.cache
def programs() -> list[tuple[str, str, str, dict[str, Any]]]:
    """(benchmark, system, step, result) of every TPU preset that was compiled."""
    actual = []
    for benchmark, system, kind in presets.to_compile():
        record = series.record_of(benchmark, system)
        if kind.startswith("tpu") and record:
            reports = series.reports(record)
            actual += [(benchmark, system, name, report) for name, report in reports.items()]
    # Of a program that jaxlib cannot read, only the memory is known.
    return [row for row in actual if not {"error", "unread"} & row[3].keys()]


def training(benchmark: str) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
    """Yields (preset, result) of a benchmark's training steps; skips the test where none is compiled."""
    actual = [row for row in programs() if row[0] == benchmark and row[2].startswith("train")]
    if not actual:
        pytest.skip(
            f"no training step of {benchmark} is compiled yet: timetotrain systems compile {benchmark}"
        )
    for _, system, _, report in actual:
        yield preset(benchmark, system), report


def of_pod(benchmark: str) -> tuple[RunConfig, dict[str, Any]]:
    """(preset, result) of the training step on 2,048 cores."""
    for config, report in training(benchmark):
        if config.system == POD:
            return config, report
    pytest.skip(f"not compiled yet: timetotrain systems compile {benchmark} --system={POD}")


def over_all(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The exchanges among all replicas at once, the moments' and the rows' left out."""
    return [row for row in report["collectives"] if row["group_size"] in (0, report["replicas"])]


@pytest.mark.parametrize("benchmark", ["resnet", "transformer"])
def test_a_core_holds_its_share_of_the_slots(benchmark: str) -> None:
    config, report = of_pod(benchmark)
    sizes, weights = report["argument_bytes"], report["argument_bytes"]["weight"]
    whole = SLOTS[config.optimizer.name] * weights
    assert sizes["slot"] <= whole / config.num_replicas * 1.1
    # The optimized program's arguments have no room for more of them.
    assert report["memory"]["argument"] - sum(sizes.values()) <= whole / 10


@pytest.mark.parametrize("benchmark", ["resnet", "transformer"])
def test_the_update_moves_the_gradients_and_the_weights_once(benchmark: str) -> None:
    _, report = of_pod(benchmark)
    weights = report["argument_bytes"]["weight"]
    moved = sum(row["bytes"] for row in over_all(report))
    assert weights < moved <= 2 * weights * ROUNDING


@pytest.mark.parametrize("benchmark", ["resnet", "ssd"])
def test_batch_norm_sums_over_the_preset_s_groups(benchmark: str) -> None:
    for config, report in training(benchmark):
        images = config.global_batch_size // config.num_groups
        cores = config.partitions * config.batch_norm_span // images
        sizes = {row["group_size"] for row in report["collectives"] if row["operation"] == "all-reduce"}
        assert cores <= config.partitions or cores in sizes, config.system
        assert sizes <= {cores, config.partitions, config.num_replicas, 0}, config.system


def test_rows_are_exchanged_by_neighbors() -> None:
    config, report = of_pod("ssd")
    rows = [row for row in report["collectives"] if row["operation"] == "collective-permute"]
    near = [row for row in rows if set(row["distances"]) <= {-1, 1}]
    assert {move for row in near for move in row["distances"]} == {-1, 1}
    # Every core but the last of its group sends down, or every one but the first up.
    assert {row["groups"] for row in near} == {config.num_groups * (config.partitions - 1)}
    # Farther go only the rows of the smallest maps, of which a neighbor alone has too few.
    assert sum(row["bytes"] for row in near) > 0.99 * sum(row["bytes"] for row in rows)


def test_no_core_of_a_group_gets_the_maps_of_all_its_images() -> None:
    """SSD's loss and suppression are computed once a group: each core has the maps of its own images."""
    config, report = of_pod("ssd")
    assert not [
        row
        for row in report["collectives"]
        if row["operation"] == "all-gather" and row["group_size"] == config.partitions
    ]


def test_a_sum_over_all_cores_has_two_phases_by_itself() -> None:
    """So `flat` is the paper's 2-D sum on a TPU (docs/scaling.md)."""
    _, report = of_pod("ssd")
    strategies = {row["strategy"] for row in over_all(report) if row["bytes"] > 2**20}
    assert any(name.startswith("StrategyND") for name in strategies), strategies


def test_gnmt_s_gradients_of_matrices_come_after_the_loops() -> None:
    for config, report in training("gnmt"):
        assert report["loop_products"], config.system
        for shape in report["loop_products"]:
            sides = [int(side) for side in re.findall(r"\d+", shape.partition("[")[2])]
            # A gradient of a matrix has a row an input, at least `width`; a step's product has one an example.
            examples = config.global_batch_size // config.num_replicas
            assert math.prod(sides[:-1]) == examples < config.width, (config.system, shape)


def test_the_second_stage_of_mask_rcnn_is_on_the_cores_of_a_group() -> None:
    """A case a core, of which each runs its own; that four of eight have work is a test of the network."""
    for config, report in training("maskrcnn"):
        assert config.partitions == 1 or set(report["branches"]) == {config.partitions}, config.system


def test_no_step_has_arithmetic_of_64_bits() -> None:
    wide = {(b, s, step): dict(report["wide_arithmetic"]) for b, s, step, report in programs()}
    for (benchmark, _, _), actual in wide.items():
        # The input of Mask R-CNN has ids of 64 bits: taking the low half of them, once, is no arithmetic.
        if benchmark == "maskrcnn":
            assert actual.pop("X64SplitLow", 0) <= 1
    assert not {place: actual for place, actual in wide.items() if actual}
