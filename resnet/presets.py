"""Presets of the ResNet-50 benchmark, and what of a configuration is logged. TensorFlow-free.

docs/resnet-presets.md says for each preset where its values come from and which closed rule, if any, they
break. Abbreviations in `source`: G6 = mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7,
paths start in their Google/ folder. Where a script and its log disagree the log was followed, because the log
is what was scored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.config.clock import Clock
from common.config.schema import Optimizer, Schedule
from resnet import large_batch_presets
from resnet.config import Config, Data


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """What the log's header says about the run, by ruleset.

    Returns:
      [(key, value, metadata)]; every value is read from `config` or its clock.
    """
    optimizer, schedule, clock = config.optimizer, config.schedule, Clock.of(config)
    warmup = _warmup_epochs(config)
    prefix = f"{optimizer.name}_opt_"
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model_bn_span": config.bn_span,
        "opt_name": optimizer.name,
    }
    if config.ruleset == "0.6.0":
        pairs["opt_base_learning_rate"] = optimizer.base_learning_rate
        pairs["opt_learning_rate_warmup_epochs"] = warmup
        if schedule.kind == "step":
            pairs["opt_learning_rate_decay_boundary_epochs"] = list(schedule.boundaries)
    else:
        pairs[prefix + "base_learning_rate"] = optimizer.base_learning_rate
        # closed_resnet_lars.yaml has a key of its own for LARS, closed_resnet_sgd.yaml the general one.
        key = prefix if optimizer.name == "lars" else "opt_"
        pairs[key + "learning_rate_warmup_epochs"] = warmup
    if schedule.kind == "poly":
        pairs[prefix + "learning_rate_decay_poly_power"] = schedule.power
        pairs[prefix + "learning_rate_decay_steps"] = schedule.decay_steps(
            clock.steps_per_epoch, clock.train_steps
        )
    if schedule.kind in ("poly", "cosine"):
        pairs[prefix + "end_learning_rate"] = schedule.end_learning_rate
    pairs[prefix + "momentum"] = optimizer.momentum
    pairs[prefix + "weight_decay"] = optimizer.weight_decay
    if optimizer.name == "lars":
        pairs["lars_epsilon"] = optimizer.epsilon
    return [(key, value, {}) for key, value in pairs.items()]


def _warmup_epochs(config: Config) -> float:
    """As the run has them; `warmup_epochs` itself where `warmup_steps` only rounds an epoch as published code does."""
    schedule = config.schedule
    steps = schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch)
    # 79 / 4 steps for 19.55 at tpu-v3-8192-jax are the furthest.
    return schedule.warmup_epochs if abs(steps - schedule.warmup_epochs) <= 0.011 * steps else steps


_BASE = Config(
    epochs_per_block=4.0,
    replicas="tpu",
)

# --- Round v0.6: 22536 steps of 4096 examples; L2 in the loss besides LARS's own decay; scaled momentum.
_V06 = replace(
    _BASE,
    ruleset="0.6.0",
    batch_norm_span=128,
    optimizer=Optimizer(
        name="lars", base_learning_rate=10.0, weight_decay=2e-4, l2_in_loss=2e-4, scaled_momentum=True
    ),
    schedule=Schedule(kind="poly", warmup_epochs=5.0, power=2.0, end_learning_rate=1e-4),
    data=Data(private_threads=48),
)

# At 32768 examples: 2983 = 19 x 157 steps, and at 512 cores and more other decays and LARS's epsilon.
_V06_32K = replace(
    _V06,
    global_batch_size=32768,
    eval_batch_size=32768,
    train_steps=2983,
    steps_per_block=157,
    optimizer=replace(
        _V06.optimizer, base_learning_rate=31.2, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5
    ),
    schedule=replace(_V06.schedule, warmup_epochs=25.0),
)

_V06_PRESETS = {
    "tpu-v3-32": replace(
        _V06,
        hardware="tpu-v3-32",
        source="G6 benchmarks/resnet/tpu-v3-32/run_and_time.sh and results/tpu-v3-32/resnet",
        num_replicas=32,
        global_batch_size=4096,
        eval_batch_size=4096,
        train_steps=22536,
        steps_per_block=1252,
        data=replace(_V06.data, cache="decoded"),
    ),
    "tpu-v3-128": replace(
        _V06,
        hardware="tpu-v3-128",
        source="G6 benchmarks/resnet/tpu-v3-128/run_and_time.sh and results/tpu-v3-128/resnet",
        num_replicas=128,
        global_batch_size=16384,
        eval_batch_size=16384,
        train_steps=5634,
        steps_per_block=313,
        optimizer=replace(_V06.optimizer, base_learning_rate=25.0),
        data=replace(_V06.data, cache="decoded"),
    ),
    "tpu-v3-256": replace(
        _V06_32K,
        hardware="tpu-v3-256",
        source="G6 benchmarks/resnet/tpu-v3-256/run_and_time.sh and results/tpu-v3-256/resnet",
        num_replicas=256,
        optimizer=replace(_V06.optimizer, base_learning_rate=33.0),
    ),
    "tpu-v3-512": replace(
        _V06_32K,
        hardware="tpu-v3-512",
        source="G6 benchmarks/resnet/tpu-v3-512/run_and_time.sh and results/tpu-v3-512/resnet",
        num_replicas=512,
        batch_norm_span=64,
    ),
    "tpu-v3-1024": replace(
        _V06_32K,
        hardware="tpu-v3-1024",
        source="G6 benchmarks/resnet/tpu-v3-1024/run_and_time.sh and results/tpu-v3-1024/resnet "
        "(1 of 5 runs failed)",
        num_replicas=1024,
        batch_norm_span=32,
    ),
    "tpu-v3-2048": replace(
        _V06_32K,
        hardware="tpu-v3-2048",
        source="G6 benchmarks/resnet/tpu-v3-2048/run_and_time.sh and results/tpu-v3-2048/resnet; row 1 of "
        "Table 1 in 'Scale MLPerf-0.6 Models on Google TPU-v3 Pods' (scaled momentum, 76.9 s)",
        num_replicas=2048,
    ),
}
# The rows of Table 1 that were not submitted: open, see docs/resnet-presets.md.
_V06_PRESETS["tpu-v3-2048-unscaled"] = replace(
    _V06_PRESETS["tpu-v3-2048"],
    source="row 2 of Table 1 in 'Scale MLPerf-0.6 Models on Google TPU-v3 Pods' (figure 6, 72.4 s)",
    hardware="tpu-v3-2048",
    division="open",
    optimizer=replace(_V06_32K.optimizer, scaled_momentum=False),
)
_V06_PRESETS["tpu-v3-2048-unscaled-tuned"] = replace(
    _V06_PRESETS["tpu-v3-2048-unscaled"],
    source="row 3 of Table 1 in 'Scale MLPerf-0.6 Models on Google TPU-v3 Pods' (the 67.1 s record); 64 "
    "epochs are 16 blocks of 157 steps, as in G7 resnet-research-JAX-tpu-v3-8192/train.py for this batch",
    train_steps=2512,
    optimizer=replace(_V06_32K.optimizer, scaled_momentum=False, base_learning_rate=29.0, momentum=0.929),
    schedule=replace(_V06_32K.schedule, warmup_epochs=18.0),
)

# --- Round v0.7: unscaled momentum, no L2 in the loss, epsilon 0.
_V07 = replace(
    _BASE,
    ruleset="0.7.0",
    optimizer=Optimizer(name="lars", weight_decay=2e-4),
    schedule=Schedule(kind="poly", warmup_epochs=5.0, power=2.0, end_learning_rate=1e-4),
    data=Data(aspect_range=(0.75, 1.33)),
)
# The TensorFlow 2 code rounds the steps of an epoch down, in schedule and run, and starts no gamma at 0.
_V07_TF2 = replace(
    _V07,
    zero_init_last_gamma=False,
    kernel_initializer="he_normal",
    first_block_epochs=3.0,
    steps_per_epoch_rounding="floor",
)
_V07_TF1 = replace(_V07, space_to_depth=True)

_V07_PRESETS = {
    "v100-8": replace(
        _V07_TF2,
        hardware="v100-8",
        source="G7 results/gpu-v100-8-TF2.0/resnet: warmup 5, decay over 35 x 513 + 1 steps, first "
        "evaluation after 3 epochs (its run_and_time.sh says 4, 39 epochs and 2)",
        replicas="horovod",
        precision="fp16",
        loss_scale=128.0,
        num_replicas=8,
        global_batch_size=2496,
        eval_batch_size=2496,
        train_steps=40 * 513,
        first_block_steps=3 * 513,
        steps_per_block=4 * 513,
        batch_norm_span=312,
        optimizer=replace(_V07.optimizer, base_learning_rate=9.5),
        schedule=replace(_V07.schedule, warmup_steps=5.0 * 513),
        data=replace(_V07.data, private_threads=32),
    ),
    "tpu-v3-32-v0.7": replace(
        _V07_TF2,
        source="G7 benchmarks/resnet/tpu-v3-32-TF2.0/run_and_time.sh and results/tpu-v3-32-TF2.0/resnet "
        "(which counts epochs from 0)",
        hardware="tpu-v3-32",
        num_replicas=32,
        global_batch_size=4096,
        eval_batch_size=4096,
        train_steps=41 * 312,
        first_block_steps=3 * 312,
        steps_per_block=4 * 312,
        batch_norm_span=128,
        optimizer=replace(_V07.optimizer, base_learning_rate=13.0),
        schedule=replace(_V07.schedule, warmup_epochs=2.0, warmup_steps=2.0 * 312),
        data=replace(_V07.data, cache="decoded"),
    ),
    "tpu-v4-16": replace(
        _V07_TF1,
        hardware="tpu-v4-16",
        source="G7 benchmarks/resnet/tpu-v4-16-TF/run_and_time.sh and results/tpu-v4-16-TF/resnet (whose "
        "evaluation at epoch '38', the tenth, comes after 25020 steps, which are 40.0 epochs)",
        num_replicas=16,
        global_batch_size=2048,
        eval_batch_size=2048,
        train_steps=25656,
        steps_per_block=2502,
        batch_norm_span=128,
        optimizer=replace(_V07.optimizer, base_learning_rate=8.5),
        data=replace(_V07.data, private_threads=100),
    ),
    "tpu-v4-128": replace(
        _V07_TF1,
        hardware="tpu-v4-128",
        source="G7 benchmarks/resnet/tpu-v4-128-TF/run_and_time.sh and results/tpu-v4-128-TF/resnet (whose "
        "evaluation at epoch '42', the eleventh, comes after 6875 steps, which are 44.0 epochs)",
        num_replicas=64,
        global_batch_size=8192,
        eval_batch_size=8192,
        train_steps=7500,
        steps_per_block=625,
        batch_norm_span=128,
        optimizer=replace(_V07.optimizer, base_learning_rate=17.0),
        data=replace(_V07.data, private_threads=100),
    ),
    "tpu-v4-512": replace(
        _V07_TF1,
        hardware="tpu-v4-512",
        source="G7 benchmarks/resnet/tpu-v4-512-TF/run_and_time.sh and results/tpu-v4-512-TF/resnet",
        num_replicas=512,
        global_batch_size=8192,
        eval_batch_size=8192,
        train_steps=6875,
        steps_per_block=626,
        batch_norm_span=64,
        optimizer=replace(_V07.optimizer, base_learning_rate=17.0),
    ),
    "tpu-v3-8192": replace(
        _V07_TF1,
        hardware="tpu-v3-8192",
        source="G7 benchmarks/resnet/tpu-v3-8192-TF/run_and_time.sh and results/tpu-v3-8192-TF/resnet",
        num_replicas=8192,
        global_batch_size=65536,
        eval_batch_size=65536,
        train_steps=1738,
        steps_per_block=79,
        batch_norm_span=64,
        optimizer=replace(_V07.optimizer, base_learning_rate=24.699, momentum=0.951807, weight_decay=1e-4),
        schedule=replace(_V07.schedule, warmup_epochs=31.0),
        data=replace(_V07.data, cache="decoded"),
    ),
}
# JAX counts 79 / 4 = 19.75 steps per epoch: 92 epochs, a warmup of 33, decay over 1166.25 steps.
_V07_PRESETS["tpu-v3-8192-jax"] = replace(
    _V07_PRESETS["tpu-v3-8192"],
    source="G7 resnet-research-JAX-tpu-v3-8192/train.py and results/tpu-v3-8192-JAX/resnet",
    hardware="tpu-v3-8192",
    train_steps=23 * 79,
    optimizer=replace(
        _V07.optimizer,
        base_learning_rate=23.080977304670448,
        momentum=0.9537213777059405,
        weight_decay=1e-4,
    ),
    schedule=replace(_V07.schedule, warmup_epochs=33.0, warmup_steps=33 * 19.75),
)

# --- A laptop, minutes: full-depth ResNet-50 on the generated data set.
_CPU_TINY = replace(
    _BASE,
    source="this repository: tuned for two CPU cores on the set that resnet/tiny.py generates",
    division="open",
    smoke_run=True,
    precision="fp32",
    replicas="single",
    num_train_examples=4000,
    num_eval_examples=2037,
    global_batch_size=64,
    eval_batch_size=128,
    train_epochs=12.0,
    epochs_per_block=2.0,
    width=16,
    image_size=32,
    num_classes=12,
    optimizer=Optimizer(name="sgd", base_learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
    schedule=Schedule(kind="cosine", warmup_epochs=1.0, end_learning_rate=0.0),
    data=Data(cache="decoded", shuffle_buffer=4000, area_range=(0.4, 1.0)),
)

# --- Real photographs on a laptop: 20 classes of Tiny ImageNet, from scratch (make study STUDY=resnet-photos).
_CPU_PHOTOS = replace(
    _CPU_TINY,
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
    optimizer=replace(_CPU_TINY.optimizer, weight_decay=5e-4),
    schedule=Schedule(kind="cosine", warmup_epochs=5.0, end_learning_rate=0.0),
    data=Data(cache="decoded", shuffle_buffer=10000, area_range=(0.25, 1.0)),
)

PRESETS: dict[str, Config] = {
    name: replace(config, system=name)
    for name, config in {
        "cpu-tiny": _CPU_TINY,
        "cpu-photos": _CPU_PHOTOS,
        **_V06_PRESETS,
        **_V07_PRESETS,
        **large_batch_presets.PRESETS,
    }.items()
}
