"""Tests loading published ResNet-34 checkpoints: their names, their layout and their outputs."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import precision
from ssd import backbone, model
from ssd.presets import PRESETS

CONFIG = dataclasses.replace(PRESETS["cpu-tiny"], width=4, global_batch_size=1)


def published(width: int = 4) -> dict[str, np.ndarray]:
    """Arrays with the names and shapes of torchvision's ResNet-34, `layer4` and `fc` included."""
    rng, actual = np.random.default_rng(0), {}

    def conv(name, inputs, outputs, size):
        actual[f"{name}.weight"] = rng.normal(0, 0.2, [outputs, inputs, size, size])

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            actual[f"{name}.{part}"] = rng.uniform(0.5, 1.5, channels)
        actual[f"{name}.num_batches_tracked"] = np.array(3)

    conv("conv1", 3, width, 7)
    norm("bn1", width)
    inputs = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        outputs = width * 2**stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            conv(f"{name}.conv1", inputs, outputs, 3)
            norm(f"{name}.bn1", outputs)
            conv(f"{name}.conv2", outputs, outputs, 3)
            norm(f"{name}.bn2", outputs)
            if inputs != outputs:
                conv(f"{name}.downsample.0", inputs, outputs, 1)
                norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    actual["fc.weight"] = np.zeros([1000, inputs])
    return actual


def forward(arrays: dict[str, np.ndarray], x: np.ndarray) -> tf.Tensor:
    """conv4_x from a checkpoint's arrays, NHWC, with stride 1 in the third stage."""

    def conv(x, name, stride, pad):
        kernel = tf.constant(arrays[f"{name}.weight"].transpose(2, 3, 1, 0))
        return tf.nn.conv2d(tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]]), kernel, stride, "VALID")

    def norm(x, name):
        a = {k: arrays[f"{name}.{k}"] for k in ("weight", "bias", "running_mean", "running_var")}
        return (x - a["running_mean"]) / np.sqrt(a["running_var"] + 1e-5) * a["weight"] + a["bias"]

    x = tf.nn.relu(norm(conv(tf.constant(x), "conv1", 2, 3), "bn1"))
    x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
    for stage, blocks in enumerate((3, 4, 6)):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if (stage, block) == (1, 0) else 1
            y = tf.nn.relu(norm(conv(x, f"{name}.conv1", stride, 1), f"{name}.bn1"))
            y = norm(conv(y, f"{name}.conv2", 1, 1), f"{name}.bn2")
            if f"{name}.downsample.0.weight" in arrays:
                x = norm(conv(x, f"{name}.downsample.0", stride, 0), f"{name}.downsample.1")
            x = tf.nn.relu(x + y)
    return x


@pytest.mark.parametrize("s2d", [False, True])
def test_a_numpy_checkpoint_computes_what_it_computed(tmp_path, s2d):
    arrays = published()
    np.savez(tmp_path / "resnet34.npz", **arrays)
    config = dataclasses.replace(CONFIG, space_to_depth=s2d)
    network = model.build(config, Single(), precision("fp64"))
    count = backbone.load(network, tmp_path / "resnet34.npz", Single())
    # 29 convolutions with a batch norm each, whose moments are kept twice: moving and merged.
    assert count == 29 * (1 + 2 + 4)
    last = [layer for layer in network.layers if isinstance(layer, tf_keras.layers.ReLU)]
    images = np.random.default_rng(1).normal(size=[1, 96, 96, 3])
    features = tf_keras.Model(network.input, network.get_layer("layer3.5.bn2").output)(images)
    assert features.shape == (1, 12, 12, 16) and last
    through = tf_keras.Model(network.input, after(network, "layer3.5.bn2"))(images)
    np.testing.assert_allclose(through, forward(arrays, images), rtol=1e-8, atol=1e-8)


def after(network: tf_keras.Model, name: str) -> tf.Tensor:
    """A block's output: the sum that takes the layer `name`, and its ReLU."""
    layer = network.get_layer(name)
    for _ in range(2):
        layer = layer.outbound_nodes[0].outbound_layer
    return layer.output


def test_a_tensorflow_checkpoint_is_read_too(tmp_path):
    arrays = {k: v for k, v in published().items() if not k.startswith(("layer4", "fc"))}
    keeper = tf.Module()
    saver = tf.compat.v1.train.Saver({name: tf.Variable(value) for name, value in arrays.items()})
    del keeper
    path = saver.save(None, str(tmp_path / "resnet34"), write_meta_graph=False)
    network = model.build(CONFIG, Single(), precision("fp64"))
    backbone.load(network, path, Single())
    layer = next(
        x for x in network.layers if isinstance(x, SyncBatchNorm) and x.name == "layer2.0.downsample.1"
    )
    np.testing.assert_array_equal(layer.gamma, arrays["layer2.0.downsample.1.weight"])
    np.testing.assert_array_equal(layer.moving_variance[0], arrays["layer2.0.downsample.1.running_var"])
    np.testing.assert_array_equal(layer.merged_mean, arrays["layer2.0.downsample.1.running_mean"])


def test_a_checkpoint_that_does_not_fit_is_one_line(tmp_path):
    network = model.build(CONFIG, Single(), precision("fp64"))
    np.savez(tmp_path / "wide.npz", **published(8))
    with pytest.raises(UserError, match="has shape .* is config.width 64"):
        backbone.load(network, tmp_path / "wide.npz", Single())
    arrays = published()
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
    np.savez(path, **published())
    whole = path.read_bytes()
    with np.load(path) as stored:
        at = whole.index(stored["layer1.0.conv1.weight"].tobytes())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{path}: not a whole file of weights .*; get a good copy"):
        backbone.load(network, path, Single())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(UserError, match="not a whole file of weights .*layer1.0.conv1.weight") as kept:
        backbone.load(network, path, Single())
    assert str(path) not in {os.path.realpath(fd) for fd in pathlib.Path("/proc/self/fd").iterdir()}, kept
