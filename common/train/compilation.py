"""Decides which parts of a run's steps XLA compiles: the whole step, the parts between exchanges, or nothing.

The backend states whether a compiled program may contain its collectives. If not, forward and backward are one program
on each replica, the update is another, and the replicas exchange between them. A network that exchanges in its forward
pass cannot use such programs.
"""

import enum
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from common.config.schema import RunConfig
from common.config.validation import refuse_compile_on
from common.distributed.replicas.base import Replicas
from common.layers import batch_norm

# Maximum number of programs for forward and backward if replicas exchange between them. On GPUs only about a quarter of
# the gradients waits for the end of the backward pass; not measured yet.
ON_GPUS, ON_CPUS = 4, 1


class Compiled(enum.Enum):
    """What XLA compiles, in the words of `--dry_run` and run.json."""

    NOTHING = "nothing"
    BETWEEN = "forward and backward, and the update; replicas exchange between them"
    STEP = "the whole step"


class Plan(NamedTuple):
    """What is compiled, and why not more; the reason is "" if the whole step is compiled.

    `segments`: if replicas exchange between programs, the maximum number of programs for forward and backward.
    """

    compiled: Compiled
    why: str = ""
    segments: int = 1

    def __str__(self) -> str:
        cut = f", in up to {self.segments} segments" if self.segments > 1 else ""
        return f"{self.compiled.value}{cut} ({self.why})" if self.why else self.compiled.value


def plan(config: RunConfig, replicas: Replicas, model: tf_keras.Model) -> Plan:
    """Returns what is compiled in a run. Raises UserError if config.compile=on, but nothing can be compiled."""
    if replicas.drives_from_host:
        return Plan(Compiled.STEP)
    if config.compile == "off":
        return Plan(Compiled.NOTHING, "config.compile=off")
    if config.compile == "auto" and not tf.config.list_physical_devices("GPU") and replicas.name != "tpu":
        return Plan(Compiled.NOTHING, "config.compile=auto, which is off on a CPU")
    if replicas.compiles_collectives:
        return Plan(Compiled.STEP)
    within = exchanges(config, model)
    if not within and replicas.compiles_between:
        why = f"config.replicas={replicas.name} cannot exchange inside a program"
        return Plan(Compiled.BETWEEN, why, _segments(config))
    why = "its programs cannot stand between exchanges"
    why = f"{within} exchanges in the forward pass" if within else why
    refuse_compile_on(config, why)
    return Plan(Compiled.NOTHING, f"config.replicas={replicas.name}: {why}")


def _segments(config: RunConfig) -> int:
    """Returns the number of programs for a forward and backward pass."""
    if config.accumulation_steps > 1:
        return 1
    return ON_GPUS if tf.config.list_physical_devices("GPU") else ON_CPUS


def exchanges(config: RunConfig, model: tf_keras.Model) -> str:
    """Returns the part of a network that exchanges with other replicas in the forward pass; "" if none does."""
    if config.partitions > 1:
        return f"config.partitions={config.partitions}"
    joined = [layer for layer in batch_norm.span_layers(model) if layer.trainable and layer.joins_replicas]
    return f"batch norm over {joined[0].span} images" if joined else ""
