"""Defines presets of ResNet-50 as Google and NVIDIA submitted it to MLPerf Training v0.6 and v0.7. TensorFlow-free.

docs/presets.md lists the sources of each preset. Abbreviations in `source`: G6 =
mlcommons/training_results_v0.6, G7 = mlcommons/training_results_v0.7; paths start in their Google/ folders; NV7 is the
NVIDIA/ folder of G7. Where a script and its log disagree, the preset follows the log, because MLPerf scored the log.
"""

from dataclasses import replace

from common.config.optimizer import Lars, Sgd
from common.config.presets import published
from common.config.schedule import Polynomial
from common.config.schema import Communication
from resnet.config import Config, Data

_POLY = Polynomial(warmup_epochs=5.0, power=2.0, end_learning_rate=1e-4)

# --- Round v0.6: 72 epochs at batches up to 16384; L2 in the loss in addition to LARS's own decay; scaled momentum.
_V06 = Config(
    source="G6 benchmarks/resnet/{name}/run_and_time.sh and results/{name}/resnet",
    ruleset="0.6.0",
    replicas="tpu",
    epochs_per_block=4.0,
    batch_norm_span=128,
    schedule=Polynomial(warmup_epochs=5.0, power=2.0, end_learning_rate=1e-4),
    # tf.image.resize_bicubic of TensorFlow 1 (resnet_preprocessing.py), as in the rows of v0.7 that are not JAX.
    data=Data(cache="decoded", resize="legacy_bicubic"),
)

# Batch 32768: 2983 = 19 x 157 steps; from 512 cores on, LARS has different decays and a different epsilon.
_V06_32K = replace(
    _V06,
    global_batch_size=32768,
    eval_batch_size=32768,
    train_steps=2983,
    steps_per_block=157,
    optimizer=Lars(
        base_learning_rate=31.2, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5, scaled_momentum=True
    ),
    schedule=replace(_POLY, warmup_epochs=25.0),
    data=Data(resize="legacy_bicubic"),
)

# On a pod, each replica updates its part of the weights: docs/sources.md, mlperf 3.
_SHARDED = Communication(weight_update="blocks")

_V06_PRESETS = {
    "tpu-v3-32": replace(
        _V06,
        num_replicas=32,
        global_batch_size=4096,
        eval_batch_size=4096,
        train_steps=22536,
        steps_per_block=1252,
        optimizer=Lars(base_learning_rate=10.0, weight_decay=2e-4, l2_in_loss=2e-4, scaled_momentum=True),
    ),
    "tpu-v3-128": replace(
        _V06,
        num_replicas=128,
        global_batch_size=16384,
        eval_batch_size=16384,
        train_steps=5634,
        steps_per_block=313,
        optimizer=Lars(base_learning_rate=25.0, weight_decay=2e-4, l2_in_loss=2e-4, scaled_momentum=True),
    ),
    "tpu-v3-256": replace(
        _V06_32K,
        num_replicas=256,
        optimizer=Lars(base_learning_rate=33.0, weight_decay=2e-4, l2_in_loss=2e-4, scaled_momentum=True),
    ),
    "tpu-v3-512": replace(_V06_32K, num_replicas=512, batch_norm_span=64),
    "tpu-v3-1024": replace(
        _V06_32K,
        source="G6 benchmarks/resnet/tpu-v3-1024/run_and_time.sh and results/tpu-v3-1024/resnet "
        "(1 of 5 runs failed)",
        num_replicas=1024,
        batch_norm_span=32,
    ),
    "tpu-v3-2048": replace(
        _V06_32K,
        source="G6 benchmarks/resnet/tpu-v3-2048/run_and_time.sh and results/tpu-v3-2048/resnet; row 1 of "
        "Table 1 in 'Scale MLPerf-0.6 Models on Google TPU-v3 Pods' (scaled momentum, 76.9 s)",
        num_replicas=2048,
        communication=_SHARDED,
    ),
    # Rows of Table 1 that nobody submitted: open division, see docs/presets.md.
    "tpu-v3-2048-unscaled": replace(
        _V06_32K,
        hardware="tpu-v3-2048",
        source="row 2 of Table 1 in 'Scale MLPerf-0.6 Models on Google TPU-v3 Pods' (figure 6, 72.4 s)",
        division="open",
        num_replicas=2048,
        communication=_SHARDED,
        optimizer=Lars(base_learning_rate=31.2, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5),
    ),
    "tpu-v3-2048-unscaled-tuned": replace(
        _V06_32K,
        hardware="tpu-v3-2048",
        source="row 3 of Table 1 in 'Scale MLPerf-0.6 Models on Google TPU-v3 Pods' (the 67.1 s record); 64 "
        "epochs are 16 blocks of 157 steps, as in G7 resnet-research-JAX-tpu-v3-8192/train.py for this batch",
        division="open",
        num_replicas=2048,
        communication=_SHARDED,
        train_steps=2512,
        optimizer=Lars(
            base_learning_rate=29.0, momentum=0.929, weight_decay=1e-4, l2_in_loss=1e-4, epsilon=1e-5
        ),
        schedule=replace(_POLY, warmup_epochs=18.0),
    ),
}

