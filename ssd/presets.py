"""Defines the presets of the SSD benchmark, and the hyperparameters for its log header. TensorFlow-free.

docs/presets.md says where a preset differs from its source.
Abbreviations in `source`: G6 = mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7, paths start in
their Google/ folders; NV6, NV7 are their NVIDIA/ folders; `mlperf_facts N` = docs/sources.md, mlperf N.
"""

import math
from dataclasses import replace
from typing import Any

from common.config.choices import CROPPED, FLIPPED, SCALED, Rule
from common.config.hardware import Machine
from common.config.optimizer import Sgd
from common.config.presets import later_machines, published, with_names, without_metadata
from common.config.run_length import RunLength
from common.config.schedule import Cosine, Step
from ssd.config import Config, Data


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the log header's [(key, value, metadata)] from `config`, under the keys of its ruleset."""
    optimizer, schedule, run_length = config.optimizer, config.schedule, RunLength.of(config)
    logged = config.details.logged_rate_batch
    factor = config.global_batch_size / logged if logged else 1.0
    warmup = schedule.warmup_length(run_length.steps_per_epoch)
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model_bn_span": config.bn_span,
        "max_samples": config.data.crop_attempts,
        # Rounds to twelve digits, so that the log shows 0.003 for 0.096 / 32.
        "opt_base_learning_rate": float(f"{optimizer.base_learning_rate / factor:.12g}"),
        # The warmup raises the logged base rate by this factor; 0, as in NVIDIA's logs, if the log has the rate for the
        # global batch.
        "opt_learning_rate_warmup_factor": factor if logged else 0.0,
        "opt_learning_rate_warmup_steps": int(warmup),
        "opt_weight_decay": optimizer.weight_decay,
    }
    if schedule.kind == "step":
        pairs["opt_learning_rate_decay_boundary_epochs"] = list(schedule.boundaries)
        if not logged:  # NVIDIA's PyTorch logs have the epochs under this key, too.
            pairs["opt_learning_rate_decay_steps"] = list(schedule.boundaries)
    return without_metadata(pairs)


# Momentum as in TensorFlow 1: the velocity does not contain the rate. The loss decays every variable.
_SGD = Sgd(momentum=0.9, weight_decay=5e-4, skip_kinds=(), scaled_momentum=True)

# --- Round v0.6. The schedules count 120,000 images per epoch. Evaluations come after 120,000 and 160,000 steps of 32
# images, then every 20,000 steps (G6 tpu-v3-2048-ssd/ssd/ssd_constants.py: EVAL_STEPS); a block is a loop of 20,000.
_V06 = Config(
    source="G6 benchmarks/ssd/{name}/run_and_time.sh; mlperf_facts 1.2",
    ruleset="0.6.0",
    replicas="tpu",
    epoch_images=120000,
    eval_epochs=(32.0, 128 / 3),
    epochs_per_block=16 / 3,
    batch_norm_span=64,
    implementation="google",
    space_to_depth=True,
)
_V06_1024 = replace(
    _V06,
    global_batch_size=1024,
    eval_batch_size=1024,
    train_epochs=64.0,
    steps_per_block=625,
    optimizer=replace(_SGD, base_learning_rate=3e-3 * 1024 / 32),
    schedule=Step(warmup_epochs=5.0, warmup_steps=585.0, boundaries=(42.6, 53.3)),
)
_V06_2048 = replace(
    _V06,
    global_batch_size=2048,
    eval_batch_size=2048,
    train_epochs=80.0,
    train_steps=15 * 313,
    steps_per_block=313,
    optimizer=replace(_SGD, base_learning_rate=2.5e-3 * 2048 / 32),
    schedule=Step(warmup_epochs=20.0, warmup_steps=1171.0, boundaries=(56.0, 70.0)),
)

_V06_PRESETS = {
    "tpu-v3-32": replace(
        _V06_1024,
        source="G6 benchmarks/ssd/tpu-v3-32/run_and_time.sh and results/tpu-v3-32/ssd",
        num_replicas=32,
        space_to_depth=False,
    ),
    "tpu-v3-128": replace(_V06_1024, num_replicas=128),
    "tpu-v3-256": replace(_V06_1024, num_replicas=256),
    "tpu-v3-512": replace(_V06_2048, num_replicas=512),
    "tpu-v3-1024": replace(_V06_2048, num_replicas=1024, partitions=4),
    "tpu-v3-2048": replace(_V06_2048, num_replicas=2048, partitions=4),
}

# --- Round v0.7: its rules require evaluations after 40, 50, 55, 60, ... epochs of 118,287 images. Google's code
# evaluates every five epochs. Its runs end with a whole block, so a run of 64 epochs ends after the 65th.
_V07 = Config(
    source="G7 results/{name}-TF/ssd; mlperf_facts 1.2",
    ruleset="0.7.0",
    replicas="tpu",
    epoch_images=118287,
    eval_epochs=(40.0, 50.0),
    epochs_per_block=5.0,
    batch_norm_span=64,
    implementation="google",
    space_to_depth=True,
)
_V07_1024 = replace(
    _V07,
    global_batch_size=1024,
    eval_batch_size=1024,
    train_epochs=64.0,
    train_steps=13 * 578,
    steps_per_block=578,
    optimizer=replace(_SGD, base_learning_rate=3.1e-3 * 1024 / 32),
    schedule=Step(warmup_epochs=5.0, warmup_steps=577.0, boundaries=(40.0, 50.0)),
)

