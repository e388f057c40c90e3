"""Defines the presets of the ResNet-50 benchmark, and the hyperparameters for its log header. TensorFlow-free.

This file has the laptop presets, mlperf_presets.py Google's and NVIDIA's submissions, large_batch_presets.py the
papers'. Presets of later TPUs and GPUs follow from the submissions. docs/presets.md lists each preset's sources
and any closed-division rules it breaks.
"""

from dataclasses import replace
from typing import Any

from common.config.choices import CROPPED, FLIPPED, SCALED, Rule
from common.config.hardware import Machine
from common.config.optimizer import Sgd
from common.config.presets import later_machines, rule_keys, with_names, without_metadata
from common.config.run_length import RunLength
from common.config.schedule import Cosine
from resnet import large_batch_presets, mlperf_presets
from resnet.config import Config, Data

# On a CPU, so many pictures or fewer get a network of SMALL_WIDTH. In the same four minutes on one core it reached
# 42 % on 2,000 pictures of 20 classes, cpu-photos's width of 32 reached 34 % (this project's measurement).
FEW_PICTURES = 5000
SMALL_WIDTH = 16


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the log header's [(key, value, metadata)] from `config`, under the keys of its ruleset."""
    optimizer, schedule, run_length = config.optimizer, config.schedule, RunLength.of(config)
    warmup = _warmup_epochs(config)
    prefix = f"{optimizer.short_name}_opt_"
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model_bn_span": config.bn_span,
        "opt_name": optimizer.name,
    }
    if config.norm:  # The span of its statistics is unknown.
        del pairs["model_bn_span"]
    if config.ruleset == "0.6.0":
        pairs["opt_base_learning_rate"] = optimizer.base_learning_rate
        pairs["opt_learning_rate_warmup_epochs"] = warmup
        if schedule.kind == "step":
            pairs["opt_learning_rate_decay_boundary_epochs"] = list(schedule.boundaries)
    else:
        pairs[prefix + "base_learning_rate"] = optimizer.base_learning_rate
        # closed_resnet_lars.yaml has a separate warmup key for LARS; closed_resnet_sgd.yaml uses the general key.
        key = prefix if optimizer.name == "lars" else "opt_"
        pairs[key + "learning_rate_warmup_epochs"] = warmup
    if schedule.kind == "poly":
        pairs[prefix + "learning_rate_decay_poly_power"] = schedule.power
        pairs[prefix + "learning_rate_decay_steps"] = schedule.decay_steps(
            run_length.steps_per_epoch, run_length.train_steps
        )
    if schedule.kind in ("poly", "cosine"):
        pairs[prefix + "end_learning_rate"] = schedule.end_learning_rate
    if later := rule_keys(config):
        return without_metadata(pairs | later)
    pairs[prefix + "momentum"] = optimizer.momentum
    pairs[prefix + "weight_decay"] = optimizer.weight_decay
    if optimizer.name == "lars":
        pairs["lars_epsilon"] = optimizer.epsilon
    return without_metadata(pairs)


def _warmup_epochs(config: Config) -> float:
    """Computes the warmup in epochs from its steps, or returns `warmup_epochs` if the two differ only by rounding.

    Published code rounds steps per epoch. The tolerance of 1.4 % covers the largest such rounding, in dgx-2h-32: 39
    steps per epoch instead of 38.5.
    """
    schedule = config.schedule
    epochs = schedule.logged_warmup_epochs(RunLength.of(config).steps_per_epoch)
    return schedule.warmup_epochs if abs(epochs - schedule.warmup_epochs) <= 0.014 * epochs else epochs


# --- Minutes on a laptop: ResNet-50 at a quarter or half of the width.
_CPU = Config(division="open", smoke_run=True, global_batch_size=64)

PRESETS: dict[str, Config] = with_names(
    {
        # The generated data set.
        "cpu-tiny": replace(
            _CPU,
            source="this repository: tuned for two CPU cores on the set that resnet/tiny.py generates",
            precision="fp32",
            num_train_examples=4000,
            num_eval_examples=2037,
            eval_batch_size=128,
            train_epochs=12.0,
            epochs_per_block=2.0,
            width=16,
            image_size=32,
            num_classes=12,
            optimizer=Sgd(base_learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
            schedule=Cosine(warmup_epochs=1.0, end_learning_rate=0.0),
            data=Data(cache="decoded", shuffle_buffer=4000, area_range=(0.4, 1.0)),
        ),
        # Real photographs: 20 classes of Tiny ImageNet, from scratch (README.md).
        "cpu-photos": replace(
            _CPU,
            source="this repository: chosen on a fifth of the training images of Tiny ImageNet's first 20 classes",
            precision="bf16",
            num_train_examples=10000,
            num_eval_examples=1000,
            eval_batch_size=100,
            train_epochs=24.0,
            epochs_per_block=4.0,
            quality_target=0.55,
            width=32,
            image_size=48,
            num_classes=20,
            optimizer=Sgd(base_learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
            schedule=Cosine(warmup_epochs=5.0, end_learning_rate=0.0),
            data=Data(cache="decoded", shuffle_buffer=10000, area_range=(0.25, 1.0)),
        ),
        **mlperf_presets.PRESETS,
        **later_machines(mlperf_presets.PRESETS, ("batch 2048", "batch 32768", "batch 1664")),
        **large_batch_presets.PRESETS,
    }
)


def _example_bytes(config: Config, image: float = 1.25e6, classes: float = 30) -> float:
    """Estimates the memory per image, in bytes (measured with cpu-photos in bf16)."""
    area = (config.image_size / 48) ** 2 * config.width / 32
    return image * area * (1 if config.precision == "bf16" else 2) + classes * config.num_classes


def _eval_bytes(config: Config) -> float:
    return _example_bytes(config, image=0.18e6, classes=0)


def _choices(config: Config, machine: Machine, size: int) -> dict[str, tuple[Any, str]]:
    """Chooses the width, the shuffle buffer and the cache.

    A decoded image takes about twelve times its JPEG's memory.
    """
    cache = next(
        (name for name, factor in (("decoded", 12), ("encoded", 1)) if size * factor < machine.memory / 4),
        "none",
    )
    few = config.num_train_examples <= FEW_PICTURES and not machine.gpus
    narrow = few and config.model == "resnet50" and not config.initial_weights_file
    return {
        "width": (
            SMALL_WIDTH if narrow else config.width,
            f"trains three times as fast as {config.width}, for at most {FEW_PICTURES} pictures on a CPU",
        ),
        "data.shuffle_buffer": (min(config.num_train_examples, 16384), "all examples, at most 16384"),
        "data.cache": (cache, "the form that fits in a quarter of the memory"),
    }


HERE = Rule(
    preset="cpu-photos",
    example_bytes=_example_bytes,
    eval_bytes=_eval_bytes,
    gpu_batch=256,
    choices=_choices,
    weights={"model": "resnet50", "width": 64},
    enough=(100, 1500),
    notes={"image_size": SCALED, "data.flip": FLIPPED, "data.area_range": CROPPED},
)
