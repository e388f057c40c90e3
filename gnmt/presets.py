"""Defines the presets of the GNMT benchmark, and the hyperparameters for its log header. TensorFlow-free.

docs/presets.md says where a preset differs from its source.
Abbreviations in `source`: G6 = mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7, NV6 and
NV7 = their NVIDIA/ folders; other paths start in Google/; `mlperf_facts N` = docs/sources.md, mlperf N.
"""

from dataclasses import replace
from typing import Any

from common.config.choices import Rule
from common.config.optimizer import Adam
from common.config.presets import later_machines, published, rule_keys, with_names, without_metadata
from common.config.rules import OPTIMIZERS, SCHEDULES
from common.config.run_length import RunLength
from common.config.schedule import Gnmt
from common.config.schema import Communication
from gnmt.config import Config, Data, Decode


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the log header's [(key, value, metadata)] from `config`; both rulesets have the same keys.

    As in the published logs, "remain_steps" is the step where the decay starts, and "decay_steps" the maximum number of
    decays.
    """
    optimizer, schedule = config.optimizer, SCHEDULES.every_field(config.schedule)
    warmup = schedule.warmup_length(RunLength.of(config).steps_per_epoch)
    rule = rule_keys(config)
    if not rule:
        own_fields = set(OPTIMIZERS.own_fields(type(optimizer)))
        fields = (field for field in ("beta_1", "beta_2", "epsilon") if field in own_fields)
        rule = {f"opt_adam_{field}": getattr(optimizer, field) for field in fields}
    return [
        ("global_batch_size", config.global_batch_size, {}),
        ("opt_name", optimizer.name, {}),
        ("opt_base_learning_rate", optimizer.base_learning_rate, {}),
        ("opt_learning_rate_alt_decay_func", schedule.kind == "gnmt", {}),
        ("opt_learning_rate_decay_factor", schedule.factor, {}),
        ("opt_learning_rate_decay_interval", schedule.decay_interval, {}),
        ("opt_learning_rate_decay_steps", schedule.max_decays, {}),
        ("opt_learning_rate_remain_steps", schedule.decay_start_step, {}),
        ("opt_learning_rate_alt_warmup_func", schedule.warmup_curve == "exponential", {}),
        ("opt_learning_rate_warmup_steps", round(warmup), {}),
        *without_metadata(rule),
        ("max_sequence_length", config.max_sequence_length, {"method": "discard"}),
    ]


# The published decay halves the rate at most four times.
_HALVINGS = Gnmt(warmup_curve="exponential", warmup_epochs=0.0, factor=0.5)

# Google's code takes the gradient of the sum of a replica's losses, and clips that.
_GOOGLE_ADAM = Adam(epsilon=1e-8, clip_replica_norm=5.0, sums_examples=True)

# --- Round v0.6: logs have BLEU from 0 to 100. In v0.6 and v0.7 an epoch is 3,442,299 // 4096 = 840 steps or
# 3,442,299 // 8192 = 420 (docs/sources.md, mlperf 1.5).
_V06 = Config(
    source="G6 benchmarks/gnmt/{name}/run_and_time.sh",
    ruleset="0.6.0",
    quality_target=24.0,
    replicas="tpu",
    global_batch_size=8192,
    eval_batch_size=4096,
    train_steps=10 * 420,
    steps_per_block=420,
    wiring="google",
    optimizer=replace(_GOOGLE_ADAM, base_learning_rate=0.0045),
    schedule=replace(_HALVINGS, warmup_steps=200.0, decay_start_step=1924, decay_interval=241),
)

_V06_PRESETS = {
    "tpu-v3-32": replace(
        _V06,
        num_replicas=32,
        global_batch_size=4096,
        eval_batch_size=512,
        train_steps=8 * 840,
        steps_per_block=840,
        optimizer=replace(_GOOGLE_ADAM, base_learning_rate=0.0035),
        schedule=replace(_HALVINGS, warmup_steps=150.0, decay_start_step=4000, decay_interval=300),
    ),
    "tpu-v3-128": replace(_V06, num_replicas=128),
    "tpu-v3-256": replace(_V06, num_replicas=256),
    "tpu-v3-512": replace(_V06, num_replicas=512),
    "tpu-v3-1024": replace(_V06, num_replicas=1024),
}

# --- Round v0.7: the all-reduce sums gradients in bf16 (use_bf16_gradients_ar); smoothing is over the other classes.
_V07 = Config(
    source="G7 results/{name}-TF/gnmt and its run_and_time.sh",
    ruleset="0.7.0",
    replicas="tpu",
    communication=Communication(wire="bf16_sum"),
    global_batch_size=8192,
    eval_batch_size=4096,
    train_steps=10 * 420,
    steps_per_block=420,
    smoothing_over="others",
    wiring="google",
    optimizer=replace(_GOOGLE_ADAM, base_learning_rate=0.0045),
    schedule=replace(_HALVINGS, warmup_steps=150.0, decay_start_step=1924, decay_interval=241),
)

_REFERENCE_HALVINGS = Gnmt(
    warmup_curve="exponential",
    warmup_epochs=0.0,
    warmup_steps=200.0,
    factor=0.5,
    decay_at_start=True,
    first_step=1,
)

# NVIDIA's logs count pairs of up to 75 tokens in whole batches: 3,969,024 at 2,048. Its code builds on the reference:
# network, smoothing, decay and the clipping of the summed gradient (seq2seq/train/fp_optimizers.py) come from there.
# Google's code clips each replica's gradient.
_V100_8 = Config(
    source="NV6 results/dgx1_ngc19.05_pytorch/gnmt; batch and rate of its v0.7 run are the same (mlperf_facts 4)",
    ruleset="0.7.0",
    replicas="horovod",
    precision="fp16",
    loss_scale=1024.0,
    num_replicas=8,
    num_train_examples=3969024,
    global_batch_size=2048,
    eval_batch_size=1024,
    max_sequence_length=75,
    bucket_limits=(15, 30, 45, 60, 75),
    wiring="reference",
    smoothing_over="all",
    bias_scale=0.1,
    decode=Decode(target_length=149, count_start=True),
    train_epochs=8.0,
    optimizer=Adam(base_learning_rate=0.002, epsilon=1e-8, clip_norm=5.0),
    schedule=replace(_REFERENCE_HALVINGS, decay_start_step=6453, decay_interval=809),
)

_V07_PRESETS = {
    "tpu-v4-16": replace(
        _V07,
        num_replicas=16,
        global_batch_size=4096,
        train_steps=8 * 840,
        steps_per_block=840,
        optimizer=replace(_GOOGLE_ADAM, base_learning_rate=0.003),
        schedule=replace(_HALVINGS, warmup_steps=150.0, decay_start_step=3000, decay_interval=300),
    ),
    "tpu-v4-128": replace(_V07, num_replicas=128, train_steps=15 * 420),
    "tpu-v3-1024-v0.7": replace(
        _V07,
        hardware="tpu-v3-1024",
        source="G7 results/tpu-v3-1024-TF/gnmt and its run_and_time.sh",
        num_replicas=1024,
    ),
    "tpu-v4-512": replace(_V07, num_replicas=512, train_steps=15 * 420),
    "v100-8": _V100_8,
    "dgx-1": replace(
        _V100_8,
        source="NV7 benchmarks/gnmt/implementations/pytorch/config_DGX1.sh and results/dgx1_ngc20.06_pytorch/gnmt",
    ),
    "dgx-2h": replace(
        _V100_8,
        source="NV7 benchmarks/gnmt/implementations/pytorch/config_DGX2.sh and results/dgx2h_ngc20.06_pytorch/gnmt",
        num_replicas=16,
        num_train_examples=3965952,
        global_batch_size=3072,
        optimizer=Adam(base_learning_rate=0.002875, epsilon=1e-8, clip_norm=5.0),
        schedule=replace(_REFERENCE_HALVINGS, decay_start_step=4054, decay_interval=506),
    ),
    "dgx-2h-16": replace(
        _V100_8,
        source="NV7 benchmarks/gnmt/implementations/pytorch/config_DGX2_multi_16x16x32.sh and "
        "results/dgx2h_n16_ngc20.06_pytorch/gnmt",
        num_replicas=256,
        num_train_examples=3964928,
        global_batch_size=8192,
        eval_batch_size=4096,
        train_epochs=12.0,
        optimizer=Adam(base_learning_rate=0.004, epsilon=1e-8, clip_norm=5.0),
        schedule=replace(_REFERENCE_HALVINGS, decay_start_step=2259, decay_interval=283),
    ),
    "dgx-2h-64": replace(
        _V100_8,
        source="NV7 benchmarks/gnmt/implementations/pytorch/config_DGX2_multi_64x16x16.sh and "
        "results/dgx2h_n64_ngc20.06_pytorch/gnmt",
        num_replicas=1024,
        num_train_examples=3948544,
        global_batch_size=16384,
        eval_batch_size=4096,
        train_epochs=14.0,
        optimizer=Adam(base_learning_rate=0.005, epsilon=1e-8, clip_norm=5.0),
        schedule=replace(_REFERENCE_HALVINGS, decay_start_step=1605, decay_interval=201),
    ),
}

# --- Laptop: all eight layers at a small width.
_CPU = Config(division="open", smoke_run=True, epochs_per_block=2.0, wiring="reference")

_CPU_PRESETS = {
    # Takes minutes on the generated language pair. init_scale is 0.1 * (1024 / 96)^1/2, which spreads the gates' inputs
    # as at full width; with 0.1 the network learns nothing for six epochs.
    "cpu-tiny": replace(
        _CPU,
        source="this repository: tuned for two CPU cores on the language pair that common/text/pair.py generates",
        precision="fp32",
        num_train_examples=6000,
        num_eval_examples=200,
        global_batch_size=32,
        eval_batch_size=200,
        train_epochs=6.0,
        vocabulary_size=866,
        max_sequence_length=36,
        bucket_limits=(12, 18, 24, 36),
        width=96,
        dropout=0.1,
        init_scale=0.3,
        optimizer=Adam(base_learning_rate=0.005, epsilon=1e-8, clip_replica_norm=5.0),
        schedule=replace(_HALVINGS, warmup_steps=50.0, decay_start_step=800, decay_interval=100),
        data=Data(source_language="en", target_language="en"),
        decode=Decode(source_length=40, target_length=40),
    ),
    # Takes most of an hour: photograph captions, English to German (README.md).
    "cpu-multi30k": replace(
        _CPU,
        source="this repository, for two CPU cores and the captions of Multi30k",
        # Faster than fp32 on CPUs with bf16 instructions, slower on others.
        precision="bf16",
        num_train_examples=28992,
        num_eval_examples=1014,
        quality_target=0.34,
        global_batch_size=128,
        eval_batch_size=169,
        train_epochs=14.0,
        vocabulary_size=7952,
        max_sequence_length=48,
        bucket_limits=(13, 16, 20, 26, 48),
        width=256,
        dropout=0.2,
        init_scale=0.2,
        optimizer=Adam(base_learning_rate=0.002, epsilon=1e-8, clip_replica_norm=5.0),
        # Four halvings over the last two fifths of 3171 steps, as in the published schedules.
        schedule=replace(_HALVINGS, warmup_steps=200.0, decay_start_step=1900, decay_interval=320),
        data=Data(source_language="en", target_language="de"),
        decode=Decode(source_length=48, target_length=48),
    ),
}

_PUBLISHED = published({**_V06_PRESETS, **_V07_PRESETS})
PRESETS: dict[str, Config] = with_names(
    {**_CPU_PRESETS, **_PUBLISHED, **later_machines(_PUBLISHED, ("4096 pairs", "8192 pairs", "2048 pairs"))}
)


def _example_bytes(config: Config) -> float:
    """Estimates the memory per sentence pair of a step, in bytes (measured with 16 to 128 tokens)."""
    return config.max_sequence_length * (16 * config.vocabulary_size + 128 * config.layers * config.width)


def _eval_bytes(config: Config) -> float:
    decode = config.decode
    return decode.beam_size * (20 * config.vocabulary_size + 4 * decode.source_length * config.width)


HERE = Rule(preset="cpu-multi30k", example_bytes=_example_bytes, eval_bytes=_eval_bytes, gpu_batch=512)
