"""Pins the targets of the closed division to the rules' published text, by judging logs just above and below them.

Source: the quality targets of mlcommons/training_policies training_rules.adoc (v0.6 and v0.7), and section 2 of the
papers. A log is written as a run writes it, and judged by the project's own checker.
"""

import dataclasses
import pathlib

import pytest

from compliance.api import check
from tests.benchmarks import preset_of, scripted_log

# (preset, target): top-1 accuracy, box AP, BLEU; Mask R-CNN: box and mask AP.
TARGETS = [
    ("resnet/tpu-v3-256", 0.759),
    ("resnet/tpu-v4-128", 0.759),
    ("ssd/tpu-v3-256", 0.23),
    ("ssd/tpu-v4-128", 0.23),
    ("maskrcnn/tpu-v3-256", {"BBOX": 0.377, "SEGM": 0.339}),
    ("maskrcnn/tpu-v4-128", {"BBOX": 0.377, "SEGM": 0.339}),
    ("transformer/tpu-v3-256", 25.0),
    ("transformer/tpu-v4-128", 0.25),
    ("gnmt/tpu-v3-256", 24.0),
    ("gnmt/tpu-v4-128", 0.24),
]


def complaints(name: str, reached: object, path: pathlib.Path) -> set[str]:
    """The rules that the checker finds broken in a log whose last evaluation gives `reached`."""
    config = preset_of(name)
    scripted_log(config, path, reached=reached)
    return {finding.rule for finding in check([path], ruleset=config.ruleset).findings}


@pytest.mark.parametrize("name,target", TARGETS)
def test_a_run_at_the_target_passes_and_one_below_does_not(
    name: str, target: float | dict[str, float], tmp_path: pathlib.Path
) -> None:
    at = complaints(name, target, tmp_path / "at.txt")
    if not isinstance(target, dict):
        assert complaints(name, target * (1 - 1e-6), tmp_path / "below.txt") - at
        return
    for part, value in target.items():
        below = {**target, part: value - 1e-6}
        assert complaints(name, below, tmp_path / f"{part}.txt") - at, part


# The decay rates of Adam's moments that the stock checker of v0.6 admits, and some that it does not.
BETAS = {"beta_1": ((0.86, 0.9), (0.85, 0.88)), "beta_2": ((0.92, 0.98, 0.997), (0.9, 0.99))}


@pytest.mark.parametrize("field", BETAS)
def test_the_transformer_s_published_decay_rates_pass_and_others_do_not(
    field: str, tmp_path: pathlib.Path
) -> None:
    config = preset_of("transformer/tpu-v3-2048")
    published, others = BETAS[field]
    for value in (*published, *others):
        optimizer = dataclasses.replace(config.optimizer, **{field: value})
        path = tmp_path / f"{value}.txt"
        scripted_log(dataclasses.replace(config, optimizer=optimizer), path)
        broken = {finding.rule for finding in check([path], ruleset="0.6.0").findings}
        assert (f"opt_adam_{field}.value" in broken) == (value in others), value


@pytest.mark.parametrize("name,target", TARGETS)
def test_a_preset_stops_at_the_target(name: str, target: float | dict[str, float]) -> None:
    assert preset_of(name).logged_target == target
