"""Defines the presets of the video benchmark, and the hyperparameters for its log header. TensorFlow-free.

Paper = "Training Kinetics in 15 Minutes: Large-scale Distributed Training on Videos", section 4 and Table 3.
docs/presets.md lists the values that the paper leaves open and our choices for them.
"""

from dataclasses import replace
from typing import Any

from common.config.choices import FLIPPED, SCALED, Rule
from common.config.optimizer import Adam, Sgd
from common.config.presets import momentum_key, solver_keys, with_names, without_metadata
from common.config.schedule import Cosine
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
    schedule=Cosine(warmup_epochs=5.0, end_learning_rate=0.0),
    data=Data(resize="antialiased"),
)

# Nodes, batch, top-1 accuracy and time.
_TABLE_3 = (
    (1, 96, "74.12 +- 0.11 %, 49 h 55 m"),
    (8, 384, "74.12 +- 0.08 %, 7 h 7 m"),
    (16, 768, "74.18 +- 0.14 %, 3 h 38 m"),
    (32, 1536, "74.14 +- 0.10 %, 1 h 50 m"),
    (64, 3072, "74.10 +- 0.08 %, 55 m 56 s"),
    (128, 6144, "73.99 +- 0.04 %, 28 m 14 s"),
    (256, 12288, "73.99 +- 0.07 %, 14 m 13 s"),
    (384, 18432, "72.52 +- 0.07 %, 10 m 9 s"),
    (512, 24576, "69.80 +- 0.13 %, of which the paper simulated this batch"),
    (1024, 49152, "62.22 +- 0.17 %, of which the paper simulated this batch"),
)


def _on_summit(nodes: int, batch: int, row: str, accumulation_steps: int = 1) -> Config:
    return replace(
        _SUMMIT,
        hardware=f"summit-{nodes}",
        source=f"Paper, Table 3: {row}",
        num_replicas=6 * nodes,
        global_batch_size=batch,
        accumulation_steps=accumulation_steps,
        eval_batch_size=6 * nodes,
        optimizer=replace(_SGD, base_learning_rate=batch / 8 * 0.00125),
    )


# Laptop: a network of four narrow blocks.
_CPU = Config(division="open", smoke_run=True, global_batch_size=16, width=16, blocks=(1, 1, 1, 1))

PRESETS: dict[str, Config] = with_names(
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
            schedule=Cosine(warmup_epochs=1.0, end_learning_rate=0.0),
            # A flip would swap left and right.
            data=Data(
                window=8, scales=(1.0, 0.9), flip=False, eval_clips=2, eval_short_side=36, eval_size=32
            ),
        ),
        # Real videos: ten classes of UCF101, from scratch (tsm_kinetics/README.md).
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
            schedule=Cosine(warmup_epochs=5.0, end_learning_rate=0.0),
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
        **{
            f"summit-{nodes}": _on_summit(nodes, batch, f"{6 * nodes} GPUs, {row}")
            for nodes, batch, row in _TABLE_3
        },
        # The paper simulated these batches without stating the number of nodes; 256 is the most that kept the accuracy.
        "summit-256-batch-24576": _on_summit(256, 24576, "69.80 +- 0.13 %, by accumulation", 2),
        "summit-256-batch-49152": _on_summit(256, 49152, "62.22 +- 0.17 %, by accumulation", 4),
    }
)


def _example_bytes(config: Config, clip: float = 5.2e6) -> float:
    """Estimates the memory per clip, in bytes (measured with cpu-ucf101 in bf16)."""
    area = config.frames / 8 * (config.image_size / 64) ** 2 * config.width / 16 * sum(config.blocks) / 4
    return clip * area * (1 if config.precision == "bf16" else 2)


def _eval_bytes(config: Config) -> float:
    return _example_bytes(config, clip=7e6)


HERE = Rule(
    preset="cpu-ucf101",
    example_bytes=_example_bytes,
    eval_bytes=_eval_bytes,
    gpu_batch=64,
    weights={"width": 64, "blocks": (3, 4, 6, 3)},
    enough=(25, 500),
    notes={
        "image_size": SCALED,
        "data.flip": FLIPPED,
        "data.scales": "sides of a random crop, as parts of the short side",
    },
)
