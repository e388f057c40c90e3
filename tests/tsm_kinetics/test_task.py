"""Tests the task: averages over views, counting, accumulation, initial weights, the three efficiencies."""

import dataclasses
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.distributed.replicas.mirrored import Mirrored
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.train import step as steps
from common.train.classification import top_k_sums
from tests.benchmarks import line
from tsm_kinetics import efficiency, last_five, model, pretrained
from tsm_kinetics.config import MODELS, Config, Data
from tsm_kinetics.presets import PRESETS
from tsm_kinetics.task import Task

SMALL = Config(
    precision="fp64", image_size=32, num_classes=5, width=8, blocks=(1, 1, 1, 1), num_frames=4,
    global_batch_size=4, eval_batch_size=4, num_train_examples=8, num_eval_examples=6,
    optimizer=PRESETS["summit-8"].optimizer, schedule=PRESETS["summit-8"].schedule,
    data=Data(window=8, eval_clips=2, eval_crops=3, eval_short_side=40, eval_size=36),
)  # fmt: skip


def frames(count: int, views: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, [count, 4 * views, size, size, 3], np.uint8)


def test_a_video_s_score_is_the_mean_softmax_of_its_views() -> None:
    task = Task(SMALL, None)
    network = task.build(Single(), precision("fp64"))
    videos = frames(3, 6, 36)
    actual = task.scores(network, tf.constant(videos))
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    for one, video in zip(actual, videos):
        views = video.reshape(6, 4, 36, 36, 3) / 255
        softmax = [tf.nn.softmax(network((view[None] - mean) / deviation))[0] for view in views]
        np.testing.assert_allclose(one, np.mean(softmax, axis=0), rtol=1e-8)


def test_ties_with_the_fifth_score_do_not_count() -> None:
    """A dead network, whose scores are all equal, is right by chance: five classes of eight here."""
    labels = tf.constant([*range(8), -1])
    batch = {"label": labels, "weight": tf.cast(labels >= 0, tf.float32)}
    scores = tf.tensor_scatter_nd_update(tf.zeros([9, 8]), [[7, 7], [6, 0]], [1.0, float("nan")])
    sums = top_k_sums(scores, batch)
    assert (int(sums["correct_top5"]), int(sums["seen"])) == (6, 8)
    assert int(top_k_sums(tf.zeros([9, 8]), batch)["correct_top5"]) == 5


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
    totals = dict.fromkeys(("correct", "correct_top5", "seen", "confused"), 0)
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
                totals[key] += value.numpy()
    counted = np.zeros([SMALL.num_classes] * 2, int)
    np.add.at(counted, (labels, best), 1)
    np.testing.assert_array_equal(totals.pop("confused"), counted)
    assert totals == {"correct": int(np.sum(best == labels)), "correct_top5": 6, "seen": 6}
    quality = task.quality(totals, {})
    assert quality.value == totals["correct"] / 6 and quality.details["top5"] == 1
    with pytest.raises(ValueError, match="5 videos seen, 6 expected"):
        task.quality({**totals, "seen": 5}, {})


def stepped(config: Config, batch: dict[str, tf.Tensor], replicas: object = None) -> list[np.ndarray]:
    """The weights after one training step on `batch`."""
    policy, task = precision(config.precision), Task(config, None)
    state = steps.State(task, replicas or Single(), policy)
    train_step = steps.make_train_step(task, state, RunLength.of(config))
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
    for actual in others:
        for a, b in zip(actual, want):
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
    actual = tf.nn.conv3d(tf.pad(x, [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]]), inflated, [1] * 5, "VALID")
    want = tf.nn.conv2d(x[:, 0], kernel, 1, "VALID")
    for t in (1, 2, 3):
        np.testing.assert_allclose(actual[:, t], want, rtol=1e-8)


def test_communication_is_latency_and_size_over_bandwidth() -> None:
    link = 1e-5, 1e9
    assert efficiency.communication_seconds(1e8, 1, *link) == 0
    # Two nodes: each sends half, twice.
    assert efficiency.communication_seconds(1e8, 2, *link) == pytest.approx(2e-5 + 0.1)
    assert efficiency.communication_seconds(1e8, 8, *link) == pytest.approx(14e-5 + 14 / 8 * 0.1)
    assert efficiency.scalability(0.3, 1e8, 2, *link) == pytest.approx(0.3 / (0.3 + 0.10002))


def test_the_command_prints_table_1_and_the_scalability_of_the_paper_s_rates(
    capsys: pytest.CaptureFixture,
) -> None:
    """Figure 3c: TSM scales further than I3D 3x3x3, which has 1.9 times the gradients."""
    assert efficiency.main(["--models=tsm,i3d_3x3x3", "--bandwidth=1.25e9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| tsm | 8 x 224 x 224 x 3 | 32.7 (33.0) | 24.3 (24.3) | 27.15 (27.40)" in lines[2]
    tsm, i3d = ([float(cell) for cell in line.split("|")[2:-1]] for line in lines[-2:])
    assert tsm[0] == i3d[0] == 1 and all(a > b for a, b in zip(tsm[1:], i3d[1:]))


def test_the_command_measures_small_networks(capsys: pytest.CaptureFixture) -> None:
    flags = ["--system=cpu-tiny", "--batch_size=2", "--steps=1", "--measure"]
    assert efficiency.main([*flags, "--models=tsm,i3d_3x1x1"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "i3d_3x1x1" in line]
    assert rows[0][1] == "32 x 32 x 32 x 3" and float(rows[0][5].split()[0]) > 0 and len(rows) == 2
    assert efficiency.main(["--models=slowfast"]) == 2
    assert "error: --models=slowfast: unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--steps=0", "--steps=0: must be at least 1"),
        ("--batch_size=0", "--batch_size=0: must be at least 1"),
        ("--clips_per_device=-1", "--clips_per_device=-1: must be at least 1"),
        ("--image_size=-1", "--image_size=-1: must be at least 0"),
        (
            "--latency=nan",
            "--latency=nan, --bandwidth=25000000000.0: must be at least 0, above 0, and finite",
        ),
        ("--bandwidth=0", "--latency=1.5e-06, --bandwidth=0.0: must be"),
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


def test_the_last_five_evaluations(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    values = [0.1, 0.74, 0.741, 0.742, 0.743, 0.744]
    lines = [line("eval_accuracy", value) for value in values]
    path = tmp_path / "result_0.txt"
    path.write_text("".join(["noise\n", line("seed", 1), *lines]))
    assert last_five.main([str(path)]) == 0
    assert capsys.readouterr().out.startswith("74.20 +- 0.16 %")
    for content, message in (("".join(lines[:3]), "3 evaluations, 5 needed"), (lines[0][:40], "line 1: ")):
        path.write_text(content)
        assert last_five.main([str(path)]) == 2
        assert message in capsys.readouterr().err
