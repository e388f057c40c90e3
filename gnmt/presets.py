"""Presets of the GNMT benchmark, and what of a configuration is logged. TensorFlow-free.

docs/gnmt-presets.md says for each preset where its values come from and which closed rule, if any, they break.
Abbreviations in `source`: G6 = mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7, NV6 = the NVIDIA/
folder of G6; other paths start in Google/.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.config.clock import Clock
from common.config.schema import Optimizer, Schedule
from gnmt.config import Config, Data, Decode


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """What the log's header says about the run; the same keys in both rulesets.

    Returns:
      [(key, value, metadata)]; every value is read from `config` or its clock. "remain" is where the decay starts,
      "decay_steps" how often it happens at most, as in the published logs.
    """
    optimizer, schedule = config.optimizer, config.schedule
    warmup = schedule.warmup_length(Clock.of(config).steps_per_epoch)
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
        ("max_sequence_length", config.max_sequence_length, {"method": "discard"}),
    ]


_BASE = Config(
    replicas="tpu",
    wiring="google",
    output_bias=False,
    optimizer=Optimizer(name="adam", base_learning_rate=0.0045, epsilon=1e-8, clip_replica_norm=5.0),
    schedule=Schedule(
        kind="gnmt",
        warmup_curve="exponential",
        warmup_epochs=0.0,
        warmup_steps=200.0,
        factor=0.5,
        decay_start_step=1924,
        decay_interval=241,
        max_decays=4,
    ),
)

# An epoch is 3,442,299 // 4096 = 840 steps or 3,442,299 // 8192 = 420 (mlperf_facts 1.5).
_SMALL_BATCH = {"global_batch_size": 4096, "steps_per_block": 840, "train_steps": 8 * 840}
_LARGE_BATCH = {"global_batch_size": 8192, "steps_per_block": 420, "train_steps": 10 * 420}

# --- Round v0.6: BLEU is logged from 0 to 100.
_V06 = replace(_BASE, ruleset="0.6.0", quality_target=24.0, eval_batch_size=4096, **_LARGE_BATCH)


def _v06(base: Config, cores: int, **changes: Any) -> Config:
    return replace(
        base,
        hardware=f"tpu-v3-{cores}",
        source=f"G6 benchmarks/gnmt/tpu-v3-{cores}/run_and_time.sh",
        num_replicas=cores,
        **changes,
    )


_V06_PRESETS = {
    "tpu-v3-32": _v06(
        _V06,
        32,
        **_SMALL_BATCH,
        eval_batch_size=512,
        optimizer=replace(_BASE.optimizer, base_learning_rate=0.0035),
        schedule=replace(_BASE.schedule, warmup_steps=150.0, decay_start_step=4000, decay_interval=300),
    ),
    **{f"tpu-v3-{cores}": _v06(_V06, cores) for cores in (128, 256, 512, 1024)},
}

# --- Round v0.7; gradients are summed in bf16, labels smoothed over the other classes.
_V07 = replace(
    _BASE,
    ruleset="0.7.0",
    eval_batch_size=4096,
    smoothing_over="others",
    communication=replace(_BASE.communication, wire="bf16"),
    schedule=replace(_BASE.schedule, warmup_steps=150.0),
    **_LARGE_BATCH,
)


def _v07(system: str, cores: int, **changes: Any) -> Config:
    source = f"G7 results/{system}-TF/gnmt and its run_and_time.sh"
    return replace(_V07, hardware=system, source=source, num_replicas=cores, **changes)


_V07_PRESETS = {
    "tpu-v4-16": _v07(
        "tpu-v4-16",
        16,
        **_SMALL_BATCH,
        optimizer=replace(_BASE.optimizer, base_learning_rate=0.003),
        schedule=replace(_V07.schedule, decay_start_step=3000, decay_interval=300),
    ),
    "tpu-v4-128": _v07("tpu-v4-128", 128, train_steps=15 * 420),
    "tpu-v3-1024-v0.7": _v07("tpu-v3-1024", 1024),
    "tpu-v4-512": _v07("tpu-v4-512", 512, train_steps=15 * 420),
    # The reference's network, smoothing and decay, on which NVIDIA's code is built.
    "v100-8": replace(
        _V07,
        hardware="v100-8",
        source="NV6 results/dgx1_ngc19.05_pytorch/gnmt; batch and rate of its v0.7 run are the same (mlperf_facts 4)",
        replicas="horovod",
        precision="fp16",
        loss_scale=1024.0,
        communication=_BASE.communication,
        num_replicas=8,
        global_batch_size=2048,
        eval_batch_size=1024,
        max_sequence_length=75,
        bucket_limits=(15, 30, 45, 60, 75),
        wiring="reference",
        output_bias=True,
        smoothing_over="all",
        train_epochs=8.0,
        train_steps=0,
        steps_per_block=0,
        optimizer=replace(_BASE.optimizer, base_learning_rate=0.002),
        schedule=replace(
            _BASE.schedule, warmup_steps=200.0, decay_start_step=6453, decay_interval=809, decay_at_start=True
        ),
    ),
}

# --- A laptop, minutes: all eight layers at a small width on the generated language pair. Variables start so much wider
# that the gates' inputs are spread as at full width: 0.1 * (1024 / 96)^1/2. With 0.1 nothing is learnt for six epochs.
_CPU_TINY = replace(
    _BASE,
    source="this repository: tuned for two CPU cores on the language pair that common/text/pair.py generates",
    division="open",
    smoke_run=True,
    precision="fp32",
    replicas="single",
    wiring="reference",
    output_bias=True,
    num_train_examples=6000,
    num_eval_examples=200,
    global_batch_size=32,
    eval_batch_size=200,
    train_epochs=6.0,
    epochs_per_block=2.0,
    vocabulary_size=866,
    max_sequence_length=36,
    bucket_limits=(12, 18, 24, 36),
    width=96,
    dropout=0.1,
    init_scale=0.3,
    optimizer=replace(_BASE.optimizer, base_learning_rate=0.005),
    schedule=replace(_BASE.schedule, warmup_steps=50.0, decay_start_step=800, decay_interval=100),
    data=Data(source_language="en", target_language="en"),
    decode=Decode(source_length=40, target_length=40),
)

# --- A laptop, most of an hour: captions of photographs, a language pair that people speak (studies/multi30k.py).
_CPU_MULTI30K = replace(
    _CPU_TINY,
    source="this repository, for two CPU cores and the captions of Multi30k",
    # Faster than fp32 on a CPU that multiplies bf16, slower on one that does not.
    precision="bf16",
    num_train_examples=28992,
    num_eval_examples=1014,
    quality_target=0.34,
    global_batch_size=128,
    eval_batch_size=169,
    train_epochs=14.0,
    epochs_per_block=2.0,
    vocabulary_size=7952,
    max_sequence_length=48,
    bucket_limits=(13, 16, 20, 26, 48),
    width=256,
    dropout=0.2,
    init_scale=0.2,
    optimizer=replace(_BASE.optimizer, base_learning_rate=0.002),
    # Four halvings over the last two fifths of 3171 steps, as the published schedules have them.
    schedule=replace(_BASE.schedule, warmup_steps=200.0, decay_start_step=1900, decay_interval=320),
    data=Data(source_language="en", target_language="de"),
    decode=Decode(source_length=48, target_length=48),
)

PRESETS: dict[str, Config] = {
    name: replace(config, system=name)
    for name, config in {
        "cpu-tiny": _CPU_TINY,
        "cpu-multi30k": _CPU_MULTI30K,
        **_V06_PRESETS,
        **_V07_PRESETS,
    }.items()
}