# --- Round v0.7: unscaled momentum, no L2 in the loss, epsilon 0. The rules have an evaluation every four epochs; a run
# ends with the first one at or after the end of its decay (G7
# resnet-research-TF-tpu-v4-16/util/train_and_eval_runner.py also rounds the number of blocks up). First the TensorFlow
# 1 code.
_V07_TF1 = Config(
    ruleset="0.7.0",
    replicas="tpu",
    epochs_per_block=4.0,
    implementation="google_v07",
    space_to_depth=True,
    schedule=Polynomial(warmup_epochs=5.0, power=2.0, end_learning_rate=1e-4),
    # The code has two readers. Only the largest rows use the one for decoded images; its crops keep 0.08 or more.
    data=Data(area_range=(0.05, 1.0), resize="legacy_bicubic"),
)
# Batch 65536.
_V07_64K = replace(
    _V07_TF1,
    hardware="tpu-v3-8192",
    num_replicas=8192,
    global_batch_size=65536,
    eval_batch_size=65536,
    steps_per_block=79,
    batch_norm_span=64,
    data=Data(cache="decoded", resize="legacy_bicubic"),
)
# The TensorFlow 2 code.
_V07_TF2 = Config(
    ruleset="0.7.0",
    epochs_per_block=4.0,
    eval_epochs=(3.0,),
    implementation="tensorflow2",
    data=Data(shuffle_buffer=10000, area_range=(0.05, 1.0), resize="legacy_bilinear"),
)

# NVIDIA's MXNet code: 208 images per GPU; each GPU rounds up the steps in its share of an epoch; evaluations come after
# epoch 1, then every 4.
_NVIDIA = Config(
    ruleset="0.7.0",
    replicas="horovod",
    precision="fp16",
    loss_scale=128.0,
    epochs_per_block=4.0,
    eval_epochs=(1.0,),
    implementation="mxnet",
    batch_norm_span=208,
    # A crop keeps at least 5 % of the area; interpolation is linear (NV7 resnet/implementations/mxnet/common/dali.py).
    data=Data(area_range=(0.05, 1.0), resize="bilinear"),
)

# Its LARS corrects momentum by the ratio of the rates. The schedule's first step is 2, because an update without
# gradients comes before the clock and MXNet counts before it updates; the decay ends at the last step of the epochs
# (NV7 resnet/implementations/mxnet/common/fit.py: SGDwFASTLARS, PolySchedule).
_NVIDIA_LARS = Lars(scaled_momentum=True, trust_in_velocity=True)


def _nvidia_schedule(warmup_epochs: float, epochs: int, steps_per_epoch: int, batch: int) -> Polynomial:
    return Polynomial(
        warmup_epochs=warmup_epochs,
        warmup_steps=warmup_epochs * steps_per_epoch,
        train_epochs=(epochs * steps_per_epoch - 1) * batch / 1281167,
        first_step=2,
    )


