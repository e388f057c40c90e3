"""Defines presets of large batches: LEGW's ResNet-50 at 1K to 32K, LAMB, Nesterov, AlexNet-BN, ImageNet in Minutes.

LEGW = "Large-Batch Training for LSTM and Beyond". All presets are in the open division: targets and end learning rates
are not MLPerf's. docs/presets.md lists what the papers leave open. TensorFlow-free.

Presets with accumulation_steps = batch / 128 are for one accelerator, which splits each step into micro-batches of 128
images. `--replicas`, `--config.num_replicas` and `--config.accumulation_steps` spread them over more accelerators.
"""

from dataclasses import replace

from common.config.optimizer import Lamb, Lars, Sgd
from common.config.schedule import Polynomial, Step
from resnet.config import Config

# Falls as (1 - i/I)^2 over the whole run.
_WHOLE_RUN = Polynomial(warmup_epochs=0.0, power=2.0, end_learning_rate=0.0, decay_over_whole_run=True)
# borisgin/nvcaffe: a rate of 1 at the start of the warmup.
_RAMP = replace(_WHOLE_RUN, initial_learning_rate=1.0)

# --- ImageNet in Minutes. The abstract gives batch 32K, 90 epochs and 74.9 % but no hyperparameters. LEGW, by the same
# author, lists LARS at 32K and 90 epochs in its Table 1. The weight decay comes from AlexNet-BN.
_CPU_CLUSTER = Config(
    hardware="cpu-cluster-1024",
    division="open",
    precision="fp32",
    replicas="horovod",
    num_replicas=1024,
    global_batch_size=32768,
    eval_batch_size=50176,
    epochs_per_block=1.0,
    label_smoothing=0.0,
    optimizer=Lars(base_learning_rate=32.0, weight_decay=5e-4),
)
_CPU_CLUSTER_PRESETS = {
    "cpu-cluster-1024": replace(
        _CPU_CLUSTER,
        source="'ImageNet Training in Minutes' (batch 32K, 90 epochs, 74.9 %); schedule: Table 1 of 'Large-"
        "Batch Training for LSTM and Beyond'; weight decay: borisgin/nvcaffe models/alexnet_bn",
        train_epochs=90.0,
        quality_target=0.749,
        schedule=replace(_WHOLE_RUN, warmup_epochs=10.0),
    ),
    "cpu-cluster-1024-alexnet": replace(
        _CPU_CLUSTER,
        source="borisgin/nvcaffe models/alexnet_bn/solver_32k.prototxt and train_val2.prototxt; 11 minutes on "
        "1024 CPUs: 'ImageNet Training in Minutes', whose 58.x % top-1 is the target without its fraction",
        model="alexnet_bn",
        image_size=227,
        train_steps=4000,
        steps_per_block=40,
        quality_target=0.58,
        schedule=replace(_RAMP, warmup_epochs=400 * 32768 / 1281167, warmup_steps=400.0),
    ),
}

# --- AlexNet-BN on one accelerator: borisgin/nvcaffe. The solvers count warmup in steps; an epoch has 1281167 / batch.
_ALEXNET = Config(
    division="open",
    model="alexnet_bn",
    image_size=227,
    batch_norm_span=128,
    eval_batch_size=1000,
    epochs_per_block=1.0,
    quality_target=0.58,
    label_smoothing=0.0,
)
_ALEXNET_PRESETS = {
    "alexnet-512": replace(
        _ALEXNET,
        source="borisgin/nvcaffe models/alexnet_bn/solver.prototxt, the baseline: SGD, no ramp, 60 epochs",
        global_batch_size=512,
        accumulation_steps=512 // 128,
        train_steps=150000,
        steps_per_block=5000,
        optimizer=Sgd(base_learning_rate=0.01, weight_decay=5e-4),
        schedule=_WHOLE_RUN,
    ),
    "alexnet-8192": replace(
        _ALEXNET,
        source="borisgin/nvcaffe models/alexnet_bn/solver_8k.prototxt",
        global_batch_size=8192,
        accumulation_steps=8192 // 128,
        train_steps=15600,
        steps_per_block=150,
        optimizer=Lars(base_learning_rate=10.0, weight_decay=5e-4),
        schedule=replace(_RAMP, warmup_epochs=600 * 8192 / 1281167, warmup_steps=600.0),
    ),
    "alexnet-16384": replace(
        _ALEXNET,
        source="borisgin/nvcaffe models/alexnet_bn/solver_16k.prototxt",
        global_batch_size=16384,
        accumulation_steps=16384 // 128,
        train_steps=7800,
        steps_per_block=150,
        optimizer=Lars(base_learning_rate=24.0, weight_decay=5e-4),
        schedule=replace(_RAMP, warmup_epochs=400 * 16384 / 1281167, warmup_steps=400.0),
    ),
}

