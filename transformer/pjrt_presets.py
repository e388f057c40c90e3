"""Defines presets of the Transformer for TPU v5e and v6e, H100, H200 and B200, which run through jax. TensorFlow-free.

Each preset takes its batch and schedule from the nearest published row, named in `source`; tests/test_presets.py
compares them. The division is open because nobody has submitted these values on these machines.
docs/presets/transformer.md lists the sources.
"""

from __future__ import annotations

from dataclasses import replace

from common.config.schema import Optimizer, Schedule
from transformer.config import Config

_OF_16 = Config(
    source="as tpu-v4-16, round v0.7: 512 packed sequences on 16 cores",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=16,
    global_batch_size=512,
    eval_batch_size=3072,
    train_epochs=4.0,
    optimizer=Optimizer(name="lazy_adam", base_learning_rate=1.875, beta_2=0.98, epsilon=1e-9),
    schedule=Schedule(kind="noam", warmup_steps=1107.0, width=1024),
)
_OF_256 = Config(
    source="as tpu-v3-256, round v0.6: 512 packed sequences on 256 cores",
    ruleset="0.6.0",
    division="open",
    quality_target=25.0,
    replicas="pjrt",
    num_replicas=256,
    global_batch_size=512,
    eval_batch_size=512,
    train_steps=4 * 1087,
    steps_per_block=1087,
    optimizer=Optimizer(name="lazy_adam", base_learning_rate=2.0, beta_2=0.98, epsilon=1e-9),
    schedule=Schedule(kind="noam", warmup_steps=1000.0, width=1024),
)
# bf16 needs no loss scale. Micro-batches are whole, because a GPU with 80 GB holds 40 sequences.
_OF_8 = Config(
    source="as dgx-1, round v0.7: 81,920 tokens on 8 GPUs",
    ruleset="0.7.0",
    division="open",
    replicas="pjrt",
    num_replicas=8,
    global_batch_size=320,
    max_sequence_length=64,
    eval_batch_size=512,
    train_epochs=6.0,
    optimizer=Optimizer(name="lazy_adam", base_learning_rate=1.665, beta_2=0.98, epsilon=1e-9),
    schedule=Schedule(kind="noam", warmup_steps=750.0, width=1024),
)

PRESETS: dict[str, Config] = {
    "tpu-v5e-16": replace(_OF_16, hardware="tpu-v5e-16"),
    "tpu-v5e-256": replace(_OF_256, hardware="tpu-v5e-256"),
    "tpu-v6e-16": replace(_OF_16, hardware="tpu-v6e-16"),
    "tpu-v6e-256": replace(_OF_256, hardware="tpu-v6e-256"),
    # One GPU runs the eight GPUs' micro-batches one after another.
    "h100-1": replace(_OF_8, hardware="h100-1", num_replicas=1, accumulation_steps=8, eval_batch_size=64),
    "h100-8": replace(_OF_8, hardware="h100-8"),
    "h200-1": replace(_OF_8, hardware="h200-1", num_replicas=1, accumulation_steps=8, eval_batch_size=64),
    "h200-8": replace(_OF_8, hardware="h200-8"),
    "b200-8": replace(_OF_8, hardware="b200-8"),
}
