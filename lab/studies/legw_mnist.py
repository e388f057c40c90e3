"""Runs LEGW on MNIST: batches 128 to 8,192, its competitors, seven solvers, the tuned rate, long runs."""

import argparse

from lab.studies import legw
from lab.studies.data import unpack
from lab.studies.runner import settings

# The base values equal PRESETS in mnist/presets.py, which tests/lab/studies/test_studies_legw.py checks.
STUDY = legw.Study(
    name="legw-mnist",
    benchmark="mnist",
    preset="cpu-128",
    batch=128,
    rate=0.04,
    factors=(1, 2, 4, 8, 16, 32, 64),
    compared=(64, 16, 4, 1),
    never=2.0,
    lower_is_better=False,
    unit="accuracy",
    held_out=(
        "--config.data.held_out=10000",
        "--config.num_train_examples=50000",
        "--config.num_eval_examples=10000",
    ),
    tuned_rates=(0.04, 0.08, 0.16, 0.32, 0.64),
    base_rates=(0.005, 0.01, 0.02, 0.04, 0.08),
    base_warmup=0.05,
    close_rates=(0.02, 0.04, 0.08),
    warmups=(0.00625, 0.025, 0.05, 0.1),
    warmup=0.05,
    # What may raise the accuracy at 8,192 (docs/optimizers.md), one change each.
    changes={
        "clip-1": settings(optimizer__clip_norm=1),
        "nesterov": settings(optimizer__nesterov=True),
        "poly": settings(
            schedule__kind="poly",
            schedule__power=2,
            schedule__end_learning_rate=0,
            schedule__decay_over_whole_run=True,
        ),
    },
    long_epochs=100,
    long_flags=(),
    solvers={
        "sgd": ("--config.optimizer.momentum=0", "--config.optimizer.base_learning_rate=0.2"),
        "momentum": (),
        "nesterov": ("--config.optimizer.nesterov=true",),
        "adagrad": (
            "--config.optimizer.name=adagrad",
            "--config.optimizer.base_learning_rate=0.01",
            "--config.optimizer.epsilon=0",  # As the published runs had it.
        ),
        "rmsprop": (
            "--config.optimizer.name=rmsprop",
            "--config.optimizer.base_learning_rate=0.001",
            "--config.optimizer.momentum=0",
            "--config.optimizer.epsilon=1e-7",
        ),
        "adam": (
            "--config.optimizer.name=adam",
            "--config.optimizer.base_learning_rate=0.001",
            "--config.optimizer.epsilon=1e-8",
        ),
        "adadelta": (
            "--config.optimizer.name=adadelta",
            "--config.optimizer.base_learning_rate=1",
            "--config.optimizer.rho=0.95",
            "--config.optimizer.epsilon=1e-6",
        ),
    },
    poly=(
        "--config.schedule.kind=poly",
        "--config.schedule.power=2",
        "--config.schedule.end_learning_rate=0",
        "--config.schedule.decay_over_whole_run=true",
    ),
    data=lambda: unpack("mnist"),
)
add_arguments = legw.add_arguments


def run(args: argparse.Namespace) -> int:
    """Returns the exit status 0; see `legw.run`."""
    return legw.run(STUDY, args)
