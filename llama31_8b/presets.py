"""Defines the presets of Llama 3.1 8B, and the hyperparameters for its log header. TensorFlow-free.

RCP = the reference convergence points of rounds 5.1 to 6.1 (mlperf_logging rcp_checker/training_6.1.0/
rcps_llama31_8b.json): batch, peak rate and warmup. The rest is NEMO's, as in llama31_8b/config.py.
"""

from dataclasses import replace
from typing import Any

from common.config.choices import Rule
from common.config.optimizer import AdamW
from common.config.presets import rule_keys, with_names, without_metadata
from common.config.rules import SCHEDULES
from common.config.schedule import Cosine
from common.config.schema import Communication
from llama31_8b.config import EVALUATION_INTERVAL, Config, Data


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the hyperparameters for the log header: [(key, value, metadata)], read from `config`."""
    optimizer, schedule = config.optimizer, SCHEDULES.every_field(config.schedule)
    # NeMo's warmup reaches the peak after W + 1 updates, and counts the first as 1.
    warmup = round(schedule.warmup_steps) - schedule.first_step
    return without_metadata(
        {
            "global_batch_size": config.global_batch_size,
            "gradient_accumulation_steps": config.accumulation_steps,
            "max_sequence_length": config.sequence_length,
            "max_steps": config.train_steps,
            "opt_name": optimizer.name,
            "opt_base_learning_rate": optimizer.base_learning_rate,
            "opt_end_learning_rate": schedule.end_learning_rate,
            "opt_learning_rate_warmup_steps": warmup,
            "opt_learning_rate_decay_steps": config.train_steps - warmup,
            "opt_learning_rate_decay_schedule": f"{schedule.kind} with {schedule.warmup_curve} warmup",
            **rule_keys(config),
            "opt_gradient_clip_norm": optimizer.clip_norm,
        }
    )


def _adamw(peak: float) -> AdamW:
    """NEMO nemo/collections/llm/recipes/optim/adam.py; Megatron adds 1e-6 to the norm (clip_grads.py)."""
    return AdamW(
        base_learning_rate=peak, beta_2=0.95, epsilon=1e-5, weight_decay=0.1, clip_norm=1.0, clip_epsilon=1e-6
    )


def _schedule(peak: float, warmup: int) -> Cosine:
    """NEMO nemo/core/optim/lr_scheduler.py: update k has peak (k + 1) / (W + 1), then a cosine to a tenth."""
    return Cosine(warmup_steps=warmup + 1.0, first_step=1, end_learning_rate=0.1 * peak)


# --- A node: RCP of batch 16, warmup of 256 sequences.
_BATCH_16 = Config(
    source="RCP, batch 16; never run",
    replicas="pjrt",
    global_batch_size=16,
    steps_per_block=EVALUATION_INTERVAL // 16,
    checkpoint_blocks=4,  # A checkpoint is 96 GB.
    optimizer=_adamw(4e-4),
    schedule=_schedule(4e-4, 16),
)
# Each device holds a part of all weights, and sends gradients in bfloat16, as the reference does.
_SHARDED: dict[str, Any] = {"shard_weights": True, "communication": Communication(wire="bf16_sum")}
# --- Laptop.
_CPU = Config(
    division="open",
    smoke_run=True,
    precision="fp32",
    num_train_examples=2000,
    num_eval_examples=256,
    eval_batch_size=32,
    train_steps=400,
    steps_per_block=50,
    quality_target=0.6,
    vocab_size=256,
    sequence_length=64,
    layers=2,
    width=64,
    hidden=192,
    heads=4,
    kv_heads=2,
    order="one_epoch",
    recompute=False,
    logit_chunks=1,
    data=Data(train_prefix="train", eval_prefix="eval", tokenizer=""),
    optimizer=_adamw(3e-3),
    schedule=_schedule(3e-3, 20),
)

PRESETS: dict[str, Config] = with_names(
    {
        # Half a minute on a laptop: the generated language of llama31_8b/tiny.py.
        "cpu-tiny": replace(
            _CPU,
            source="this repository: tuned for two CPU cores on the language that llama31_8b/tiny.py generates",
        ),
        # One device takes the sequences one after another, and adds up their gradients.
        "h200-1": replace(_BATCH_16, hardware="h200-1", accumulation_steps=16, eval_batch_size=1),
        "b200-1": replace(_BATCH_16, hardware="b200-1", accumulation_steps=16, eval_batch_size=1),
        # Each device holds all weights, and updates an eighth of them.
        "h200-8": replace(
            _BATCH_16,
            hardware="h200-8",
            num_replicas=8,
            accumulation_steps=2,
            communication=Communication(weight_update="sharded"),
        ),
        "b200-8": replace(
            _BATCH_16,
            hardware="b200-8",
            num_replicas=8,
            accumulation_steps=2,
            communication=Communication(weight_update="sharded"),
        ),
        "h100-8": replace(_BATCH_16, **_SHARDED, hardware="h100-8", num_replicas=8, accumulation_steps=2),
        "tpu-v5p-16": replace(
            _BATCH_16, **_SHARDED, hardware="tpu-v5p-16", num_replicas=8, accumulation_steps=2
        ),
        "tpu-v6e-16": replace(_BATCH_16, **_SHARDED, hardware="tpu-v6e-16", num_replicas=16),
    }
)


def _example_bytes(config: Config) -> float:
    """Estimates the memory per window in a step: activations of the layers, scores, logits in full precision."""
    token = (
        config.layers * (16 * config.width + 6 * config.hidden) + 3 * config.vocab_size / config.logit_chunks
    )
    scores = 3 * config.layers * config.heads * config.sequence_length
    return 4 * config.sequence_length * (token + scores)


HERE = Rule(preset="cpu-tiny", example_bytes=_example_bytes, gpu_batch=64)
