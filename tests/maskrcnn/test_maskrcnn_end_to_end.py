"""Tests cpu-tiny through run_and_time.sh: both targets and the log; models with a fault miss."""

import pathlib

import pytest

from tests.benchmarks import assert_reaches_its_target, log_name, missed, records, runner

LOG, run = log_name("maskrcnn"), runner("maskrcnn", timeout=3600)


@pytest.mark.e2e
def test_reaches_both_targets_with_a_log_that_passes(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _, last = assert_reaches_its_target(run, LOG, data_dir, tmp_path)
    reached = last["eval_accuracy"]["value"]
    assert reached["BBOX"] >= 0.377 and reached["SEGM"] >= 0.339


@pytest.mark.e2e
def test_anchors_shifted_by_one_cell_never_reach_the_target(
    data_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The preset has five epochs; after a sixth the box head compensates for the fault (0.381)."""
    found = missed(run, LOG, data_dir, tmp_path, "--config.anchor_shift=1")
    assert len(found) == 5 and max(value["BBOX"] for value in found) < 0.377


@pytest.mark.e2e
def test_an_untrained_mask_head_misses_the_target(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = missed(run, LOG, data_dir, tmp_path, "--config.train_mask_head=False")
    assert len(found) == 5 and max(value["SEGM"] for value in found) < 0.1


@pytest.mark.e2e
def test_a_short_run_evaluates_every_image_once(data_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Runs the whole path, with evaluation by two workers: 4 steps of both orientations, aborted below the target."""
    flags = ["--config.train_steps=4", "--config.first_block_steps=4", "--config.backbone_width=4"]
    missed(run, LOG, data_dir, tmp_path, *flags, "--config.eval_workers=2")
    found = [r for r in records(tmp_path / LOG) if r["key"] == "eval_accuracy"]
    assert len(found) == 1 and set(found[0]["value"]) == {"BBOX", "SEGM"}
    assert all(0 <= value < 0.2 for value in found[0]["value"].values())
    assert {"BBOX_AP50", "SEGM_AP75"} <= set(found[0]["metadata"])