_V100_8 = Config(
    source="NV7 benchmarks/ssd/implementations/pytorch/config_DGX1.sh: batch, rate, decay and warmup; mlperf_facts "
    "4; NV6 results/dgx1_ngc19.05_pytorch/ssd, of the same values: span, max_samples, first drop in epoch 44",
    ruleset="0.7.0",
    replicas="horovod",
    precision="fp16",
    loss_scale=128.0,
    num_replicas=8,
    global_batch_size=960,
    eval_batch_size=1280,
    train_epochs=80.0,
    eval_epochs=(40.0, 50.0),
    epochs_per_block=5.0,
    batch_norm_span=120,
    implementation="nvidia",
    optimizer=replace(_SGD, base_learning_rate=0.0875, weight_decay=1.6e-4),
    schedule=Step(warmup_epochs=5.0, warmup_steps=650.0, boundaries=(44.0, 55.0)),
    data=Data(crop_attempts=1),
)

_V07_PRESETS = {
    "tpu-v4-16": replace(_V07_1024, num_replicas=16),
    "tpu-v4-128": replace(_V07_1024, num_replicas=128),
    "tpu-v4-512": replace(
        _V07,
        num_replicas=512,
        global_batch_size=2048,
        eval_batch_size=2048,
        train_epochs=80.0,
        train_steps=16 * 289,
        steps_per_block=289,
        optimizer=replace(_SGD, base_learning_rate=2.5e-3 * 2048 / 32),
        schedule=Step(warmup_epochs=20.0, warmup_steps=1155.0, boundaries=(56.0, 70.0)),
    ),
    "tpu-v3-8192": replace(
        _V07,
        num_replicas=8192,
        partitions=8,
        global_batch_size=4096,
        eval_batch_size=4096,
        train_epochs=105.0,
        train_steps=21 * 145,
        steps_per_block=145,
        optimizer=replace(_SGD, base_learning_rate=1.25e-3 * 4096 / 32),
        schedule=Step(warmup_epochs=25.0, warmup_steps=721.0, boundaries=(72.0, 90.0)),
    ),
    "v100-8": _V100_8,
    "dgx-1": replace(
        _V100_8,
        source="NV7 benchmarks/ssd/implementations/pytorch/config_DGX1.sh and results/dgx1_ngc20.06_pytorch/ssd",
    ),
    "dgx-2h": replace(
        _V100_8,
        source="NV7 benchmarks/ssd/implementations/pytorch/config_DGX2.sh and results/dgx2h_ngc20.06_pytorch/ssd",
        num_replicas=16,
        global_batch_size=896,
        eval_batch_size=2560,
        batch_norm_span=56,
        optimizer=replace(_SGD, base_learning_rate=0.09, weight_decay=1.3e-4),
    ),
    "dgx-2h-4": replace(
        _V100_8,
        source="NV7 benchmarks/ssd/implementations/pytorch/config_DGX2_multi_4x16x24.sh and "
        "results/dgx2h_n4_ngc20.06_pytorch/ssd",
        num_replicas=64,
        global_batch_size=1536,
        eval_batch_size=2560,
        batch_norm_span=24,
        optimizer=replace(_SGD, base_learning_rate=0.14, weight_decay=1.7e-4),
        schedule=Step(warmup_epochs=5.0, warmup_steps=850.0, boundaries=(44.0, 55.0)),
    ),
    "dgx-2h-64": replace(
        _V100_8,
        source="NV7 benchmarks/ssd/implementations/mxnet/config_DGX2_multi_64x16x02x08.sh and "
        "results/dgx2h_n64_ngc20.06_mxnet/ssd",
        num_replicas=1024,
        global_batch_size=2048,
        eval_batch_size=5120,
        batch_norm_span=16,
        # MXNet's velocity contains the rate, and its code counts a step before it updates.
        optimizer=replace(_SGD, base_learning_rate=0.2925, weight_decay=4e-5, scaled_momentum=False),
        schedule=Step(warmup_epochs=26.0, warmup_steps=1488.0, boundaries=(60.0, 75.0), first_step=1),
    ),
}

# --- Laptop: all backbone layers at a quarter of the width.
_CPU = Config(
    division="open",
    smoke_run=True,
    precision="fp32",
    global_batch_size=8,
    width=16,
    optimizer=replace(_SGD, base_learning_rate=0.03),
)

