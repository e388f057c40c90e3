"""Presets of large-batch papers: LEGW's ResNet-50 at 1K to 32K, AlexNet-BN and the 1,024 CPUs of ImageNet in Minutes.

LEGW = "Large-Batch Training for LSTM and Beyond"; all are open: targets and end learning rates are not MLPerf's.
docs/resnet-presets.md says what the papers leave open. TensorFlow-free.
"""

from __future__ import annotations

from dataclasses import replace

from common.config.legw import legw
from common.config.schema import Optimizer, Schedule
from resnet.config import Config, Data

IMAGES = 1281167

# --- ImageNet in Minutes. Its abstract gives 32K, 90 epochs and 74.9 % but no hyperparameters. LEGW, by the same
# author, has LARS at 32K and 90 epochs in its Table 1. The weight decay is AlexNet-BN's.
_CPU_CLUSTER = Config(
    hardware="cpu-cluster-1024",
    division="open",
    precision="fp32",
    replicas="horovod",
    num_replicas=1024,
    global_batch_size=32768,
    eval_batch_size=50176,
    epochs_per_block=1.0,
    optimizer=Optimizer(name="lars", base_learning_rate=32.0, weight_decay=5e-4),
    schedule=Schedule(
        kind="poly", warmup_epochs=10.0, power=2.0, end_learning_rate=0.0, decay_over_whole_run=True
    ),
)
_ALEXNET_32K = replace(
    _CPU_CLUSTER,
    source="borisgin/nvcaffe models/alexnet_bn/solver_32k.prototxt and train_val2.prototxt; 11 minutes on "
    "1024 CPUs: 'ImageNet Training in Minutes', whose 58.x % top-1 is the target without its fraction",
    model="alexnet_bn",
    image_size=227,
    batch_norm_epsilon=1e-4,
    train_steps=4000,
    steps_per_block=40,
    quality_target=0.58,
    label_smoothing=0.0,
    schedule=replace(
        _CPU_CLUSTER.schedule,
        warmup_epochs=400 * 32768 / IMAGES,
        warmup_steps=400.0,
        initial_learning_rate=1.0,
    ),
    data=Data(crop_fraction=227 / 256),
)

# One accelerator that takes a step in parts of 128 images; `--replicas`, `--config.num_replicas` and
# `--config.accumulation_steps` spread them over others.
PART = 128


def _on_one(config: Config) -> Config:
    batch = config.global_batch_size
    return replace(
        config,
        hardware="local",
        replicas="single",
        num_replicas=1,
        precision="bf16",
        accumulation_steps=batch // PART,
        batch_norm_span=PART,
        eval_batch_size=1000,
    )


def _alexnet(batch: int, steps: int, per_block: int, rate: float, ramp: int) -> Config:
    """The solver of a smaller batch; `ramp` steps from a rate of 1."""
    return _on_one(
        replace(
            _ALEXNET_32K,
            source=f"borisgin/nvcaffe models/alexnet_bn/solver_{batch // 1024}k.prototxt",
            global_batch_size=batch,
            train_steps=steps,
            steps_per_block=per_block,
            optimizer=replace(_ALEXNET_32K.optimizer, base_learning_rate=rate),
            schedule=replace(
                _ALEXNET_32K.schedule, warmup_epochs=ramp * batch / IMAGES, warmup_steps=float(ramp)
            ),
        )
    )


_ALEXNET_512 = _on_one(
    replace(
        _ALEXNET_32K,
        source="borisgin/nvcaffe models/alexnet_bn/solver.prototxt, the baseline: SGD, no ramp, 60 epochs",
        global_batch_size=512,
        train_steps=150000,
        steps_per_block=5000,
        optimizer=Optimizer(name="sgd", base_learning_rate=0.01, weight_decay=5e-4),
        schedule=replace(
            _ALEXNET_32K.schedule, warmup_epochs=0.0, warmup_steps=0.0, initial_learning_rate=0.0
        ),
    )
)

# --- LEGW: LARS, 90 epochs; 2^2.5 and 0.3125 epochs of warmup at 1K. Table 1 and figure 2.2: (1 - i/I)^2 over the whole
# run; figure 2.1: times 0.1 after 30, 60 and 80 epochs. 93 % top-5 is the paper's measure; a run stops at the top-1 of
# 'ImageNet Training in Minutes', and the log has top-5 beside it.
_LEGW_1K = Config(
    division="open",
    global_batch_size=1024,
    train_epochs=90.0,
    epochs_per_block=1.0,
    quality_target=0.749,
    optimizer=Optimizer(name="lars", base_learning_rate=2**2.5, weight_decay=2e-4),
    schedule=Schedule(
        kind="poly", warmup_epochs=0.3125, power=2.0, end_learning_rate=0.0, decay_over_whole_run=True
    ),
)
_LEGW_STEP_1K = replace(
    _LEGW_1K, schedule=Schedule(kind="step", warmup_epochs=0.3125, boundaries=(30.0, 60.0, 80.0), factor=0.1)
)
DOUBLINGS = 5


def _legw(base: Config, doublings: int, source: str) -> Config:
    config = legw(base, 2**doublings)
    # The root of two is no float: the paper's powers are.
    rate = 2 ** (2.5 + doublings / 2)
    return replace(
        _on_one(config), source=source, optimizer=replace(config.optimizer, base_learning_rate=rate)
    )


PRESETS = {
    "cpu-cluster-1024": replace(
        _CPU_CLUSTER,
        source="'ImageNet Training in Minutes' (batch 32K, 90 epochs, 74.9 %); schedule: Table 1 of 'Large-"
        "Batch Training for LSTM and Beyond'; weight decay: borisgin/nvcaffe models/alexnet_bn",
        train_epochs=90.0,
        quality_target=0.749,
        label_smoothing=0.0,
    ),
    "cpu-cluster-1024-alexnet": _ALEXNET_32K,
    "alexnet-512": _ALEXNET_512,
    "alexnet-8192": _alexnet(8192, 15600, 150, 10.0, 600),
    "alexnet-16384": _alexnet(16384, 7800, 150, 24.0, 400),
    **{
        f"legw-{1024 * 2**i}": _legw(_LEGW_1K, i, f"LEGW, Table 1 and figure 2.2: batch {1024 * 2**i}")
        for i in range(DOUBLINGS + 1)
    },
    **{
        f"legw-step-{1024 * 2**i}": _legw(_LEGW_STEP_1K, i, f"LEGW, figure 2.1: batch {1024 * 2**i}")
        for i in range(DOUBLINGS + 1)
    },
}
