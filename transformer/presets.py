"""Defines the presets of the Transformer benchmark, and the hyperparameters for its log header. TensorFlow-free.

docs/presets.md says where a preset differs from its source.
Abbreviations in `source`: G6 = mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7, NV7 = the NVIDIA/
folder of G7; other paths start in Google/; `mlperf_facts N` = docs/sources.md, mlperf N.
"""

import math
from dataclasses import replace
from typing import Any

from common.config.choices import Rule
from common.config.optimizer import Adam, LazyAdam
from common.config.presets import later_machines, published, rule_keys, with_names, without_metadata
from common.config.run_length import RunLength
from common.config.schedule import Cosine, Noam
from common.config.schema import Communication
from transformer.config import Config, Data, Decode


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the log header's [(key, value, metadata)] from `config`; both rulesets have the same keys.

    `opt_base_learning_rate` is the schedule's constant, as in the published logs, not the peak.
    """
    optimizer, schedule = config.optimizer, config.schedule
    warmup = schedule.warmup_length(RunLength.of(config).steps_per_epoch)
    rule = rule_keys(config)
    if not rule:
        rule = {f"opt_adam_{field}": getattr(optimizer, field) for field in ("beta_1", "beta_2", "epsilon")}
    return [
        ("global_batch_size", config.global_batch_size, {}),
        ("opt_name", optimizer.name, {}),
        ("opt_base_learning_rate", optimizer.base_learning_rate, {}),
        ("opt_learning_rate_warmup_steps", round(warmup), {}),
        *without_metadata(rule),
        ("max_sequence_length", config.max_sequence_length, {"method": "discard"}),
    ]


# --- Round v0.6: logs have BLEU from 0 to 100; an epoch is 1087 steps of 512 sequences or 271 of 2048.
_V06_512 = Config(
    mean_of_means=True,
    source="G6 benchmarks/transformer/{name}/run_and_time.sh",
    ruleset="0.6.0",
    quality_target=25.0,
    replicas="tpu",
    global_batch_size=512,
    eval_batch_size=512,
    train_steps=4 * 1087,
    steps_per_block=1087,
    optimizer=LazyAdam(base_learning_rate=2.0, beta_2=0.98, epsilon=1e-9),
    schedule=Noam(warmup_steps=1000.0, width=1024),
)
_V06_2048 = replace(
    _V06_512,
    global_batch_size=2048,
    eval_batch_size=2048,
    train_steps=7 * 271,
    steps_per_block=271,
    optimizer=LazyAdam(base_learning_rate=1.3, beta_1=0.86, beta_2=0.92, epsilon=1e-9),
    schedule=Noam(warmup_steps=550.0, width=1024),
)

# On a pod, Adam takes 45 % of a step ("Scale MLPerf-0.6 Models on Google TPU-v3 Pods", section 2). docs/sources.md,
# mlperf 3, lists the rows that share the update.
_SHARDED = Communication(weight_update="blocks")

_V06_PRESETS = {
    "tpu-v3-32": replace(
        _V06_512,
        num_replicas=32,
        # In v0.6, only the 32-core run sums gradients in bf16 (docs/sources.md, mlperf 1.4).
        communication=Communication(wire="bf16_sum"),
    ),
    "tpu-v3-128": replace(_V06_512, num_replicas=128),
    "tpu-v3-256": replace(_V06_512, num_replicas=256),
    "tpu-v3-512": replace(_V06_2048, num_replicas=512),
    "tpu-v3-1024": replace(_V06_2048, num_replicas=1024),
    "tpu-v3-2048": replace(_V06_2048, num_replicas=2048, communication=_SHARDED),
}

# --- Round v0.7: 566,340 packed sequences are 1107 steps of 512, or 277 of 2048. Both frameworks sum gradients in bf16.
_V07_512 = Config(
    mean_of_means=True,
    source="G7 lingvo/tasks/mt/params/mlperf.py and results/{name}-TF/transformer",
    ruleset="0.7.0",
    replicas="tpu",
    global_batch_size=512,
    eval_batch_size=3072,
    train_epochs=4.0,
    communication=Communication(wire="bf16_sum"),
    optimizer=LazyAdam(base_learning_rate=1.875, beta_2=0.98, epsilon=1e-9),
    schedule=Noam(warmup_steps=1107.0, width=1024),
    decode=Decode(search="lingvo", alpha=0.5),
)
_V07_2048 = replace(
    _V07_512,
    global_batch_size=2048,
    eval_batch_size=4096,
    train_epochs=7.0,
    schedule=Noam(warmup_steps=831.0, width=1024),
)

# 81,920 tokens are 320 sequences of 256. The schedule's constant is peak * sqrt(warmup * 1024). Each script limits
# pairs with --max-source-positions. A step has four micro-batches of 10 sequences, whose logits take 1.4 GB, because a
# V100 has 16 or 32 GB.
_V100_8 = Config(
    source="NV7 DGX-1 transformer: 81,920 tokens, peak 1.9e-3, warmup 750 (mlperf_facts 4); betas and "
    "epsilon of NVIDIA's v0.6 DGX-1 log",
    ruleset="0.7.0",
    replicas="horovod",
    precision="fp16",
    loss_scale=1024.0,
    num_replicas=8,
    global_batch_size=320,
    max_sequence_length=64,
    accumulation_steps=4,
    eval_batch_size=512,
    train_epochs=6.0,
    optimizer=Adam(base_learning_rate=1.9e-3 * math.sqrt(750 * 1024), beta_2=0.98, epsilon=1e-9),
    schedule=Noam(warmup_steps=750.0, width=1024),
)

# 737,280 tokens are 2880 sequences.
_V100_2880 = replace(
    _V100_8,
    global_batch_size=2880,
    max_sequence_length=76,
    accumulation_steps=1,
    train_epochs=8.0,
    optimizer=Adam(
        base_learning_rate=1.732e-3 * math.sqrt(400 * 1024), beta_1=0.86, beta_2=0.92, epsilon=1e-9
    ),
    schedule=Noam(warmup_steps=400.0, width=1024),
)

_V07_PRESETS = {
    "tpu-v4-16": replace(_V07_512, num_replicas=16),
    "tpu-v4-128": replace(_V07_512, num_replicas=128),
    "tpu-v4-512": replace(
        _V07_2048,
        num_replicas=512,
        optimizer=LazyAdam(base_learning_rate=1.9, beta_1=0.88, beta_2=0.94, epsilon=1e-9),
    ),
    "tpu-v3-8192": replace(
        _V07_2048,
        source="G7 lingvo/tasks/mt/params/mlperf.py and results/tpu-v3-8192-TF/transformer (there each "
        "sequence lies on 4 cores; here on one, and the other three idle)",
        num_replicas=2048,
        optimizer=LazyAdam(base_learning_rate=1.875, beta_1=0.88, beta_2=0.92, epsilon=1e-9),
    ),
    "tpu-v3-8192-jax": replace(
        _V07_2048,
        hardware="tpu-v3-8192",
        source="G7 results/tpu-v3-8192-JAX/transformer",
        num_replicas=2048,
        communication=replace(_SHARDED, wire="bf16_sum"),
        decode=Decode(),
        # The log says 256, so only the packed length limited the pairs.
        max_sequence_length=256,
        optimizer=Adam(
            base_learning_rate=3.3092157691415953,
            beta_1=0.9086575725261137,
            beta_2=0.9198719118104947,
            epsilon=1e-9,
            corrected_epsilon=True,
        ),
        schedule=Noam(warmup_steps=664.0, width=1024),
    ),
    "v100-8": _V100_8,
    "dgx-1": replace(
        _V100_8,
        source="NV7 benchmarks/transformer/implementations/pytorch/config_DGX1.sh and "
        "results/dgx1_ngc20.06_pytorch/transformer: 81,920 tokens, peak 1.9e-3, warmup 750",
    ),
    # 131,072 tokens are 512 sequences. 32 GB are enough for micro-batches of 16 sequences.
    "dgx-2h": replace(
        _V100_8,
        source="NV7 benchmarks/transformer/implementations/pytorch/config_DGX2.sh and "
        "results/dgx2h_ngc20.06_pytorch/transformer: 131,072 tokens, peak 1.976e-3, warmup 1000",
        num_replicas=16,
        global_batch_size=512,
        max_sequence_length=80,
        accumulation_steps=2,
        optimizer=Adam(base_learning_rate=1.976e-3 * math.sqrt(1000 * 1024), beta_2=0.98, epsilon=1e-9),
        schedule=Noam(warmup_steps=1000.0, width=1024),
    ),
    "dgx-2h-10": replace(
        _V100_2880,
        source="NV7 benchmarks/transformer/implementations/pytorch/config_DGX2_multi_10x16x4608.sh and "
        "results/dgx2h_n10_ngc20.06_pytorch/transformer: 737,280 tokens, peak 1.732e-3, warmup 400",
        num_replicas=160,
        eval_batch_size=3040,
    ),
    "dgx-2h-60": replace(
        _V100_2880,
        source="NV7 benchmarks/transformer/implementations/pytorch/config_DGX2_multi_60x16x768.sh and "
        "results/dgx2h_n60_ngc20.06_pytorch/transformer: 737,280 tokens, peak 1.732e-3, warmup 400",
        num_replicas=960,
        eval_batch_size=3840,
    ),
}

# --- Laptop.
_CPU = Config(
    division="open",
    smoke_run=True,
    precision="fp32",
    packed_length=128,
    max_sequence_length=60,
    hidden=256,
    heads=4,
    data=Data(shuffle_buffer=2000),
)

_CPU_PRESETS = {
    # Takes minutes: all twelve layers at a small width on the generated language pair.
    "cpu-tiny": replace(
        _CPU,
        source="this repository: tuned for two CPU cores on the language pair that transformer/tiny.py generates",
        num_train_examples=1220,
        num_eval_examples=200,
        global_batch_size=16,
        eval_batch_size=64,
        train_epochs=6.0,
        epochs_per_block=2.0,
        vocabulary_size=396,
        width=64,
        optimizer=LazyAdam(base_learning_rate=1.0, beta_2=0.98, epsilon=1e-9),
        schedule=Noam(warmup_steps=100.0, width=64),
        decode=Decode(source_length=40, extra_length=10),
    ),
    # Takes most of an hour: photograph captions, English to German (README.md).
    "cpu-multi30k": replace(
        _CPU,
        source="this repository, for two CPU cores; layers, widths and dropout as Transformer-Tiny of Wu et al., 'Good "
        "for Misconceived Reasons: An Empirical Revisiting on the Need for Visual Context in Multimodal Machine "
        "Translation'",
        num_train_examples=3706,
        num_eval_examples=1014,
        quality_target=0.39,
        global_batch_size=32,
        eval_batch_size=128,
        train_epochs=28.0,
        epochs_per_block=4.0,
        vocabulary_size=8116,
        layers=4,
        width=128,
        residual_dropout=0.3,
        # Cosine, because a run of 45 minutes ends long before an inverse square root lowers the rate enough.
        optimizer=LazyAdam(base_learning_rate=0.004, beta_2=0.98, epsilon=1e-9),
        schedule=Cosine(warmup_epochs=5.0, end_learning_rate=0.0),
        decode=Decode(source_length=50, extra_length=10),
    ),
}

_PUBLISHED = published({**_V06_PRESETS, **_V07_PRESETS})
PRESETS: dict[str, Config] = with_names(
    {
        **_CPU_PRESETS,
        **_PUBLISHED,
        **later_machines(_PUBLISHED, ("512 packed sequences", "512 packed sequences", "81,920 tokens")),
    }
)


def _example_bytes(config: Config) -> float:
    """Estimates the memory per packed sequence, in bytes (measured with cpu-multi30k).

    Logits and activations grow with the length, attention weights with its square.
    """
    layers = 2 * config.layers * (20 * config.width + 4 * config.hidden)
    attention = 30 * config.layers * config.heads * config.packed_length**2
    return config.packed_length * (16 * config.vocabulary_size + layers) + attention


def _eval_bytes(config: Config) -> float:
    """Estimates the memory per sentence of an evaluation, in bytes: encoder, the search's caches, logits."""
    positions = 17 * config.packed_length + 4 * config.decode.beam_size * config.decode.target_length
    return positions * config.layers * config.width + 8 * config.decode.beam_size * config.vocabulary_size


HERE = Rule(
    preset="cpu-multi30k",
    example_bytes=_example_bytes,
    eval_bytes=_eval_bytes,
    gpu_batch=128,
    enough=(1500, 8000),
    notes={"num_train_examples": "rows into which the sentence pairs are packed"},
)
