"""Defines presets of Mask R-CNN for TPU v5e and v6e, H100, H200 and B200, which run through jax. TensorFlow-free.

Each preset takes its batch and schedule from the nearest published row, named in `source`; tests/test_presets.py
compares them. The division is open because nobody has submitted these values on these machines.
docs/presets/maskrcnn.md lists the sources.
"""

from __future__ import annotations

from dataclasses import replace

from common.config.schema import Optimizer, Schedule
from maskrcnn.config import Config, Data

_SGD = Optimizer(
    name="sgd",
    momentum=0.9,
    weight_decay=1e-4,
    skip_kinds=("norm", "bias"),
    scaled_momentum=True,
    bias_gradient_factor=2.0,
)
# Published rate drops are in steps; `boundaries` are in epochs: step * batch / images.
_SCHEDULE_OF_128 = Schedule(
    kind="step",
    warmup_epochs=0.0,
    warmup_steps=1000.0,
    boundaries=(9750 * 128 / 118287, 13000 * 128 / 118287),
)

_OF_16 = Config(
    source="as tpu-v4-16, round v0.7: batch 128 on 16 cores",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=16,
    global_batch_size=128,
    eval_batch_size=128,
    train_epochs=20.0,
    train_steps=20 * 924,
    steps_per_block=924,
    optimizer=replace(_SGD, base_learning_rate=0.16),
    schedule=_SCHEDULE_OF_128,
)
# Four devices share an image.
_OF_256 = Config(
    source="as tpu-v3-256, round v0.6: batch 128 on 256 cores",
    ruleset="0.6.0",
    division="open",
    replicas="pjrt",
    num_replicas=256,
    partitions=4,
    global_batch_size=128,
    eval_batch_size=256,
    train_epochs=16.0,
    train_steps=16 * 924,
    steps_per_block=924,
    optimizer=replace(_SGD, base_learning_rate=0.16),
    schedule=_SCHEDULE_OF_128,
)
# bf16 needs no loss scale.
_OF_8 = Config(
    source="as dgx-1, round v0.7: batch 48 on 8 GPUs",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    loss_divisors="sampled",
    uniform_initializer="fan_in",
    rpn_inside=True,
    num_replicas=8,
    num_train_examples=117266,
    global_batch_size=48,
    eval_batch_size=8,
    train_epochs=20.0,
    optimizer=replace(_SGD, base_learning_rate=0.06),
    schedule=Schedule(
        kind="step",
        warmup_epochs=0.0,
        warmup_steps=625.0,
        boundaries=(24000 * 48 / 117266, 32000 * 48 / 117266),
    ),
    data=Data(skip_empty=True),
)

PRESETS: dict[str, Config] = {
    "tpu-v5e-16": replace(_OF_16, hardware="tpu-v5e-16"),
    "tpu-v5e-256": replace(_OF_256, hardware="tpu-v5e-256"),
    "tpu-v6e-16": replace(_OF_16, hardware="tpu-v6e-16"),
    "tpu-v6e-256": replace(_OF_256, hardware="tpu-v6e-256"),
    # One GPU runs the eight GPUs' micro-batches one after another.
    "h100-1": replace(_OF_8, hardware="h100-1", num_replicas=1, accumulation_steps=8, eval_batch_size=1),
    "h100-8": replace(_OF_8, hardware="h100-8"),
    "h200-1": replace(_OF_8, hardware="h200-1", num_replicas=1, accumulation_steps=8, eval_batch_size=1),
    "h200-8": replace(_OF_8, hardware="h200-8"),
    "b200-8": replace(_OF_8, hardware="b200-8"),
}