_CPU_PRESETS = {
    # The generated data set; takes minutes.
    "cpu-tiny": replace(
        _CPU,
        source="this repository: tuned for two CPU cores on the set that ssd/tiny.py generates",
        num_train_examples=1960,
        num_eval_examples=301,
        eval_batch_size=50,
        train_epochs=12.0,
        epochs_per_block=2.0,
        eval_epochs=(4.0,),
        image_size=96,
        num_classes=5,
        network="tiny",
        schedule=Cosine(warmup_epochs=1.0, end_learning_rate=0.0),
        data=Data(shuffle_buffer=2000, max_boxes=8, crop_sides=(0.7, 1.0), contrast=0.2),
    ),
    # Nuclei in microscope images, 7 to 22 of 256 pixels wide (../maskrcnn/README.md). The target, 0.9, is out of reach,
    # so the run trains all of the schedule.
    "cpu-nuclei": replace(
        _CPU,
        source="this repository, for the 2018 Data Science Bowl's nuclei (lab/studies/nuclei.py of commit a49c1d6d)",
        num_train_examples=271,
        num_eval_examples=63,
        eval_batch_size=21,
        train_epochs=40.0,
        epochs_per_block=10.0,
        quality_target=0.9,
        image_size=384,
        num_classes=2,
        network="small_objects",
        schedule=Cosine(warmup_epochs=2.0, end_learning_rate=0.0),
        data=Data(shuffle_buffer=271, max_boxes=101, crop_sides=(0.5, 1.0)),
    ),
}

_PUBLISHED = published({**_V06_PRESETS, **_V07_PRESETS})
PRESETS: dict[str, Config] = with_names(
    {**_CPU_PRESETS, **_PUBLISHED, **later_machines(_PUBLISHED, ("batch 1024", "batch 1024", "batch 960"))}
)


def _anchor_classes(config: Config) -> int:
    """Returns the number of an image's scores: anchors times classes."""
    cells = zip(config.sizes.per_cell, config.feature_sizes, strict=True)
    return config.num_classes * sum(number * size * size for number, size in cells)


def _area(config: Config) -> float:
    return (config.image_size / 384) ** 2 * config.width / 16


def _example_bytes(config: Config) -> float:
    """Estimates the bytes of a training image (measured with cpu-nuclei, 2 and 1,201 classes)."""
    return 5e7 * _area(config) + 13 * _anchor_classes(config)


# CLASSES of common/detection/nms.py, which presets cannot import, as it needs TensorFlow; a test compares them.
SUPPRESSED_AT_ONCE = 128


def _eval_bytes(config: Config) -> float:
    """Estimates the memory per image of an evaluation, in bytes (as `_example_bytes`; 201 classes too)."""
    suppressed = min(config.num_classes, SUPPRESSED_AT_ONCE)
    return 1e7 * _area(config) + 9 * _anchor_classes(config) + 3.4e5 * suppressed


def _weight_bytes(config: Config) -> float:
    """Returns the bytes of the heads' weights, gradients and momenta: 3 x 3 kernels for each class."""
    channels = sum(n * c for n, c in zip(config.sizes.per_cell, (4, 8, 8, 4, 4, 4))) * config.width
    return 3 * 4 * 9 * channels * config.num_classes


def _reading(config: Config, _: Machine, __: int) -> dict[str, tuple[Any, str]]:
    return {"data.shuffle_buffer": (min(config.num_train_examples, 2048), "all examples, at most 2048")}


# (Classes of objects, rate for 8 images): cpu-nuclei's; the best of three on 135 generated pictures of three kinds of
# cells (box mAP after 10 epochs: 0.006 at 0.03, 0.010 at 0.015, 0.024 at 0.005; after 30: 0.065 at 0.03, 0.127 at
# 0.005); the reference's for COCO, 2.5e-3 for 32 images (REF ssd-v1/train.py).
_RATES = ((1, 0.03), (3, 0.005), (80, 2.5e-3 * 8 / 32))


def _rate(classes: int) -> float:
    """Returns the rate for a number of classes of objects: a power of it between two of _RATES, constant beyond."""
    classes = min(max(classes, _RATES[0][0]), _RATES[-1][0])
    (low, first), (high, last) = next(pair for pair in zip(_RATES, _RATES[1:]) if classes <= pair[1][0])
    return first * (last / first) ** (math.log(classes / low) / math.log(high / low))


def _rate_part(config: Config, base: Config) -> tuple[float, str]:
    """Returns the part of the preset's rate that suits more classes than the preset's."""
    ours, before = config.num_classes - 1, base.num_classes - 1
    return (_rate(ours) / _rate(before), f"{ours} classes") if ours > before else (1.0, "")


HERE = Rule(
    preset="cpu-nuclei",
    example_bytes=_example_bytes,
    eval_bytes=_eval_bytes,
    weight_bytes=_weight_bytes,
    gpu_batch=64,
    choices=_reading,
    rate_part=_rate_part,
    weights={"width": 64},
    enough=(200, 2000),
    background=1,
    notes={"image_size": SCALED, "data.flip": FLIPPED, "data.crop_sides": CROPPED},
)
