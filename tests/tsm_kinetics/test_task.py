"""Tests the task: averages over views, counting, accumulation, initial weights, the three efficiencies."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from common.config.clock import Clock
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers import weight_files
from common.layers.precision import precision
from common.train import step as steps
from tsm_kinetics import efficiency, last_five, model, pretrained
from tsm_kinetics.config import MODELS, Config, Data
from tsm_kinetics.presets import PRESETS
from tsm_kinetics.task import Task

SMALL = Config(
    precision="fp64",
    image_size=32,
    num_classes=5,
    width=8,
    blocks=(1, 1, 1, 1),
    num_frames=4,
    global_batch_size=4,
    eval_batch_size=4,
    num_train_examples=8,
    num_eval_examples=6,
    optimizer=PRESETS["summit-8"].optimizer,
    schedule=PRESETS["summit-8"].schedule,
    data=Data(window=8, eval_clips=2, eval_crops=3, eval_short_side=40, eval_size=36),
)


def frames(count: int, views: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, [count, 4 * views, size, size, 3], np.uint8)


def test_a_video_s_score_is_the_mean_softmax_of_its_views() -> None:
    task = Task(SMALL, None)
    network = task.build(Single(), precision("fp64"))
    videos = frames(3, 6, 36)
    got = task.scores(network, tf.constant(videos))
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    for one, video in zip(got, videos):
        views = video.reshape(6, 4, 36, 36, 3) / 255
        softmax = [tf.nn.softmax(network((view[None] - mean) / deviation))[0] for view in views]
        np.testing.assert_allclose(one, np.mean(softmax, axis=0), rtol=1e-8)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("batch", [2, 4])
def test_each_video_counts_once_for_any_batch_and_replicas(replicas: int, batch: int) -> None:
    """Six videos and padding, split between replicas, give the sums of the videos one by one."""
    task = Task(SMALL, None)
    network = task.build(Single(), precision("fp64"))
    videos, labels = frames(6, 6, 36), np.array([0, 1, 2, 3, 4, 0], np.int32)
    best = tf.argmax(task.scores(network, tf.constant(videos)), -1).numpy()
    per_replica = -(-6 // replicas)
    padded = -(-per_replica // batch) * batch
    totals = dict.fromkeys(("correct", "correct_top5", "seen"), 0)
    for replica in range(replicas):
        mine, names = videos[replica::replicas], labels[replica::replicas]
        fill = padded - len(mine)
        mine = np.concatenate([mine, np.zeros([fill, *mine.shape[1:]], np.uint8)])
        names = np.concatenate([names, np.full([fill], -1, np.int32)])
        weight = (names >= 0).astype(np.float32)
        for i in range(0, padded, batch):
            part = slice(i, i + batch)
            examples = {"frames": tf.constant(mine[part]), "label": names[part], "weight": weight[part]}
            for key, value in task.evaluate(network, examples).sums.items():
                totals[key] += int(value)
    assert totals == {"correct": int(np.sum(best == labels)), "correct_top5": 6, "seen": 6}
    quality = task.quality(totals, {})
    assert quality.value == totals["correct"] / 6 and quality.details["top5"] == 1
    with pytest.raises(ValueError, match="5 videos seen, 6 expected"):
        task.quality({**totals, "seen": 5}, {})


def stepped(config: Config, batch: dict[str, tf.Tensor], replicas: object = None) -> list[np.ndarray]:
    """The weights after one training step on `batch`."""
    policy, task = precision(config.precision), Task(config, None)
    state = steps.State(task, replicas or Single(), policy)
    train_step = steps.make_train_step(task, state, Clock.of(config))
    # Not at step 0, where the warmup's rate is 0.
    if replicas is None:
        train_step(batch, tf.constant(3, tf.int64))
    else:
        halves = iter([{k: v[i : i + 2] for k, v in batch.items()} for i in (0, 2)])
        values = replicas.dataset(
            lambda _: tf.data.Dataset.from_generator(
                lambda: halves,
                output_signature={k: tf.TensorSpec([2, *v.shape[1:]], v.dtype) for k, v in batch.items()},
            )
        )
        tf.function(lambda part: replicas.run(train_step, (part, tf.constant(3, tf.int64))))(
            next(iter(values))
        )
    return [v.numpy() for v in state.model.trainable_variables]


def batch_of_four() -> dict[str, tf.Tensor]:
    """The same two clips twice, so that each half has the batch-norm statistics of the whole."""
    two = frames(2, 1, 32)
    return {
        "frames": tf.constant(np.concatenate([two, two])),
        "label": tf.constant([0, 1, 2, 3]),
        "weight": tf.ones([4]),
    }


def test_accumulation_and_replicas_equal_the_large_batch() -> None:
    """Batch norm sees a micro-batch (two clips), whose statistics are those of the four by construction."""
    batch = batch_of_four()
    want = stepped(SMALL, batch)
    others = [
        stepped(dataclasses.replace(SMALL, accumulation_steps=2), batch),
        stepped(dataclasses.replace(SMALL, num_replicas=2, replicas="mirrored"), batch, Mirrored(2)),
    ]
    for got in others:
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def imagenet(network: object, seed: int = 0) -> dict[str, np.ndarray]:
    """A small ResNet's weights under torchvision's names and in its layouts."""
    rng, weights = np.random.default_rng(seed), {}
    for layer in network.layers:
        if hasattr(layer, "gamma"):
            for name in ("weight", "bias", "running_mean"):
                weights[f"{layer.name}.{name}"] = rng.normal(size=layer.gamma.shape[0])
            weights[f"{layer.name}.running_var"] = rng.uniform(0.5, 2, layer.gamma.shape[0])
        elif hasattr(layer, "kernel") and layer.name != "fc":
            shape = layer.kernel.shape[-4:]
            kernel = rng.normal(size=[shape[3], shape[2], *shape[:2]])
            weights[f"{layer.name}.weight"] = kernel / math.sqrt(kernel[0].size)
    weights["fc.weight"], weights["fc.bias"] = rng.normal(size=[5, 256]), rng.normal(size=5)
    return weights


@pytest.mark.parametrize("name", [m for m in MODELS if m.startswith("i3d")])
def test_inflated_weights_on_a_constant_video_give_the_two_dimensional_network(
    name: str, tmp_path: pathlib.Path
) -> None:
    """With all of a kernel in its middle frame, zero padding at the ends of a clip does not matter."""
    path = tmp_path / "resnet.npz"
    outputs = []
    for which in ("tsn", name):
        network = model.build(dataclasses.replace(SMALL, model=which), Single(), precision("fp64"))
        if which == "tsn":
            np.savez(path, **imagenet(network))
        pretrained.load(network, path, "center", Single())
        image = tf.random.stateless_normal([2, 1, 32, 32, 3], [1, 2], dtype=tf.float64)
        outputs.append(network(tf.repeat(image, 4, axis=1)))
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-8)


def test_mean_inflation_keeps_a_constant_video_s_inner_frames() -> None:
    kernel = np.random.default_rng(0).normal(size=[1, 1, 6, 4])
    inflated = pretrained.inflated(kernel, tf.TensorShape([3, 1, 1, 6, 4]), "mean")
    x = np.random.default_rng(1).normal(size=[1, 1, 2, 2, 6]).repeat(5, axis=1)
    got = tf.nn.conv3d(tf.pad(x, [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]]), inflated, [1] * 5, "VALID")
    want = tf.nn.conv2d(x[:, 0], kernel, 1, "VALID")
    for t in (1, 2, 3):
        np.testing.assert_allclose(got[:, t], want, rtol=1e-8)


def test_bad_weights_are_one_line(tmp_path: pathlib.Path) -> None:
    network = model.build(SMALL, Single(), precision("fp64"))
    weights = imagenet(network)
    for change, message in (
        ({"conv1.weight": None}, "no conv1/kernel"),
        ({"conv1.weight": np.zeros([9, 3, 7, 7])}, r"conv1/kernel has shape \[7, 7, 3, 9\]"),
    ):
        kept = {k: v for k, v in {**weights, **change}.items() if v is not None}
        np.savez(tmp_path / "w.npz", **kept)
        with pytest.raises(UserError, match=message):
            pretrained.load(network, tmp_path / "w.npz", "mean", Single())
    (tmp_path / "w.h5").write_text("no weights")
    with pytest.raises(UserError, match="not a whole file of weights"):
        pretrained.load(network, tmp_path / "w.h5", "mean", Single())


def test_damaged_weights_are_one_line(tmp_path: pathlib.Path) -> None:
    """Covers an interrupted download and a changed byte: zipfile's errors are not OSErrors."""
    network, path = model.build(SMALL, Single(), precision("fp64")), tmp_path / "w.npz"
    np.savez(path, **imagenet(network))
    whole, middle = path.read_bytes(), path.stat().st_size // 2
    for content in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :], b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match="w.npz: not a whole file of weights"):
            pretrained.load(network, path, "mean", Single())