# --- LEGW: LARS, 90 epochs. The paper's target is 93 % top-5. A run here stops at the top-1 target of 'ImageNet
# Training in Minutes', and also logs top-5.
_LEGW = Config(
    division="open",
    batch_norm_span=128,
    eval_batch_size=1000,
    train_epochs=90.0,
    epochs_per_block=1.0,
    quality_target=0.749,
)
# Table 1: batch, log2 of the rate, warmup epochs.
_TABLE_1 = (
    (1024, 2.5, 0.3125),
    (2048, 3.0, 0.625),
    (4096, 3.5, 1.25),
    (8192, 4.0, 2.5),
    (16384, 4.5, 5.0),
    (32768, 5.0, 10.0),
)
_LEGW_PRESETS = {
    # Figure 2.2: (1 - i/I)^2 over the whole run.
    f"legw-{batch}": replace(
        _LEGW,
        source=f"LEGW, Table 1 and figure 2.2: batch {batch}",
        global_batch_size=batch,
        accumulation_steps=batch // 128,
        optimizer=Lars(base_learning_rate=2**power, weight_decay=2e-4),
        schedule=replace(_WHOLE_RUN, warmup_epochs=warmup),
    )
    for batch, power, warmup in _TABLE_1
}
_LEGW_STEP_PRESETS = {
    # Figure 2.1: times 0.1 after 30, 60 and 80 epochs.
    f"legw-step-{batch}": replace(
        _LEGW_PRESETS[f"legw-{batch}"],
        source=f"LEGW, figure 2.1: batch {batch}",
        schedule=Step(warmup_epochs=warmup, boundaries=(30.0, 60.0, 80.0), factor=0.1),
    )
    for batch, _, warmup in _TABLE_1
}

# --- LAMB, its first author's code for ResNet-50 (run.sh, optimization.py): 76.34 % in log.out. Batch norm is each
# core's own, of 128 images. Differences: that code leaves out the corrections of the averages, which the paper's
# algorithm 2 has; and its decay reaches 0 one step earlier.
_LAMB_PRESETS = {
    "lamb-32768": Config(
        source="fastalgo/imagenet_resnet50_lamb run.sh, optimization.py and resnet_main.py (flags beta1_input, "
        "beta2_input, eps_input); 'Large Batch Optimization for Deep Learning: Training BERT in 76 minutes'",
        division="open",
        batch_norm_span=128,
        global_batch_size=32768,
        accumulation_steps=32768 // 128,
        eval_batch_size=1000,
        train_steps=3519,
        epochs_per_block=1.0,
        quality_target=0.763,
        optimizer=Lamb(
            base_learning_rate=0.04, weight_decay=1.5, epsilon=1e-6, clip_norm=1.0, skip_kinds=("norm",)
        ),
        schedule=Polynomial(
            warmup_epochs=782 * 32768 / 1281167,
            warmup_steps=782.0,
            power=1.0,
            end_learning_rate=0.0,
        ),
    )
}

# --- Nesterov momentum, tuned by authors of "A Large Batch Optimizer Reality Check" (arXiv 2102.06356) for AlgoPerf's
# target. Its decay applies to every variable; batch norm is each core's own, of 1024 / 8 images.
_ALGOPERF_WARMUP = 6999
_ALGOPERF_DECAY = int((140_000 - _ALGOPERF_WARMUP) * 0.9007765761611038)
_NESTEROV_PRESETS = {
    "nesterov-1024": Config(
        source="mlcommons/algorithmic-efficiency reference_algorithms/target_setting_algorithms: jax_nesterov.py, "
        "imagenet_resnet/tuning_search_space.json, get_batch_size.py, README.md; "
        "algorithmic_efficiency/workloads/imagenet_resnet/workload.py (steps, target, crops)",
        division="open",
        batch_norm_span=128,
        global_batch_size=1024,
        accumulation_steps=1024 // 128,
        eval_batch_size=1000,
        train_steps=140_000,
        epochs_per_block=1.0,
        quality_target=0.77185,
        label_smoothing=0.2,
        optimizer=Sgd(
            base_learning_rate=4.131896390902391,
            momentum=0.9274758113254791,
            nesterov=True,
            scaled_momentum=True,
            weight_decay=5.6687777311501786e-6,
            skip_kinds=(),
        ),
        schedule=Polynomial(
            warmup_epochs=_ALGOPERF_WARMUP * 1024 / 1281167,
            warmup_steps=float(_ALGOPERF_WARMUP),
            train_epochs=(_ALGOPERF_WARMUP + _ALGOPERF_DECAY - 1) * 1024 / 1281167,
            power=1.0,
            end_learning_rate=0.001 * 4.131896390902391,
        ),
    )
}

PRESETS: dict[str, Config] = {
    **_CPU_CLUSTER_PRESETS,
    **_ALEXNET_PRESETS,
    **_LEGW_PRESETS,
    **_LEGW_STEP_PRESETS,
    **_LAMB_PRESETS,
    **_NESTEROV_PRESETS,
}
