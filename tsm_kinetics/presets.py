"""Presets of the video benchmark, and what of a configuration is logged. TensorFlow-free.

Paper = "Training Kinetics in 15 Minutes: Large-scale Distributed Training on Videos", section 4 and Table 3;
docs/tsm_kinetics-presets.md lists what it leaves open and what was chosen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.config.clock import Clock
from common.config.schema import Optimizer, Schedule
from tsm_kinetics.config import Config, Data

RATE_OF_8_CLIPS = 0.00125  # Paper 4.1: "0.00125 for every 8 samples", scaled linearly.
GPUS_PER_NODE = 6  # A Summit node: paper 4.1.


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """What the log's header says about the run: [(key, value, metadata)], read from `config`."""
    optimizer, schedule = config.optimizer, config.schedule
    warmup = schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch)
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model": config.model,
        "train_epochs": config.train_epochs,
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": warmup,
        "opt_learning_rate_schedule": schedule.kind,
        "opt_weight_decay": optimizer.weight_decay,
        "frames": config.frames,
        "accumulation_steps": config.accumulation_steps,
        "model_bn_span": config.micro_batch_size,
        "eval_views": config.views,
    }
    if optimizer.has_momentum:
        pairs["opt_momentum"] = optimizer.momentum
    if config.data.modality != "rgb":
        pairs["modality"] = config.data.modality
    if config.model == "tsm":
        pairs |= {"shift_fraction": config.shift_fraction, "online": config.online}
    return [(key, value, {}) for key, value in pairs.items()]


# PyTorch's SGD keeps v = m v + (g + wd w) and steps by lr v: scaled momentum. Paper: weight decay 1e-4, none on batch
# norm and bias, cosine with 5 epochs of warmup, 100 epochs; momentum .9: mit-han-lab/temporal-shift-module.
_BASE = Config(
    precision="fp32",
    replicas="horovod",
    optimizer=Optimizer(
        name="sgd", base_learning_rate=RATE_OF_8_CLIPS, momentum=0.9, weight_decay=1e-4, scaled_momentum=True
    ),
    schedule=Schedule(kind="cosine", warmup_epochs=5.0, end_learning_rate=0.0),
)


def _summit(nodes: int, batch: int, row: str, accumulation_steps: int = 1) -> Config:
    """A row of Table 3 on so many nodes."""
    replicas = nodes * GPUS_PER_NODE
    return replace(
        _BASE,
        hardware=f"summit-{nodes}",
        source=f"Paper, Table 3: {row}",
        num_replicas=replicas,
        global_batch_size=batch,
        accumulation_steps=accumulation_steps,
        eval_batch_size=replicas,
        optimizer=replace(_BASE.optimizer, base_learning_rate=batch / 8 * RATE_OF_8_CLIPS),
    )


_SUMMIT = {
    "summit-1": _summit(1, 96, "6 GPUs, 74.12 +- 0.11 %, 49 h 55 m"),
    "summit-8": _summit(8, 384, "48 GPUs, 74.12 +- 0.08 %, 7 h 7 m"),
    "summit-16": _summit(16, 768, "96 GPUs, 74.18 +- 0.14 %, 3 h 38 m"),
    "summit-32": _summit(32, 1536, "192 GPUs, 74.14 +- 0.10 %, 1 h 50 m"),
    "summit-64": _summit(64, 3072, "384 GPUs, 74.10 +- 0.08 %, 55 m 56 s"),
    "summit-128": _summit(128, 6144, "768 GPUs, 73.99 +- 0.04 %, 28 m 14 s"),
    "summit-256": _summit(256, 12288, "1536 GPUs, 73.99 +- 0.07 %, 14 m 13 s"),
    "summit-384": _summit(384, 18432, "2304 GPUs, 72.52 +- 0.07 %, 10 m 9 s"),
    "summit-512": _summit(512, 24576, "3072 GPUs, 69.80 +- 0.13 %, of which the paper simulated this batch"),
    "summit-1024": _summit(
        1024, 49152, "6144 GPUs, 62.22 +- 0.17 %, of which the paper simulated this batch"
    ),
    # The simulations: the paper does not say on how many nodes; these are the largest that kept the accuracy.
    "summit-256-batch-24576": _summit(256, 24576, "69.80 +- 0.13 %, by accumulation", accumulation_steps=2),
    "summit-256-batch-49152": _summit(256, 49152, "62.22 +- 0.17 %, by accumulation", accumulation_steps=4),
}

# --- A laptop, minutes: the generated videos of tsm_kinetics/tiny.py, whose classes are directions of motion.
_CPU_TINY = replace(
    _BASE,
    source="this repository: chosen for two CPU cores on the set that tsm_kinetics/tiny.py generates",
    division="open",
    smoke_run=True,
    replicas="single",
    num_train_examples=640,
    num_eval_examples=203,
    global_batch_size=16,
    eval_batch_size=16,
    train_epochs=16.0,
    epochs_per_block=2.0,
    image_size=32,
    num_classes=4,
    width=16,
    blocks=(1, 1, 1, 1),
    optimizer=replace(_BASE.optimizer, base_learning_rate=0.05),
    schedule=replace(_BASE.schedule, warmup_epochs=1.0),
    # A flip would turn left into right.
    data=Data(window=8, scales=(1.0, 0.9), flip=False, eval_clips=2, eval_short_side=36, eval_size=32),
)

# --- Real videos on a laptop: ten classes of UCF101, from scratch (make study STUDY=ucf101).
_CPU_UCF101 = replace(
    _CPU_TINY,
    source="this repository: sized for two CPU cores, on ten classes of UCF101",
    precision="bf16",
    num_train_examples=528,
    num_eval_examples=212,
    eval_batch_size=8,
    train_epochs=60.0,
    epochs_per_block=10.0,
    quality_target=0.45,
    image_size=64,
    num_classes=10,
    optimizer=Optimizer(name="adam", base_learning_rate=0.001, epsilon=1e-8),
    schedule=replace(_BASE.schedule, warmup_epochs=5.0),
    # So few clips can be told by their grounds, and a network that sees them learns these (tuning.md).
    data=Data(
        window=16, modality="rgb_difference", jitter=0.4, eval_clips=4, eval_short_side=72, eval_size=64
    ),
)

PRESETS: dict[str, Config] = {
    name: replace(config, system=name)
    for name, config in {"cpu-tiny": _CPU_TINY, "cpu-ucf101": _CPU_UCF101, **_SUMMIT}.items()
}
