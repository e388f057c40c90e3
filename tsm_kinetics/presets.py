"""Defines the presets of the video benchmark, and the hyperparameters for its log header. TensorFlow-free.

Paper = "Training Kinetics in 15 Minutes: Large-scale Distributed Training on Videos", section 4 and Table 3.
docs/presets.md lists the values that the paper leaves open and our choices for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.config.automatic import FLIPPED, SCALED, Rule
from common.config.optimizer import Adam, Sgd
from common.config.presets import momentum_key, named, solver_keys, without_metadata
from common.config.schema import Schedule
from tsm_kinetics.config import Config, Data


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the hyperparameters for the log header: [(key, value, metadata)], read from `config`."""
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model": config.model,
        "train_epochs": config.train_epochs,
        **solver_keys(config),
        "opt_weight_decay": config.optimizer.weight_decay,
        "frames": config.frames,
        "accumulation_steps": config.accumulation_steps,
        "model_bn_span": config.micro_batch_size,
        "eval_views": config.views,
        **momentum_key(config),
    }
    if config.data.modality != "rgb":
        pairs["modality"] = config.data.modality
    if config.model == "tsm":
        pairs |= {"shift_fraction": config.shift_fraction, "online": config.online}
    return without_metadata(pairs)


# PyTorch's SGD keeps v = m v + (g + wd w) and steps by lr v, which is scaled momentum. The paper gives a weight decay
# of 1e-4 except on batch norm and bias, cosine, 5 warmup epochs and 100 epochs. Momentum .9 comes from
# mit-han-lab/temporal-shift-module.
_SGD = Sgd(momentum=0.9, weight_decay=1e-4, scaled_momentum=True)

# Table 3: Summit, 6 GPUs per node. Paper 4.1: a rate of "0.00125 for every 8 samples".
_SUMMIT = Config(
    precision="fp32",
    replicas="horovod",
    train_epochs=100.0,
    schedule=Schedule(kind="cosine", warmup_epochs=5.0, end_learning_rate=0.0),
)

# Laptop: a network of four narrow blocks.
_CPU = Config(division="open", smoke_run=True, global_batch_size=16, width=16, blocks=(1, 1, 1, 1))

