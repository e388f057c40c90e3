"""Describes a run for `--describe`: parameters and multiply-adds counted on the built model, and the run's sizes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tf_keras

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.distributed import blank
from common.distributed.replicas.base import Replicas
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.train.compilation import plan
from common.train.multiply_adds import forward_macs
from common.train.task import Task


class _OnPaper(Single):
    """One device that represents all replicas, to build any preset's network; nothing runs on it."""

    def __init__(self, config: RunConfig):
        self.num_replicas, self.name = config.num_replicas, config.replicas
        self.drives_from_host = config.replicas == "pjrt"
        self.compiles_between = config.replicas in ("horovod", "multiworker")
        self.compiles_collectives = config.replicas in ("single", "tpu")


def describe(task: Task, hyperparameters: Sequence[tuple[str, Any, Mapping]]) -> dict[str, Any]:
    """Returns the description of a run, ready for JSON; needs no data and no machine of the preset's size.

    Raises UserError if no network can be built from the configuration.
    """
    config, run_length = task.config, RunLength.of(task.config)
    replicas = _OnPaper(config)
    with blank.scope():  # So that the largest network takes no memory.
        model = task.build(replicas, precision(config.precision))
    macs = forward_macs(model, task.batch_shapes)
    return {
        "benchmark": config.benchmark,
        "model": config.model,
        "system": config.system,
        "ruleset": config.ruleset,
        "parameters": parameters(model),
        "forward_macs_per_example": macs,
        "forward_flops_per_example": 2 * macs,
        "global_batch_size": config.global_batch_size,
        "steps_per_epoch": run_length.whole_steps_per_epoch,
        "train_steps": run_length.train_steps,
        "quality_target": config.logged_target,
        "compiled_here": _compiled(config, replicas, model),
        "hyperparameters": {key: value for key, value, _ in hyperparameters},
    }


def _compiled(config: RunConfig, replicas: Replicas, model: tf_keras.Model) -> str:
    """Returns what XLA would compile for the run on this machine, or why the run would not start."""
    try:
        return str(plan(config, replicas, model))
    except UserError as error:
        return str(error)


def parameters(model: tf_keras.Model) -> int:
    """Returns the number of trainable parameters."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
