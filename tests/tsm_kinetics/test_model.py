"""Tests the four networks: parameters, multiply-adds, temporal sizes, and an independent transcription in float64."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from tsm_kinetics import model
from tsm_kinetics.config import MODELS, Config

SMALL = Config(
    image_size=32, num_classes=5, width=8, blocks=(1, 2, 1, 1), num_frames=4, global_batch_size=2,
    replicas="single",
)  # fmt: skip

# Table 1 of the paper: parameters in millions, multiply-adds in G; PARAMETERS has our exact counts.
PAPER = {"tsm": (24.3, 33), "tsn": (24.3, 33), "i3d_3x3x3": (47.0, 40), "i3d_3x1x1": (29.3, 33)}
PARAMETERS = {"tsm": 24_327_632, "tsn": 24_327_632, "i3d_3x3x3": 47_018_576, "i3d_3x1x1": 28_043_472}

# Table 2: frames after conv1, pool1, res2, res3, res4, res5; in its second column of res3, I3D 3x3x3 has 4, 2, 1.
TABLE_2 = {
    "tsm": (8, 8, 8, 8, 8, 8),
    "tsn": (8, 8, 8, 8, 8, 8),
    "i3d_3x3x3": (16, 8, 8, 4, 2, 1),
    "i3d_3x1x1": (16, 8, 8, 4, 4, 4),
}


def build(name: str = "tsm", policy: str = "fp64", **changes: object) -> tf_keras.Model:
    return model.build(dataclasses.replace(SMALL, model=name, **changes), Single(), precision(policy))


@functools.cache
def full(name: str) -> tf_keras.Model:
    return model.build(
        Config(model=name, global_batch_size=1, replicas="single"), Single(), precision("fp32")
    )


@pytest.mark.parametrize("name", MODELS)
def test_full_size_is_the_paper_s(name: str) -> None:
    """Within 1 % of Table 1, except the parameters of I3D 3x1x1 (docs/presets.md has the reason)."""
    network = full(name)
    millions, giga = PAPER[name]
    assert parameters(network) == PARAMETERS[name]
    if name != "i3d_3x1x1":
        assert parameters(network) == pytest.approx(millions * 1e6, rel=0.01)
    assert forward_macs(network) == pytest.approx(giga * 1e9, rel=0.01)
    layers = {layer.name: layer for layer in network.layers}
    last = ["conv1", "maxpool", "layer1.2.conv3", "layer2.3.conv3", "layer3.5.conv3", "layer4.2.conv3"]
    assert tuple(layers[at].output_shape[1] for at in last) == TABLE_2[name]
    assert layers["layer4.2.conv3"].output_shape[2:4] == (7, 7)


def test_every_variable_has_a_kind() -> None:
    kinds = list(kind_of(full("i3d_3x3x3")).values())
    assert {k: kinds.count(k) for k in set(kinds)} == {"kernel": 54, "norm": 106, "bias": 1}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_logits_are_in_full_precision(name: str, policy: str) -> None:
    network = build(name, policy)
    clips = tf.cast(tf.random.stateless_normal([2, 4, 32, 32, 3], [3, 4]), precision(policy).compute)
    logits = network(clips, training=False)
    assert logits.dtype == tf.float32 and logits.shape == [2, 5] and np.all(np.isfinite(logits))


class Naive:
    """The networks of the papers' tables in plain 3-D operations, loops and moments, without any layer of the code."""

    STEM = {"i3d_3x3x3": 1, "i3d_3x1x1": 2}
    POOLED = ("i3d_3x3x3", "i3d_3x1x1")

    def __init__(self, network: tf_keras.Model, config: Config):
        self.config, self.of = config, {layer.name: layer for layer in network.layers}

    def conv(self, x: tf.Tensor, name: str, time: int = 1, space: int = 1) -> tf.Tensor:
        kernel = tf.convert_to_tensor(self.of[name].kernel)
        kernel = kernel[None] if len(kernel.shape) == 4 else kernel
        pads = [[0, 0], *([int(n) // 2] * 2 for n in kernel.shape[:3]), [0, 0]]
        return tf.nn.conv3d(tf.pad(x, pads), kernel, [1, time, space, space, 1], "VALID")

    def norm(self, x: tf.Tensor, name: str) -> tf.Tensor:
        mean = tf.reduce_mean(x, [0, 1, 2, 3])
        variance = tf.reduce_mean((x - mean) ** 2, [0, 1, 2, 3])
        return (x - mean) / tf.sqrt(variance + 1e-5) * self.of[name].gamma + self.of[name].beta

    def pool(self, x: tf.Tensor, time: int, space: int) -> tf.Tensor:
        window, sizes = (time, space, space), x.shape[1:4]
        x = tf.pad(x, [[0, 0], *([n // 2] * 2 for n in window), [0, 0]], constant_values=-1e30)
        at = [[slice(i, i + size, 1 if n == 1 else 2) for i in range(n)] for n, size in zip(window, sizes)]
        return tf.reduce_max([x[:, t, r, c] for t in at[0] for r in at[1] for c in at[2]], axis=0)

    def shifted(self, x: tf.Tensor) -> tf.Tensor:
        part = int(x.shape[-1]) // 8
        channels = []
        for c in range(x.shape[-1]):
            frames = tf.unstack(x[..., c], axis=1)
            nothing = tf.zeros_like(frames[0])
            if c < part:
                frames = [*frames[1:], nothing]
            elif c < 2 * part:
                frames = [nothing, *frames[:-1]]
            channels.append(tf.stack(frames, axis=1))
        return tf.stack(channels, axis=-1)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        name = self.config.model
        x = tf.nn.relu(self.norm(self.conv(x, "conv1", self.STEM.get(name, 1), 2), "bn1"))
        x = self.pool(x, 3 if name in self.POOLED else 1, 3)
        for stage, blocks in enumerate(self.config.blocks, 1):
            for block in range(blocks):
                at = f"layer{stage}.{block}."
                first = block == 0
                space = 2 if first and stage > 1 else 1
                time = 2 if first and stage > 1 and name == "i3d_3x3x3" else 1
                y = self.shifted(x) if name == "tsm" else x
                y = tf.nn.relu(self.norm(self.conv(y, at + "conv1"), at + "bn1"))
                y = tf.nn.relu(self.norm(self.conv(y, at + "conv2", time, space), at + "bn2"))
                y = self.norm(self.conv(y, at + "conv3"), at + "bn3")
                if first:
                    x = self.norm(self.conv(x, at + "downsample.0", time, space), at + "downsample.1")
                x = tf.nn.relu(x + y)
            if stage == 1 and name == "i3d_3x1x1":
                x = self.pool(x, 3, 1)
        # TSM averages the logits of its frames.
        kernel, bias = self.of["fc"].kernel, self.of["fc"].bias
        logits = [tf.reduce_mean(frame, [1, 2]) @ kernel + bias for frame in tf.unstack(x, axis=1)]
        return tf.add_n(logits) / len(logits)


@pytest.mark.parametrize("name", MODELS)
def test_equals_an_independent_transcription(name: str) -> None:
    config = dataclasses.replace(SMALL, model=name)
    network = build(name)
    clips = tf.random.stateless_normal([2, 4, 32, 32, 3], [1, 2], dtype=tf.float64)
    weights = tf.random.stateless_normal([2, 5], [3, 4], dtype=tf.float64)
    results = []
    for function in (lambda x: network(x, training=True), Naive(network, config)):
        with tf.GradientTape() as tape:
            logits = function(clips)
            loss = tf.reduce_sum(logits * weights)
        results.append([logits, *tape.gradient(loss, network.trainable_variables)])
    for actual, want in zip(*results):
        # The gradients of some norms are zero up to rounding.
        np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-10)


def test_networks_take_frames_of_other_sizes() -> None:
    """Evaluation's crops are larger than training's."""
    for name in MODELS:
        assert build(name)(tf.zeros([3, 4, 40, 40, 3], tf.float64)).shape == [3, 5]
