"""Defines presets of SSD for TPU v5e and v6e, H100, H200 and B200, which run through jax. TensorFlow-free.

Each preset takes its batch and schedule from the nearest published row, named in `source`; tests/test_presets.py
compares them. The division is open because nobody has submitted these values on these machines.
docs/presets/ssd.md lists the sources.
"""

from __future__ import annotations

from dataclasses import replace

from common.config.schema import Optimizer, Schedule
from ssd.config import Config, Data

_SGD = Optimizer(name="sgd", momentum=0.9, weight_decay=5e-4, skip_kinds=(), scaled_momentum=True)

_OF_16 = Config(
    source="as tpu-v4-16, round v0.7: batch 1024 on 16 cores",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=16,
    global_batch_size=1024,
    eval_batch_size=1024,
    epoch_images=118287,
    train_epochs=64.0,
    train_steps=13 * 578,
    eval_epochs=(40.0, 50.0),
    epochs_per_block=5.0,
    steps_per_block=578,
    batch_norm_span=64,
    logged_rate_batch=32,
    space_to_depth=True,
    optimizer=replace(_SGD, base_learning_rate=3.1e-3 * 1024 / 32),
    schedule=Schedule(kind="step", warmup_epochs=5.0, warmup_steps=577.0, boundaries=(40.0, 50.0)),
)
_OF_256 = Config(
    source="as tpu-v3-256, round v0.6: batch 1024 on 256 cores",
    ruleset="0.6.0",
    division="open",
    replicas="pjrt",
    num_replicas=256,
    global_batch_size=1024,
    eval_batch_size=1024,
    epoch_images=120000,
    train_epochs=64.0,
    eval_epochs=(32.0, 128 / 3),
    epochs_per_block=16 / 3,
    steps_per_block=625,
    batch_norm_span=64,
    logged_rate_batch=32,
    space_to_depth=True,
    optimizer=replace(_SGD, base_learning_rate=3e-3 * 1024 / 32),
    schedule=Schedule(kind="step", warmup_epochs=5.0, warmup_steps=585.0, boundaries=(42.6, 53.3)),
)
# bf16 needs no loss scale.
_OF_8 = Config(
    source="as dgx-1, round v0.7: batch 960 on 8 GPUs",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=8,
    global_batch_size=960,
    eval_batch_size=1280,
    train_epochs=80.0,
    eval_epochs=(40.0, 50.0),
    epochs_per_block=5.0,
    batch_norm_span=120,
    bias_initializer="fan_in",
    optimizer=replace(_SGD, base_learning_rate=0.0875, weight_decay=1.6e-4),
    schedule=Schedule(kind="step", warmup_epochs=5.0, warmup_steps=650.0, boundaries=(44.0, 55.0)),
    data=Data(crop_attempts=1),
)

PRESETS: dict[str, Config] = {
    "tpu-v5e-16": replace(_OF_16, hardware="tpu-v5e-16"),
    "tpu-v5e-256": replace(_OF_256, hardware="tpu-v5e-256"),
    "tpu-v6e-16": replace(_OF_16, hardware="tpu-v6e-16"),
    "tpu-v6e-256": replace(_OF_256, hardware="tpu-v6e-256"),
    # One GPU runs the eight GPUs' micro-batches one after another.
    "h100-1": replace(_OF_8, hardware="h100-1", num_replicas=1, accumulation_steps=8, eval_batch_size=160),
    "h100-8": replace(_OF_8, hardware="h100-8"),
    "h200-1": replace(_OF_8, hardware="h200-1", num_replicas=1, accumulation_steps=8, eval_batch_size=160),
    "h200-8": replace(_OF_8, hardware="h200-8"),
    "b200-8": replace(_OF_8, hardware="b200-8"),
}
