"""Tests that the classifiers show a batch as a person sees it, with the scores of the evaluation."""

import dataclasses
import importlib

import numpy as np
import pytest

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from timetotrain.run import examples

SMALL = {
    "mnist": {"lstm_units": 8},
    "resnet": {"width": 4, "image_size": 32, "space_to_depth": True, "eval_batch_size": 4},
    "tsm_kinetics": {"width": 4, "eval_batch_size": 2},
}


@pytest.mark.parametrize("benchmark", SMALL)
def test_pictures_labels_and_scores_of_a_batch(benchmark):
    preset = importlib.import_module(f"{benchmark}.presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(preset, global_batch_size=4, **SMALL[benchmark])
    task = importlib.import_module(f"{benchmark}.task").Task(config, None)
    assert task.has_pictures
    model = task.build(Single(), precision("fp32"))
    batch = next(iter(task.synthetic_eval_input(4)))
    seen = {name: value.numpy() for name, value in task.look(model, batch).items()}
    assert seen["image"].ndim == 4 and seen["image"].shape[-1] in (1, 3)
    np.testing.assert_allclose(seen["scores"].sum(-1), 1, rtol=1e-4)
    said = seen["scores"].argmax(-1)
    correct = int(task.evaluate(model, batch).sums["correct"])
    assert correct == int(np.sum(said == seen["label"]))
    one = {name: value[0] for name, value in seen.items()}
    one["image"] = one["image"].astype(np.uint8)
    example = examples.classified(one, ())
    assert example.right == bool(said[0] == seen["label"][0])
