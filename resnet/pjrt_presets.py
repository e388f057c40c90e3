"""Defines presets of ResNet-50 for TPU v5e and v6e, H100, H200 and B200, which run through jax. TensorFlow-free.

Each preset takes its batch and schedule from the nearest published row, named in `source`; tests/test_presets.py
compares them. The division is open because nobody has submitted these values on these machines.
docs/presets/resnet.md lists the sources.
"""

from __future__ import annotations

from dataclasses import replace

from common.config.schema import Optimizer, Schedule
from resnet.config import Config, Data

_OF_16 = Config(
    source="as tpu-v4-16, round v0.7: batch 2048 on 16 cores",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=16,
    global_batch_size=2048,
    eval_batch_size=2048,
    train_steps=11 * 2502,
    steps_per_block=2502,
    epochs_per_block=4.0,
    batch_norm_span=128,
    space_to_depth=True,
    optimizer=Optimizer(name="lars", base_learning_rate=8.5, weight_decay=2e-4),
    schedule=Schedule(
        kind="poly",
        warmup_epochs=5.0,
        train_epochs=25656 * 2048 / 1281167,
        power=2.0,
        end_learning_rate=1e-4,
    ),
    data=Data(area_range=(0.05, 1.0), aspect_range=(0.75, 1.33)),
)
_OF_256 = Config(
    source="as tpu-v3-256, round v0.6: batch 32768 on 256 cores",
    ruleset="0.6.0",
    division="open",
    replicas="pjrt",
    num_replicas=256,
    global_batch_size=32768,
    eval_batch_size=32768,
    train_steps=2983,
    steps_per_block=157,
    epochs_per_block=4.0,
    batch_norm_span=128,
    optimizer=Optimizer(
        name="lars", base_learning_rate=33.0, weight_decay=2e-4, l2_in_loss=2e-4, scaled_momentum=True
    ),
    schedule=Schedule(kind="poly", warmup_epochs=25.0, power=2.0, end_learning_rate=1e-4),
)
# bf16 needs no loss scale.
_OF_8 = Config(
    source="as dgx-1, round v0.7: batch 1664 on 8 GPUs",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=8,
    global_batch_size=1664,
    eval_batch_size=1664,
    train_epochs=37.0,
    train_steps=37 * 770,
    first_block_epochs=1.0,
    first_block_steps=770,
    epochs_per_block=4.0,
    steps_per_block=4 * 770,
    batch_norm_span=208,
    zero_init_last_gamma=False,
    kernel_initializer="he_normal",
    optimizer=Optimizer(name="lars", base_learning_rate=7.4, weight_decay=1e-4),
    schedule=Schedule(
        kind="poly", warmup_epochs=2.0, warmup_steps=2.0 * 770, power=2.0, end_learning_rate=1e-4
    ),
    data=Data(area_range=(0.05, 1.0), min_object_covered=0.0, resize="bilinear"),
)

PRESETS: dict[str, Config] = {
    "tpu-v5e-16": replace(_OF_16, hardware="tpu-v5e-16"),
    "tpu-v5e-256": replace(_OF_256, hardware="tpu-v5e-256"),
    "tpu-v6e-16": replace(_OF_16, hardware="tpu-v6e-16"),
    "tpu-v6e-256": replace(_OF_256, hardware="tpu-v6e-256"),
    # One GPU runs the eight GPUs' micro-batches one after another.
    "h100-1": replace(_OF_8, hardware="h100-1", num_replicas=1, accumulation_steps=8, eval_batch_size=208),
    "h100-8": replace(_OF_8, hardware="h100-8"),
    "h200-1": replace(_OF_8, hardware="h200-1", num_replicas=1, accumulation_steps=8, eval_batch_size=208),
    "h200-8": replace(_OF_8, hardware="h200-8"),
    "b200-8": replace(_OF_8, hardware="b200-8"),
}