PRESETS: dict[str, Config] = named(
    {
        # Takes minutes on generated videos (tsm_kinetics/tiny.py), whose classes are directions of motion.
        "cpu-tiny": replace(
            _CPU,
            source="this repository: chosen for two CPU cores on the set that tsm_kinetics/tiny.py generates",
            precision="fp32",
            num_train_examples=640,
            num_eval_examples=203,
            eval_batch_size=16,
            train_epochs=16.0,
            epochs_per_block=2.0,
            image_size=32,
            num_classes=4,
            optimizer=replace(_SGD, base_learning_rate=0.05),
            schedule=Schedule(kind="cosine", warmup_epochs=1.0, end_learning_rate=0.0),
            # A flip would swap left and right.
            data=Data(
                window=8, scales=(1.0, 0.9), flip=False, eval_clips=2, eval_short_side=36, eval_size=32
            ),
        ),
        # Real videos: ten classes of UCF101, from scratch (make study STUDY=ucf101).
        "cpu-ucf101": replace(
            _CPU,
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
            optimizer=Adam(base_learning_rate=0.001, epsilon=1e-8),
            schedule=Schedule(kind="cosine", warmup_epochs=5.0, end_learning_rate=0.0),
            # Frame differences hide the background, which would reveal the class (lab/studies/ucf101/tuning.csv).
            data=Data(
                window=16,
                modality="rgb_difference",
                jitter=0.4,
                eval_clips=4,
                eval_short_side=72,
                eval_size=64,
            ),
        ),
        "summit-1": replace(
            _SUMMIT,
            hardware="summit-1",
            source="Paper, Table 3: 6 GPUs, 74.12 +- 0.11 %, 49 h 55 m",
            num_replicas=6,
            global_batch_size=96,
            eval_batch_size=6,
            optimizer=replace(_SGD, base_learning_rate=96 / 8 * 0.00125),
        ),
        "summit-8": replace(
            _SUMMIT,
            hardware="summit-8",
            source="Paper, Table 3: 48 GPUs, 74.12 +- 0.08 %, 7 h 7 m",
            num_replicas=48,
            global_batch_size=384,
            eval_batch_size=48,
            optimizer=replace(_SGD, base_learning_rate=384 / 8 * 0.00125),
        ),
        "summit-16": replace(
            _SUMMIT,
            hardware="summit-16",
            source="Paper, Table 3: 96 GPUs, 74.18 +- 0.14 %, 3 h 38 m",
            num_replicas=96,
            global_batch_size=768,
            eval_batch_size=96,
            optimizer=replace(_SGD, base_learning_rate=768 / 8 * 0.00125),
        ),
        "summit-32": replace(
            _SUMMIT,
            hardware="summit-32",
            source="Paper, Table 3: 192 GPUs, 74.14 +- 0.10 %, 1 h 50 m",
            num_replicas=192,
            global_batch_size=1536,
            eval_batch_size=192,
            optimizer=replace(_SGD, base_learning_rate=1536 / 8 * 0.00125),
        ),
        "summit-64": replace(
            _SUMMIT,
            hardware="summit-64",
            source="Paper, Table 3: 384 GPUs, 74.10 +- 0.08 %, 55 m 56 s",
            num_replicas=384,
            global_batch_size=3072,
            eval_batch_size=384,
            optimizer=replace(_SGD, base_learning_rate=3072 / 8 * 0.00125),
        ),
        "summit-128": replace(
            _SUMMIT,
            hardware="summit-128",
            source="Paper, Table 3: 768 GPUs, 73.99 +- 0.04 %, 28 m 14 s",
            num_replicas=768,
            global_batch_size=6144,
            eval_batch_size=768,
            optimizer=replace(_SGD, base_learning_rate=6144 / 8 * 0.00125),
        ),
        "summit-256": replace(
            _SUMMIT,
            hardware="summit-256",
            source="Paper, Table 3: 1536 GPUs, 73.99 +- 0.07 %, 14 m 13 s",
            num_replicas=1536,
            global_batch_size=12288,
            eval_batch_size=1536,
            optimizer=replace(_SGD, base_learning_rate=12288 / 8 * 0.00125),
        ),
        "summit-384": replace(
            _SUMMIT,
            hardware="summit-384",
            source="Paper, Table 3: 2304 GPUs, 72.52 +- 0.07 %, 10 m 9 s",
            num_replicas=2304,
            global_batch_size=18432,
            eval_batch_size=2304,
            optimizer=replace(_SGD, base_learning_rate=18432 / 8 * 0.00125),
        ),
        "summit-512": replace(
            _SUMMIT,
            hardware="summit-512",
            source="Paper, Table 3: 3072 GPUs, 69.80 +- 0.13 %, of which the paper simulated this batch",
            num_replicas=3072,
            global_batch_size=24576,
            eval_batch_size=3072,
            optimizer=replace(_SGD, base_learning_rate=24576 / 8 * 0.00125),
        ),
        "summit-1024": replace(
            _SUMMIT,
            hardware="summit-1024",
            source="Paper, Table 3: 6144 GPUs, 62.22 +- 0.17 %, of which the paper simulated this batch",
            num_replicas=6144,
            global_batch_size=49152,
            eval_batch_size=6144,
            optimizer=replace(_SGD, base_learning_rate=49152 / 8 * 0.00125),
        ),
        # The paper simulated these batches without stating the number of nodes; 256 is the most that kept the accuracy.
        "summit-256-batch-24576": replace(
            _SUMMIT,
            hardware="summit-256",
            source="Paper, Table 3: 69.80 +- 0.13 %, by accumulation",
            num_replicas=1536,
            global_batch_size=24576,
            accumulation_steps=2,
            eval_batch_size=1536,
            optimizer=replace(_SGD, base_learning_rate=24576 / 8 * 0.00125),
        ),
        "summit-256-batch-49152": replace(
            _SUMMIT,
            hardware="summit-256",
            source="Paper, Table 3: 62.22 +- 0.17 %, by accumulation",
            num_replicas=1536,
            global_batch_size=49152,
            accumulation_steps=4,
            eval_batch_size=1536,
            optimizer=replace(_SGD, base_learning_rate=49152 / 8 * 0.00125),
        ),
    }
)


def _example_bytes(config: Config) -> float:
    """Estimates the memory per training clip, in bytes (lab/bench/batch_memory.py: cpu-ucf101 in bf16)."""
    area = config.frames / 8 * (config.image_size / 64) ** 2 * config.width / 16 * sum(config.blocks) / 4
    return 6e6 * area * (1 if config.precision == "bf16" else 2)


HERE = Rule(
    own="cpu-ucf101",
    example_bytes=_example_bytes,
    gpu_batch=64,
    told={
        "image_size": SCALED,
        "data.flip": FLIPPED,
        "data.scales": "sides of a random crop, as parts of the short side",
    },
)