def test_names_of_keras_are_torchvision_s() -> None:
    names = {
        "conv1_conv": "conv1", "conv1_bn": "bn1", "conv2_block1_0_bn": "layer1.0.downsample.1",
        "conv5_block3_2_conv": "layer4.2.conv2", "conv3_block4_1_bn": "layer2.3.bn1", "predictions": "fc",
    }  # fmt: skip
    assert {name: weight_files.torchvision_name(name) for name in names} == names


def test_communication_is_latency_and_size_over_bandwidth() -> None:
    network = efficiency.Network(latency=1e-5, bandwidth=1e9)
    assert efficiency.communication_seconds(1e8, 1, network) == 0
    # Two nodes: each sends half, twice.
    assert efficiency.communication_seconds(1e8, 2, network) == pytest.approx(2e-5 + 0.1)
    assert efficiency.communication_seconds(1e8, 8, network) == pytest.approx(14e-5 + 14 / 8 * 0.1)
    assert efficiency.scalability(0.3, 1e8, 2, network) == pytest.approx(0.3 / (0.3 + 0.10002))
    assert efficiency.unhidden_loading(0.3, 0.5) == 0 and efficiency.unhidden_loading(
        0.5, 0.3
    ) == pytest.approx(0.2)


def test_smaller_networks_scale_further() -> None:
    """Figure 3c: TSM above I3D 3x3x3, which has 1.9 times the gradients."""
    network = efficiency.Network(bandwidth=1.25e9)
    tsm = [one["scalability"] for one in efficiency.predicted(24.3e6 * 4, 0.28, network)]
    i3d = [one["scalability"] for one in efficiency.predicted(47.0e6 * 4, 0.38, network)]
    assert tsm[0] == i3d[0] == 1 and all(a > b for a, b in zip(tsm[1:], i3d[1:]))