_V07_PRESETS = {
    "v100-8": replace(
        _V07_TF2,
        source="G7 results/gpu-v100-8-TF2.0/resnet: warmup 5, decay over 35 x 513 + 1 steps, first "
        "evaluation after 3 epochs (its run_and_time.sh says 4, 39 epochs and 2)",
        replicas="horovod",
        precision="fp16",
        loss_scale=128.0,
        num_replicas=8,
        global_batch_size=2496,
        eval_batch_size=2496,
        train_steps=43 * 513,
        steps_per_block=4 * 513,
        batch_norm_span=312,
        optimizer=Lars(base_learning_rate=9.5, weight_decay=2e-4),
        schedule=Polynomial(
            warmup_epochs=5.0, warmup_steps=5.0 * 513, train_epochs=40 * 513 * 2496 / 1281167
        ),
    ),
    "dgx-1": replace(
        _NVIDIA,
        source="NV7 benchmarks/resnet/implementations/mxnet/config_DGX1.sh and results/dgx1_ngc20.06_mxnet/resnet "
        "(which logs the decay's steps in epochs: 37)",
        num_replicas=8,
        global_batch_size=1664,
        eval_batch_size=1664,
        train_epochs=37.0,
        train_steps=37 * 770,
        steps_per_block=4 * 770,
        optimizer=replace(_NVIDIA_LARS, base_learning_rate=7.4, weight_decay=1e-4),
        schedule=_nvidia_schedule(2.0, 37, 770, 1664),
    ),
    "dgx-2h": replace(
        _NVIDIA,
        source="NV7 benchmarks/resnet/implementations/mxnet/config_DGX2.sh and results/dgx2h_ngc20.06_mxnet/resnet "
        "(which logs the decay's steps in epochs: 42)",
        num_replicas=16,
        global_batch_size=3328,
        eval_batch_size=3328,
        train_epochs=41.0,
        train_steps=41 * 385,
        steps_per_block=4 * 385,
        # The classifier's bias decays too (NV7 resnet/implementations/mxnet/common/fit.py: set_wd_mult).
        optimizer=Sgd(base_learning_rate=6.0, weight_decay=2.5e-5, skip_kinds=("norm",)),
        schedule=_nvidia_schedule(5.0, 42, 385, 3328),
    ),
    "dgx-2h-32": replace(
        _NVIDIA,
        source="NV7 benchmarks/resnet/implementations/mxnet/config_DGX2_multi_32x16x65.sh and "
        "results/dgx2h_n32_ngc20.06_mxnet/resnet (which logs the decay's steps in epochs: 58)",
        num_replicas=512,
        global_batch_size=33280,
        eval_batch_size=33280,
        batch_norm_span=65,
        train_epochs=56.0,
        train_steps=56 * 39,
        eval_epochs=(),
        steps_per_block=4 * 39,
        optimizer=replace(_NVIDIA_LARS, base_learning_rate=21.2, momentum=0.94, weight_decay=2.5e-5),
        schedule=_nvidia_schedule(16.0, 58, 39, 33280),
    ),
    "tpu-v3-32-v0.7": replace(
        _V07_TF2,
        hardware="tpu-v3-32",
        source="G7 benchmarks/resnet/tpu-v3-32-TF2.0/run_and_time.sh and results/tpu-v3-32-TF2.0/resnet "
        "(which counts epochs from 0)",
        replicas="tpu",
        num_replicas=32,
        global_batch_size=4096,
        eval_batch_size=4096,
        train_steps=43 * 312,
        steps_per_block=4 * 312,
        batch_norm_span=128,
        optimizer=Lars(base_learning_rate=13.0, weight_decay=2e-4),
        schedule=Polynomial(
            warmup_epochs=2.0, warmup_steps=2.0 * 312, train_epochs=41 * 312 * 4096 / 1281167
        ),
        data=replace(_V07_TF2.data, cache="decoded"),
    ),
    "tpu-v4-16": replace(
        _V07_TF1,
        source="G7 benchmarks/resnet/tpu-v4-16-TF/run_and_time.sh and results/tpu-v4-16-TF/resnet (whose "
        "evaluation at epoch '38', the tenth, comes after 25020 steps, which are 40.0 epochs)",
        num_replicas=16,
        global_batch_size=2048,
        eval_batch_size=2048,
        train_steps=11 * 2502,
        steps_per_block=2502,
        batch_norm_span=128,
        optimizer=Lars(base_learning_rate=8.5, weight_decay=2e-4),
        schedule=Polynomial(warmup_epochs=5.0, train_epochs=25656 * 2048 / 1281167),
    ),
    "tpu-v4-128": replace(
        _V07_TF1,
        source="G7 benchmarks/resnet/tpu-v4-128-TF/run_and_time.sh and results/tpu-v4-128-TF/resnet (whose "
        "evaluation at epoch '42', the eleventh, comes after 6875 steps, which are 44.0 epochs)",
        num_replicas=64,
        global_batch_size=8192,
        eval_batch_size=8192,
        train_steps=7500,
        steps_per_block=625,
        batch_norm_span=128,
        optimizer=Lars(base_learning_rate=17.0, weight_decay=2e-4),
    ),
    "tpu-v4-512": replace(
        _V07_TF1,
        source="G7 benchmarks/resnet/tpu-v4-512-TF/run_and_time.sh and results/tpu-v4-512-TF/resnet",
        num_replicas=512,
        global_batch_size=8192,
        eval_batch_size=8192,
        train_steps=11 * 626,
        steps_per_block=626,
        batch_norm_span=64,
        optimizer=Lars(base_learning_rate=17.0, weight_decay=2e-4),
        schedule=Polynomial(warmup_epochs=5.0, train_epochs=6875 * 8192 / 1281167),
    ),
    "tpu-v3-8192": replace(
        _V07_64K,
        source="G7 benchmarks/resnet/tpu-v3-8192-TF/run_and_time.sh and results/tpu-v3-8192-TF/resnet",
        train_steps=1738,
        optimizer=Lars(base_learning_rate=24.699, momentum=0.951807, weight_decay=1e-4),
        schedule=replace(_POLY, warmup_epochs=31.0),
    ),
    # JAX counts 79 / 4 = 19.75 steps per epoch: 92 epochs, 33 warmup epochs, decay over 1166.25 steps.
    "tpu-v3-8192-jax": replace(
        _V07_64K,
        source="G7 resnet-research-JAX-tpu-v3-8192/train.py and results/tpu-v3-8192-JAX/resnet",
        communication=_SHARDED,
        train_steps=23 * 79,
        optimizer=Lars(base_learning_rate=23.080977304670448, momentum=0.9537213777059405, weight_decay=1e-4),
        schedule=replace(_POLY, warmup_epochs=33.0, warmup_steps=33 * 19.75),
        data=Data(cache="decoded"),
    ),
}

PRESETS: dict[str, Config] = published({**_V06_PRESETS, **_V07_PRESETS})
