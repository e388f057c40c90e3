"""Tests loading published ResNet-34 checkpoints: their names, their layout and their outputs."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest
import tf_keras

from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers import starting_weights
from common.layers.precision import precision
from ssd import backbone, model
from ssd.presets import PRESETS
from tests.common.layers.test_starting_weights import forward, published

CONFIG = dataclasses.replace(PRESETS["cpu-tiny"], width=4, global_batch_size=1)


@pytest.mark.parametrize("s2d", [False, True])
def test_a_numpy_checkpoint_computes_what_it_computed(tmp_path, s2d):
    arrays = published("resnet34", 4)
    np.savez(tmp_path / "resnet34.npz", **arrays)
    config = dataclasses.replace(CONFIG, space_to_depth=s2d)
    network = model.build(config, Single(), precision("fp64"))
    count = backbone.load(network, tmp_path / "resnet34.npz", Single())
    # 29 convolutions with a batch norm each, whose moments are kept twice: moving and merged.
    assert count == 29 * (1 + 2 + 4)
    images = np.random.default_rng(1).normal(size=[1, 96, 96, 3])
    (output,) = starting_weights.block_outputs(network, ["layer3.5.bn2"])
    features = tf_keras.Model(network.input, output)(images)
    assert features.shape == (1, 12, 12, 16)
    np.testing.assert_allclose(features, forward(arrays, images, model.STRIDES)[-1], rtol=1e-8, atol=1e-8)


def test_a_checkpoint_that_does_not_fit_is_one_line(tmp_path):
    network = model.build(CONFIG, Single(), precision("fp64"))
    np.savez(tmp_path / "wide.npz", **published("resnet34", 8))
    with pytest.raises(UserError, match="has shape .* is config.width 64"):
        backbone.load(network, tmp_path / "wide.npz", Single())
    arrays = published("resnet34", 4)
    del arrays["layer3.0.downsample.0.weight"]
    np.savez(tmp_path / "less.npz", **arrays)
    with pytest.raises(UserError, match="holds no layer3.0.downsample.0/kernel"):
        backbone.load(network, tmp_path / "less.npz", Single())
    (tmp_path / "text.npz").write_text("nothing")
    with pytest.raises(UserError, match="text.npz: not a whole file of weights"):
        backbone.load(network, tmp_path / "text.npz", Single())


def test_a_damaged_file_is_one_line_and_closed(tmp_path):
    """A truncated file cannot be opened; one with a changed byte fails at the damaged array."""
    network, path = model.build(CONFIG, Single(), precision("fp64")), tmp_path / "w.npz"
    np.savez(path, **published("resnet34", 4))
    whole = path.read_bytes()
    with np.load(path) as stored:
        at = whole.index(stored["layer1.0.conv1.weight"].tobytes())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{path}: not a whole file of weights .*; get a good copy"):
        backbone.load(network, path, Single())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(UserError, match="not a whole file of weights .*layer1.0.conv1.weight") as error:
        backbone.load(network, path, Single())
    assert str(path) not in {os.path.realpath(fd) for fd in pathlib.Path("/proc/self/fd").iterdir()}, error
