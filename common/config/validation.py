"""Checks a configuration for values that a later stage would reject. TensorFlow-free.

`RunConfig.validate` calls `check_values`, then the benchmark's own checks, then `check_stages`. The later stages call
the same functions themselves: `check_schedule`, `Optimizer.check` and `check_backend`.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from common.config import plugins
from common.config.ranges import at_least, one_of
from common.config.rules import SCHEDULES
from common.config.run_length import RunLength
from common.config.schedule import Schedule
from common.errors import UserError

PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
REPLICAS = ("single", "mirrored", "multiworker", "horovod", "tpu", "pjrt")
SUMMATIONS = ("flat", "2d")
WIRES = ("full", "bf16_sum")
UPDATES = ("whole", "sharded", "blocks")
LARGEST_SEED = 2**32 - 1  # The largest seed that np.random.seed accepts.
# Of float32: the least normal number (devices flush smaller ones to 0), where infinity begins, half a digit below 1.
_LEAST_NORMAL, _LARGEST, _HALF_DIGIT = 2.0**-126, 2.0**128 * (1 - 2.0**-25), 2.0**-25
_AVERAGES = ("momentum", "beta_1", "beta_2", "rho")


def check_values(config: Any) -> None:
    """Checks the fields that every benchmark has.

    Raises UserError if a value is unknown or out of range, or two fields contradict each other.
    """
    one_of(config, "precision", PRECISIONS)
    one_of(config, "ruleset", config.rulesets)
    one_of(config, "replicas", REPLICAS)
    one_of(config, "division", ("closed", "open"))
    one_of(config, "compile", ("auto", "on", "off"))
    one_of(config, "communication.algorithm", SUMMATIONS)
    one_of(config, "communication.wire", WIRES)
    one_of(config, "communication.weight_update", UPDATES)
    at_least(config, 1, "num_replicas", "accumulation_steps", "global_batch_size", "eval_batch_size")
    at_least(config, 1, "checkpoint_blocks")
    at_least(config, 0, "frozen_stages", "patience")
    # Lengths; 0 derives most of them from another field.
    at_least(config, 0, "train_steps", "steps_per_block")
    at_least(config, 0, "train_epochs", "epochs_per_block")
    _check_evaluations(config)
    _check_numbers(config)
    _check_plugin_functions(config)
    if not 0 <= config.seed <= LARGEST_SEED:
        raise UserError(f"config.seed={config.seed}: must be at least 0 and at most {LARGEST_SEED}")
    if config.frozen_stages > len(config.stages):
        raise UserError(
            f"config.frozen_stages={config.frozen_stages}: {config.model} has {len(config.stages)} stages that can be "
            "frozen; use at most that"
        )
    if not 0 < config.loss_scale < math.inf:
        raise UserError(f"config.loss_scale={config.loss_scale}: must be above 0; 1 scales nothing")
    if config.quality_target is None and not config.smoke_run:
        fix = "set config.smoke_run=true, or a target"
        raise UserError(f"config.quality_target=none: such a run is not a result; {fix}")
    for name in config.target_fields:
        if (value := getattr(config, name)) is not None and not math.isfinite(value):
            raise UserError(f"config.{name}={value}: must be a finite number")
    if config.smoke_run and config.division != "open":
        raise UserError("config.smoke_run=True needs config.division=open: tiny data is not a closed result")
    _check_division(config)
    check_backend(config)


def check_stages(config: Any) -> None:
    """Checks run lengths (which depend on a benchmark's own fields), optimizer and schedule.

    Raises UserError for no examples, a run shorter than one step, or an optimizer or schedule that needs other fields.
    """
    config.optimizer.check()
    _check_digits(config)
    schedule, kinds = config.schedule, ("constant", *config.schedules)
    check_schedule(schedule, RunLength.of(config).steps_per_epoch)
    if not schedule.is_plugin and schedule.kind not in kinds:
        raise schedule.refused("kind", f"{config.benchmark} takes {', '.join(kinds)}, or MODULE:FUNCTION")


def check_schedule(schedule: Schedule, steps_per_epoch: float) -> None:
    """Checks a schedule.

    Args:
      steps_per_epoch: examples / batch, not rounded.

    Raises UserError for an unknown kind, or a value that the kind cannot use.
    """
    SCHEDULES.of(schedule.kind)
    schedule.check(steps_per_epoch)


def _check_digits(config: Any) -> None:
    """Raises UserError for a value that the precision of weights and slots cannot carry."""
    if config.precision == "fp64":
        return
    for path, value in _numbers(config):
        if value and not _LEAST_NORMAL <= abs(value) < _LARGEST:
            raise UserError(
                f"config.{path}={value}: float32 holds numbers from {_LEAST_NORMAL:.2g} to {_LARGEST:.2g}, which "
                f"config.precision={config.precision} computes with; use one of them"
            )
        if 1 - _HALF_DIGIT <= value < 1:
            fix = f"use at most {1 - 4 * _HALF_DIGIT:.7f}"
            raise UserError(f"config.{path}={value}: float32 rounds it to 1; {fix}")


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields (path, value) of each number that is not an integer, also in groups."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{field.name}.")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float):
                yield prefix + field.name, number


def check_backend(config: Any) -> None:
    """Checks that the backend supports the other fields. Raises UserError if it does not."""
    if config.replicas == "single" and config.num_replicas != 1:
        raise UserError(
            f"config.num_replicas={config.num_replicas}: the backend single has one; "
            "use --config.replicas=mirrored, or --config.num_replicas=1"
        )
    if config.replicas == "pjrt" and config.compile == "off":
        raise UserError("config.compile=off: config.replicas=pjrt compiles every step; use auto or on")
    if config.replicas == "mirrored":
        refuse_compile_on(config, "its programs cannot stand between exchanges")
    if config.partitions > 1 and config.replicas in ("horovod", "multiworker"):
        refuse_compile_on(config, f"config.partitions={config.partitions} exchanges in the forward pass")


def refuse_compile_on(config: Any, why: str) -> None:
    """Raises UserError if config.compile=on asks XLA for a step that it cannot compile."""
    if config.compile == "on":
        raise UserError(
            f"config.compile=on: nothing of this run can be compiled (config.replicas={config.replicas}: {why}); "
            "use auto or off"
        )


def _check_division(config: Any) -> None:
    """Raises UserError if batches do not divide evenly among replicas, or replicas among groups."""
    partitions = config.partitions
    if partitions < 1 or config.num_replicas % partitions:
        replicas = f"config.num_replicas={config.num_replicas}"
        raise UserError(f"config.partitions={partitions} does not divide {replicas}; use a divisor")
    if partitions > 1 and config.optimizer.clip_replica_norm:
        raise UserError(
            f"config.optimizer.clip_replica_norm={config.optimizer.clip_replica_norm}: a replica of "
            f"config.partitions={partitions} holds a part of a gradient; use clip_norm"
        )
    groups = "replicas" if partitions == 1 else f"groups of {partitions} replicas"
    micro_batches = config.num_groups * config.accumulation_steps
    if config.global_batch_size % micro_batches:
        raise UserError(
            f"config.global_batch_size={config.global_batch_size} does not divide into {config.num_groups} "
            f"{groups} x {config.accumulation_steps} accumulation steps; use a multiple of {micro_batches}"
        )
    if config.eval_batch_size % config.num_groups:
        raise UserError(
            f"config.eval_batch_size={config.eval_batch_size} does not divide by {config.num_groups} "
            f"{groups}; use a multiple of {config.num_groups}"
        )


def _check_evaluations(config: Any) -> None:
    """Raises UserError if `eval_epochs` does not ascend."""
    epochs = config.eval_epochs
    # In this form, nan fails.
    if not all(0 < a < math.inf for a in epochs) or any(a >= b for a, b in zip(epochs, epochs[1:])):
        raise UserError(f"config.eval_epochs={list(epochs)}: must be positive and ascend")


def _check_plugin_functions(config: Any) -> None:
    for field, name in config.plugin_functions().items():
        plugins.check(field, name)
        if config.division != "open":
            raise UserError(
                f"config.{field}={name!r}: the closed rules know no function of your own; log the run as "
                "--config.division=open"
            )


def _check_numbers(config: Any) -> None:
    """Raises UserError for numbers that make no sense in a rule or schedule but would not cause an error."""
    for part in ("optimizer", "schedule"):
        for name, value in vars(getattr(config, part)).items():
            if isinstance(value, (int, float)) and not 0 <= value < math.inf:
                raise UserError(f"config.{part}.{name}={value}: must be a number of at least 0")
    for name in _AVERAGES:
        if not (value := getattr(config.optimizer, name, 0)) < 1:
            raise UserError(f"config.optimizer.{name}={value}: must be below 1")
    for name in ("train_epochs", "epochs_per_block"):
        if not (value := getattr(config, name)) < math.inf:
            raise UserError(f"config.{name}={value}: must be a finite number")
