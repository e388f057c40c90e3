"""Defines the presets of the Mask R-CNN benchmark, and the hyperparameters for its log header. TensorFlow-free.

docs/presets.md says where a preset differs from its source.
Abbreviations in `source`: G6 = mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7, paths start in
their Google/ folders; NV7 is the NVIDIA/ folder of G7; `mlperf_facts N` = docs/sources.md, mlperf N.
"""

from dataclasses import replace
from typing import Any

from common.config.choices import FLIPPED, SCALED, Rule
from common.config.optimizer import Sgd
from common.config.presets import later_machines, published, with_names, without_metadata
from common.config.run_length import RunLength
from common.config.schedule import Cosine, Step
from maskrcnn.config import Config, Data


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the log header's [(key, value, metadata)] from `config`, under the keys of its ruleset."""
    optimizer, schedule, run_length = config.optimizer, config.schedule, RunLength.of(config)
    warmup = schedule.warmup_length(run_length.steps_per_epoch)
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_steps": int(warmup),
        # Rate increase per warmup step, as in Google's and NVIDIA's v0.7 logs.
        "opt_learning_rate_warmup_factor": (
            float(f"{(optimizer.base_learning_rate - schedule.warmup_start) / warmup:.12g}")
            if warmup
            else 0.0
        ),
        "num_image_candidates": config.sizes.rpn_post_nms,
    }
    if config.ruleset != "0.6.0":
        pairs |= {"min_image_size": config.short_side, "max_image_size": config.long_side}
        if schedule.kind == "step":
            drops = [round(epoch * run_length.steps_per_epoch) for epoch in schedule.boundaries]
            pairs |= {
                "opt_learning_rate_decay_factor": schedule.factor,
                "opt_learning_rate_decay_steps": drops,
            }
    return without_metadata(pairs)


# Momentum as in TensorFlow 1: the velocity does not contain the rate. As in Detectron, only kernels decay, and biases
# have twice the rate.
_SGD = Sgd(
    momentum=0.9,
    weight_decay=1e-4,
    skip_kinds=("norm", "bias"),
    scaled_momentum=True,
    bias_gradient_factor=2.0,
)


def _drops(warmup_steps: float, steps: tuple[int, int], batch: int, images: int) -> Step:
    """Returns the schedule of a warmup and two drops, all published in steps."""
    boundaries = tuple(step * batch / images for step in steps)
    return Step(warmup_epochs=0.0, warmup_steps=warmup_steps, boundaries=boundaries)


# --- Round v0.6.
_V06 = Config(
    implementation="google",
    roi_samples=1,
    source="G6 benchmarks/mask/{name}/run_and_time.sh; mlperf_facts 1.3",
    ruleset="0.6.0",
    replicas="tpu",
    global_batch_size=128,
    train_epochs=16.0,
    train_steps=16 * 924,
    steps_per_block=924,
    optimizer=replace(_SGD, base_learning_rate=0.16),
    schedule=_drops(1000.0, (9750, 13000), 128, 118287),
)

_V06_PRESETS = {
    "tpu-v3-32": replace(_V06, num_replicas=32, eval_batch_size=256),
    "tpu-v3-128": replace(_V06, num_replicas=128, partitions=4, eval_batch_size=128),
    "tpu-v3-256": replace(_V06, num_replicas=256, partitions=4, eval_batch_size=256),
}

# --- Round v0.7.
_V07_128 = Config(
    implementation="google",
    ruleset="0.7.0",
    replicas="tpu",
    global_batch_size=128,
    eval_batch_size=128,
    train_epochs=20.0,
    train_steps=20 * 924,
    steps_per_block=924,
    optimizer=replace(_SGD, base_learning_rate=0.16),
    schedule=_drops(1000.0, (9750, 13000), 128, 118287),
)
_V07_256 = Config(
    implementation="google",
    source="G7 results/{name}-TF/maskrcnn; mlperf_facts 1.3",
    ruleset="0.7.0",
    replicas="tpu",
    global_batch_size=256,
    eval_batch_size=256,
    train_epochs=20.0,
    train_steps=20 * 462,
    steps_per_block=462,
    optimizer=replace(_SGD, base_learning_rate=0.24),
    schedule=_drops(2000.0, (6000, 8000), 256, 118287),
)

# The warmup takes one amount off the rates of kernels and biases.
_NVIDIA_SGD = Sgd(
    momentum=0.9,
    weight_decay=1e-4,
    skip_kinds=("norm", "bias"),
    scaled_momentum=True,
    bias_gradient_factor=2.0,
    one_warmup_delta=True,
)

_V100_8 = Config(
    source="NV7 benchmarks/maskrcnn/implementations/pytorch/config_DGX1.sh; mlperf_facts 4",
    ruleset="0.7.0",
    replicas="horovod",
    precision="fp16",
    loss_scale=128.0,
    implementation="nvidia",
    num_replicas=8,
    num_train_examples=117266,
    global_batch_size=48,
    eval_batch_size=8,
    train_epochs=20.0,
    optimizer=replace(_NVIDIA_SGD, base_learning_rate=0.06),
    schedule=_drops(625.0, (24000, 32000), 48, 117266),
    data=Data(skip_empty=True),
)

