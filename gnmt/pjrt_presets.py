"""Defines presets of GNMT for TPU v5e and v6e, H100, H200 and B200, which run through jax. TensorFlow-free.

Each preset takes its batch and schedule from the nearest published row, named in `source`; tests/test_presets.py
compares them. The division is open because nobody has submitted these values on these machines.
docs/presets/gnmt.md lists the sources.
"""

from __future__ import annotations

from dataclasses import replace

from common.config.schema import Communication, Optimizer, Schedule
from gnmt.config import Config, Decode

# The published decay halves the rate at most four times.
_HALVINGS = Schedule(kind="gnmt", warmup_curve="exponential", warmup_epochs=0.0, factor=0.5, max_decays=4)

_OF_16 = Config(
    source="as tpu-v4-16, round v0.7: 4096 pairs on 16 cores",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    communication=Communication(wire="bf16_sum"),
    num_replicas=16,
    global_batch_size=4096,
    eval_batch_size=4096,
    train_steps=8 * 840,
    steps_per_block=840,
    smoothing_over="others",
    wiring="google",
    output_bias=False,
    optimizer=Optimizer(name="adam", base_learning_rate=0.003, epsilon=1e-8, clip_replica_norm=5.0),
    schedule=replace(_HALVINGS, warmup_steps=150.0, decay_start_step=3000, decay_interval=300),
)
_OF_256 = Config(
    source="as tpu-v3-256, round v0.6: 8192 pairs on 256 cores",
    ruleset="0.6.0",
    division="open",
    quality_target=24.0,
    replicas="pjrt",
    num_replicas=256,
    global_batch_size=8192,
    eval_batch_size=4096,
    train_steps=10 * 420,
    steps_per_block=420,
    wiring="google",
    output_bias=False,
    optimizer=Optimizer(name="adam", base_learning_rate=0.0045, epsilon=1e-8, clip_replica_norm=5.0),
    schedule=replace(_HALVINGS, warmup_steps=200.0, decay_start_step=1924, decay_interval=241),
)
# bf16 needs no loss scale.
_OF_8 = Config(
    source="as dgx-1, round v0.7: 2048 pairs on 8 GPUs",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=8,
    num_train_examples=3969024,
    global_batch_size=2048,
    eval_batch_size=1024,
    max_sequence_length=75,
    bucket_limits=(15, 30, 45, 60, 75),
    wiring="reference",
    output_bias=True,
    smoothing_over="all",
    bias_scale=0.1,
    decode=Decode(target_length=150),
    train_epochs=8.0,
    optimizer=Optimizer(name="adam", base_learning_rate=0.002, epsilon=1e-8, clip_norm=5.0),
    schedule=replace(
        _HALVINGS, warmup_steps=200.0, decay_start_step=6453, decay_interval=809, decay_at_start=True
    ),
)

PRESETS: dict[str, Config] = {
    "tpu-v5e-16": replace(_OF_16, hardware="tpu-v5e-16"),
    "tpu-v5e-256": replace(_OF_256, hardware="tpu-v5e-256"),
    "tpu-v6e-16": replace(_OF_16, hardware="tpu-v6e-16"),
    "tpu-v6e-256": replace(_OF_256, hardware="tpu-v6e-256"),
    # One GPU runs the eight GPUs' micro-batches one after another.
    "h100-1": replace(_OF_8, hardware="h100-1", num_replicas=1, accumulation_steps=8, eval_batch_size=128),
    "h100-8": replace(_OF_8, hardware="h100-8"),
    "h200-1": replace(_OF_8, hardware="h200-1", num_replicas=1, accumulation_steps=8, eval_batch_size=128),
    "h200-8": replace(_OF_8, hardware="h200-8"),
    "b200-8": replace(_OF_8, hardware="b200-8"),
}
