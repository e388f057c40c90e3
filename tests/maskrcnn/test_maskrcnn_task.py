"""Tests the task's quality from an evaluation's arrays, COCO photographs, and every preset: valid and as published."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from common.config.run_length import RunLength
from common.detection import convert, drawing, masks
from common.distributed.replicas.base import Shard
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.optim import schedules
from common.train.state import State
from common.train.step import make_eval_step, make_train_step
from lab.studies.data import unpack
from maskrcnn import tiny
from maskrcnn.config import Config
from maskrcnn.presets import PRESETS
from maskrcnn.task import Task
from tests.benchmarks import assert_the_header_follows, check_all, header

CELLS = 256  # Cells per side of an oracle's masks: at least twice the pixels of any image.


@pytest.fixture(scope="module")
def truth(tmp_path_factory) -> tuple[pathlib.Path, dict]:
    """A folder with the annotations of 20 drawn pictures, and their content."""
    folder = tmp_path_factory.mktemp("truth")
    content, _ = drawing.annotations(dataclasses.replace(tiny.TINY, eval_images=20, crowds=0.4), "val")
    assert any(a["iscrowd"] for a in content["annotations"])
    (folder / "instances_val2017.json").write_text(json.dumps(content))
    return folder, content


def oracle(content: dict, padding: int = 4) -> dict[str, np.ndarray]:
    """Padded output arrays of a network that predicts the ground truth, crowds excepted."""
    rows, most = len(content["images"]) + padding, tiny.TINY.most
    arrays = {
        "image_id": np.array([i["id"] for i in content["images"]] + [-1] * padding),
        "weight": np.array([1.0] * (rows - padding) + [0.0] * padding),
        "boxes": np.ones([rows, most, 4], np.float32),
        "scores": np.zeros([rows, most], np.float32),
        "classes": np.zeros([rows, most], np.int32),
        "masks": np.zeros([rows, most, CELLS, CELLS], np.float16),
    }
    arrays["scores"][-padding:] = 1
    for row, image in enumerate(content["images"]):
        items = [a for a in content["annotations"] if a["image_id"] == image["id"] and not a["iscrowd"]]
        for column, item in enumerate(items):
            x, y, w, h = item["bbox"]
            size = np.array([image["height"], image["width"]] * 2)
            arrays["boxes"][row, column] = [y, x, y + h, x + w] / size
            arrays["scores"][row, column] = 0.9
            arrays["classes"][row, column] = item["category_id"]
            whole, places = masks.decode(item["segmentation"], *size[:2]), (np.arange(CELLS) + 0.5) / CELLS
            cut = whole[(y + places * h).astype(int)][:, (x + places * w).astype(int)]
            arrays["masks"][row, column] = cut
    return arrays


def test_an_oracle_reaches_both_targets(truth):
    folder, content = truth
    quality = Task(PRESETS["cpu-tiny"], str(folder)).quality({}, oracle(content))
    assert quality.value == {"BBOX": pytest.approx(1.0), "SEGM": pytest.approx(1.0)} and quality.reached
    assert quality.details["SEGM_AP75"] == pytest.approx(1.0)


def test_both_targets_must_be_met_by_one_evaluation(truth):
    folder, content = truth
    task = Task(PRESETS["cpu-tiny"], str(folder))
    arrays = oracle(content)
    arrays["masks"] = 1 - arrays["masks"]
    quality = task.quality({}, arrays)
    assert quality.value["BBOX"] == pytest.approx(1.0) and quality.value["SEGM"] < 0.1 and not quality.reached
    arrays = oracle(content)
    # Another box around the same pixels.
    arrays["boxes"][:, :, 2:] += 0.4
    arrays["masks"][:] = 1
    assert not task.quality({}, arrays).reached


def test_images_are_counted_once(truth):
    folder, content = truth
    arrays = oracle(content)
    arrays["image_id"][3] = arrays["image_id"][4]
    with pytest.raises(ValueError, match="20 images seen, 19 of them different, 1 missing"):
        Task(PRESETS["cpu-tiny"], str(folder)).quality({}, arrays)


def test_a_missing_backbone_is_one_line():
    config = dataclasses.replace(PRESETS["v100-8"], backbone="no-such.npz")
    with pytest.raises(UserError, match="config.backbone=no-such.npz: no such file; see maskrcnn/README.md"):
        Task(config, "unused").check_input()


@pytest.mark.e2e
def test_photographs_train_and_are_evaluated(tmp_path):
    """Conversion with masks, batches of both orientations, steps, evaluation of 80 categories and crowds."""
    try:
        source = unpack("coco200")
    except UserError as error:
        pytest.skip(str(error))
    arguments = [str(tmp_path), "--masks", "--workers=1", "--train_shards=3", "--val_shards=2"]
    for split in ("train", "val"):
        arguments += [
            f"--{split}={source / 'images'}",
            f"--{split}_annotations={source / f'instances_{split}2017_100.json'}",
        ]
    assert convert.main(arguments) == 0
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], num_classes=91, num_train_examples=100, num_eval_examples=100,
        eval_batch_size=20, backbone_width=4, max_instances=100,
    )  # fmt: skip
    config.validate()
    task, replicas, policy = Task(config, str(tmp_path)), Single(), precision("fp32")
    check_all(task)
    state = State(task, replicas, policy)
    train = tf.function(make_train_step(task, state, RunLength.of(config)), autograph=False)
    evaluate = tf.function(make_eval_step(task, state), autograph=False)

    def static(batch: dict) -> dict:
        return {name: tf.constant(x.numpy()) for name, x in batch.items()}

    shapes, losses = set(), []
    for step, batch in enumerate(task.train_input(Shard(), 4, 0).take(6)):
        shapes.add(tuple(batch["image"].shape[1:3]))
        losses.append(float(train(static(batch), tf.constant(step, tf.int64))))
    assert np.isfinite(losses).all() and shapes == set(config.shapes)
    outputs = [evaluate(static(batch))[1] for batch in task.eval_input(Shard(), 20)]
    arrays = {name: np.concatenate([o[name] for o in outputs]) for name in outputs[0]}
    assert len(arrays["weight"]) == 120 and arrays["weight"].sum() == 100
    quality = task.quality({}, arrays)
    assert all(0 <= value < 0.1 for value in quality.value.values())


NAMES = list(PRESETS)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("tpu-v3", "tpu-v4"))])
def test_every_block_is_an_epoch(name: str) -> None:
    """16, 20 or 30 epochs of 924 or 462 steps (docs/sources.md, mlperf 1.3)."""
    config, run_length = PRESETS[name], RunLength.of(PRESETS[name])
    assert run_length.steps_per_block == 924 * 128 // config.global_batch_size
    assert run_length.train_steps == config.train_epochs * run_length.steps_per_block
    blocks = list(run_length.intervals())
    assert [block.last_epoch for block in blocks] == list(range(1, len(blocks) + 1))
    assert config.freeze and config.batch_norm == "frozen" and config.batch_norm_epsilon == 1e-4


def test_cpu_tiny_s_rate_is_that_of_seven_epochs_whatever_its_length() -> None:
    def rates(config: Config) -> list[float]:
        rate = schedules.run_learning_rate(config, RunLength.of(config))
        return rate(tf.range(2500, dtype=tf.int64)).numpy().tolist()

    config = PRESETS["cpu-tiny"]
    whole = dataclasses.replace(config.schedule, train_epochs=0.0)
    assert config.train_epochs == 5.0
    assert rates(config) == rates(dataclasses.replace(config, train_epochs=7.0, schedule=whole))
    assert rates(config) == rates(dataclasses.replace(config, train_epochs=2.0))


@pytest.mark.parametrize("name", NAMES)
def test_no_full_size_preset_keeps_the_records_in_memory(name: str) -> None:
    assert PRESETS[name].data.cache == ("encoded" if name.startswith("cpu-") else "none")


def test_header_follows_the_configuration() -> None:
    assert_the_header_follows(
        PRESETS["v100-8"],
        ("global_batch_size", "64", "global_batch_size"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("schedule.warmup_steps", "7", "opt_learning_rate_warmup_steps"),
        ("schedule.factor", "0.5", "opt_learning_rate_decay_factor"),
        ("short_side", "700", "min_image_size"),
        ("long_side", "1200", "max_image_size"),
    )
    assert header(PRESETS["v100-8"], "network", "tiny")["num_image_candidates"] == 50


def test_rows_of_gpus_have_the_reference_s_losses_and_initial_values() -> None:
    """NVIDIA's rates belong to them: NV7 maskrcnn_benchmark/modeling/rpn/loss.py, roi_heads/box_head/loss.py."""
    for name, config in PRESETS.items():
        gpu = name.startswith(("v100", "dgx", "h100", "h200", "b200"))
        assert config.details.loss_divisors == ("sampled" if gpu else "positives"), name
        assert config.details.uniform_initializer == ("fan_in" if gpu else "fan_avg"), name
        assert config.details.rpn_inside == gpu, name