_V07_PRESETS = {
    "tpu-v4-16": replace(
        _V07_128, source="G7 results/tpu-v4-16-TF/maskrcnn; mlperf_facts 1.3", num_replicas=16
    ),
    "tpu-v4-128": replace(_V07_256, num_replicas=64, schedule=_drops(1800.0, (5625, 7500), 256, 118287)),
    "tpu-v4-512": replace(_V07_256, num_replicas=512, partitions=8),
    "tpu-v3-1024": replace(
        _V07_256,
        num_replicas=1024,
        partitions=8,
        eval_batch_size=512,
        train_epochs=30.0,
        train_steps=30 * 462,
    ),
    "v100-8": _V100_8,
    "dgx-1": replace(
        _V100_8,
        source="NV7 benchmarks/maskrcnn/implementations/pytorch/config_DGX1.sh and "
        "results/dgx1_ngc20.06_pytorch/maskrcnn",
    ),
    "dgx-2h": replace(
        _V100_8,
        source="NV7 benchmarks/maskrcnn/implementations/pytorch/config_DGX2.sh and "
        "results/dgx2h_ngc20.06_pytorch/maskrcnn",
        num_replicas=16,
        global_batch_size=96,
        eval_batch_size=16,
        optimizer=replace(_NVIDIA_SGD, base_learning_rate=0.12),
        schedule=_drops(625.0, (12000, 16000), 96, 117266),
    ),
    "dgx-2h-4": replace(
        _V100_8,
        source="NV7 benchmarks/maskrcnn/implementations/pytorch/config_DGX2_multi_4x16x2.sh and "
        "results/dgx2h_n4_ngc20.06_pytorch/maskrcnn",
        num_replicas=64,
        global_batch_size=128,
        eval_batch_size=64,
        optimizer=replace(_NVIDIA_SGD, base_learning_rate=0.16),
        schedule=_drops(625.0, (9000, 12000), 128, 117266),
    ),
    "dgx-2h-16": replace(
        _V100_8,
        source="NV7 benchmarks/maskrcnn/implementations/pytorch/config_DGX2_multi.sh and "
        "results/dgx2h_n16_ngc20.06_pytorch/maskrcnn",
        num_replicas=256,
        global_batch_size=256,
        eval_batch_size=256,
        optimizer=replace(_NVIDIA_SGD, base_learning_rate=0.24),
        schedule=replace(
            _drops(1800.0, (5625, 7500), 256, 117266),
            initial_learning_rate=0.24 - 1800 * 0.000133,  # Their delta per step has six decimals.
        ),
    ),
}

# --- Laptop: all backbone layers at a quarter of the width.
_CPU = Config(
    division="open",
    smoke_run=True,
    precision="fp32",
    global_batch_size=4,
    backbone_width=16,
    batch_norm="span",
    eval_workers=1,
    data=Data(cache="encoded"),
)

_CPU_PRESETS = {
    # The generated data set; takes minutes.
    "cpu-tiny": replace(
        _CPU,
        source="this repository: tuned for two CPU cores on the set that maskrcnn/tiny.py generates",
        num_train_examples=2000,
        num_eval_examples=101,
        eval_batch_size=10,
        train_epochs=5.0,
        short_side=64,
        long_side=96,
        num_classes=12,
        max_instances=8,
        network="tiny",
        optimizer=replace(_SGD, base_learning_rate=0.01, clip_norm=5.0),
        # The rate curve spans seven epochs; a run of five catches the faults described in README.md.
        schedule=Cosine(warmup_epochs=0.25, train_epochs=7.0, end_learning_rate=0.0),
    ),
    # Nuclei in microscope images, 7 to 22 pixels wide (README.md). The targets, 0.9, are out of reach, so
    # the run trains all of the schedule.
    "cpu-nuclei": replace(
        _CPU,
        source="this repository, for the 2018 Data Science Bowl's nuclei (lab/studies/nuclei.py of commit a49c1d6d)",
        num_train_examples=271,
        num_eval_examples=63,
        eval_batch_size=9,
        train_epochs=16.0,
        epochs_per_block=4.0,
        quality_target=0.9,
        mask_quality_target=0.9,
        short_side=256,
        long_side=256,
        num_classes=2,
        max_instances=101,
        network="small_objects",
        optimizer=replace(_SGD, base_learning_rate=0.02, clip_norm=5.0),
        schedule=Cosine(warmup_epochs=1.0, end_learning_rate=0.0),
    ),
}

_PUBLISHED = published({**_V06_PRESETS, **_V07_PRESETS})
PRESETS: dict[str, Config] = with_names(
    {**_CPU_PRESETS, **_PUBLISHED, **later_machines(_PUBLISHED, ("batch 128", "batch 128", "batch 48"))}
)


def _example_bytes(config: Config) -> float:
    """Estimates the memory per training image, in bytes (measured with cpu-nuclei)."""
    height, width = config.padded_size
    return 1.2e8 * height * width / 256**2 * max(config.sizes.fpn_channels / 64, config.backbone_width / 16)


def _eval_bytes(config: Config) -> float:
    """Estimates the memory per image of an evaluation, in bytes: as in training, and corners for each class.

    Eight float32 tensors [proposals, classes, 4] is a count, not a measurement.
    """
    return _example_bytes(config) + 8 * 16 * config.sizes.rpn_post_nms * config.num_classes


HERE = Rule(
    preset="cpu-nuclei",
    example_bytes=_example_bytes,
    eval_bytes=_eval_bytes,
    gpu_batch=8,
    weights={"backbone_width": 64},
    enough=(200, 1000),
    background=1,
    notes={"short_side": SCALED, "data.flip": FLIPPED},
)