def test_the_command_measures_small_networks(capsys: pytest.CaptureFixture) -> None:
    flags = ["--system=cpu-tiny", "--batch_size=2", "--steps=1", "--measure"]
    assert efficiency.main([*flags, "--models=tsm"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (
        row["input_elements"] == 8 * 3 * 32 * 32
        and row["compute_per_input"] == row["macs"] / row["input_elements"]
    )
    assert row["measured"]["clips_per_second"] > 0 and row["measured"]["utilization"] > 0
    assert efficiency.main([*flags, "--models=tsm,i3d_3x1x1", "--table"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("i3d_3x1x1")]) == 2
    assert efficiency.main(["--models=slowfast"]) == 2
    assert "error: --models=slowfast: unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--steps=0", "--steps=0: must be at least 1"),
        ("--batch_size=0", "--batch_size=0: must be at least 1"),
        ("--clips_per_device=-1", "--clips_per_device=-1: must be at least 1"),
        ("--image_size=-1", "--image_size=-1: must be at least 0"),
        ("--latency=nan", "--latency=nan: must be at least 0, and finite"),
        ("--bandwidth=0", "--bandwidth=0.0: must be bytes per second, more than 0"),
        (
            "--system=cpu-tyni",
            "--system=cpu-tyni: unknown (did you mean cpu-tiny?); known: cpu-tiny, cpu-ucf101",
        ),
    ],
)
def test_a_flag_out_of_its_range_is_one_line(flag: str, message: str, capsys: pytest.CaptureFixture) -> None:
    assert efficiency.main(["--measure", flag]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_the_system_s_sizes_are_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    taken = []

    def counted(config: Config) -> dict:
        taken.append(config)
        return {"parameters": 1, "paper": None}

    monkeypatch.setattr(efficiency, "counted", counted)
    larger = dataclasses.replace(PRESETS["summit-8"], image_size=256)
    monkeypatch.setitem(efficiency.PRESETS, "summit-8", larger)
    assert efficiency.main(["--system=summit-8", "--models=tsm"]) == 0
    assert (taken[0].image_size, taken[0].num_replicas) == (256, 1)
    capsys.readouterr()


def test_the_last_five_evaluations(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    values = [0.1, 0.74, 0.741, 0.742, 0.743, 0.744]
    lines = [":::MLLOG " + json.dumps({"key": "eval_accuracy", "value": v}) for v in values]
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(["noise", ':::MLLOG {"key": "seed", "value": 1}', *lines]))
    assert last_five.main([str(path)]) == 0
    assert capsys.readouterr().out.startswith("74.20 +- 0.16 %")
    path.write_text("\n".join(lines[:3]))
    assert last_five.main([str(path)]) == 2
    assert "3 evaluations, 5 needed" in capsys.readouterr().err
