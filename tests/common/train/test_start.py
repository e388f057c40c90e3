"""Tests starting from the weights of another network: what is matched, what is new, what a frozen stage keeps."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from common.config import benchmarks
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.train import checkpoint, warm_start
from common.train.state import State
from resnet.presets import PRESETS
from resnet.task import Task
from tests.common.train import toy

TINY = dataclasses.replace(PRESETS["cpu-tiny"], width=8, precision="fp32")


def state_of(config, task=Task):
    network_task = task(config, None) if task is Task else task(config)
    return State(network_task, Single(), precision(config.precision)), network_task


def shaken(config):
    """A network with random weights and moments, as after training."""
    state, task = state_of(config)
    rng = np.random.default_rng(3)
    for variable in warm_start.variables(state.model).values():
        noise = (
            rng.uniform(0.5, 1.5, variable.shape)
            if "variance" in variable.name
            else rng.normal(size=variable.shape)
        )
        variable.assign(noise)
    warm_start._set_moving(state, {n: v.numpy() for n, v in warm_start.variables(state.model).items()})
    return state, task


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    state, task = shaken(TINY)
    loop = types.SimpleNamespace(state=state, task=task, config=TINY)
    return state, checkpoint.save(loop, tmp_path_factory.mktemp("trained"))


def values(state):
    return {name: v.numpy() for name, v in warm_start.variables(state.model).items()}


def test_another_number_of_classes_takes_all_but_the_head(trained):
    before, path = trained
    state, task = state_of(dataclasses.replace(TINY, num_classes=5))
    head = values(state)["fc/kernel"]
    actual = warm_start.start(state, task, path)
    assert set(actual.new) == {"fc/kernel", "fc/bias"} and actual.left == []
    classes = TINY.num_classes
    assert f"{head.shape[0]}x{classes} there, {head.shape[0]}x5 here" in actual.new["fc/kernel"]
    theirs, ours = values(before), values(state)
    for name in actual.matched:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    np.testing.assert_array_equal(ours["fc/kernel"], head)
    assert "2 new" in actual.table() and "fc/kernel" in actual.table()
    assert int(state.step) == 0


def test_an_evaluation_after_the_start_has_the_same_moments(trained):
    from common.layers import batch_norm

    state, task = state_of(TINY)
    warm_start.start(state, task, trained[1])
    before = values(state)
    batch_norm.merge_moments(state.model, state.replicas)
    for name, value in values(state).items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6, err_msg=name)


def as_torchvision(arrays):
    """The arrays as a state dict has them: other names, other layouts."""
    torch_names = {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
    actual = {}
    for name, array in arrays.items():
        layer, _, part = name.rpartition("/")
        if part == "kernel":
            array = np.transpose(array, [3, 2, 0, 1] if array.ndim == 4 else [1, 0])
        actual[f"{layer}.{ {'kernel': 'weight'}.get(part, torch_names.get(part, part)) }"] = array
    return actual


def test_torchvisions_layout_is_read(trained, tmp_path):
    np.savez(tmp_path / "weights.npz", **as_torchvision(values(trained[0])))
    state, task = state_of(TINY)
    match = warm_start.start(state, task, tmp_path / "weights.npz")
    assert not match.new and not match.left
    theirs = values(trained[0])
    for name, value in values(state).items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_a_detector_takes_a_classifiers_backbone(trained):
    module = benchmarks.module("maskrcnn", "presets")
    config = dataclasses.replace(module.PRESETS["cpu-tiny"], backbone_width=8, precision="fp32")
    task = benchmarks.module("maskrcnn", "task").Task(config, None)
    state = State(task, Single(), precision("fp32"))
    match = warm_start.start(state, task, trained[1])
    assert {"conv1/kernel", "layer4.2.bn3/moving_variance"} <= set(match.matched)
    assert match.left == ["fc/bias", "fc/kernel"]


def test_a_file_of_another_network_is_one_line(trained, tmp_path):
    config = toy.config()
    task = toy.Task(config)
    state = State(task, Single(), precision("fp32"))
    with pytest.raises(UserError, match="nothing fits this network; it has .*, the network dense.0/kernel"):
        warm_start.start(state, task, trained[1])
    np.savez(tmp_path / "odd.npz", x=np.zeros(3))
    (tmp_path / "cut.npz").write_bytes(trained[1].read_bytes()[:5000])
    (tmp_path / "text.pth").write_text("no weights")
    for name in ("odd.npz", "cut.npz", "text.pth", "missing.pth", "weights.bin"):
        with pytest.raises(UserError) as caught:
            warm_start.start(state, task, tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_frozen_stages_keep_their_weights_and_moments(trained):
    config = dataclasses.replace(TINY, frozen_stages=3, init=str(trained[1]))
    state, task = state_of(config)
    warm_start.start(state, task, config.init)
    names = {
        n
        for n, v in warm_start.variables(state.model).items()
        if v.ref() in {w.ref() for w in state.model.trainable_variables}
    }
    assert {n.split(".")[0].split("/")[0] for n in names} == {"layer3", "layer4", "fc"}
    before = values(state)
    image = tf.cast(
        tf.random.stateless_uniform([2, config.image_size, config.image_size, 3], [1, 2], maxval=255),
        tf.uint8,
    )
    outputs = [task.logits(state.model, {"image": image}, training=True) for _ in range(2)]
    assert outputs[0].shape == [2, config.num_classes]
    moving = {n.name for n in state.model.variables if "moving" in n.name}
    assert moving  # Moments of frozen layers are those of the file.
    for name, value in values(state).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    first = [layer for layer in state.model.layers if layer.name == "layer1.0.bn1"][0]
    np.testing.assert_array_equal(first.moving_mean[0], before["layer1.0.bn1/moving_mean"])


def test_too_many_frozen_stages_are_refused():
    with pytest.raises(UserError, match="config.frozen_stages=6: .* has 5 stages"):
        dataclasses.replace(TINY, frozen_stages=6).validate()
