"""Describes a run for `--describe`: parameters and multiply-adds counted on the built model, and the run's sizes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tf_keras

from common.config.clock import Clock
from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.train.compilation import plan
from common.train.task import Task

_TRANSPOSED = tuple(getattr(tf_keras.layers, f"Conv{n}DTranspose") for n in (1, 2, 3))
_PER_CHANNEL = tuple(
    getattr(tf_keras.layers, f"{kind}Conv{n}D") for kind in ("Depthwise", "Separable") for n in (1, 2)
)
_WITH_KERNELS = (
    tf_keras.layers.Conv1D, tf_keras.layers.Conv2D, tf_keras.layers.Conv3D, tf_keras.layers.Dense, *_PER_CHANNEL,
)  # fmt: skip

Shape = Sequence[int | None]


class _OnPaper(Single):
    """One device that represents all replicas, to build any preset's network; nothing runs on it."""

    def __init__(self, config: RunConfig):
        self.num_replicas, self.name = config.num_replicas, config.replicas
        self.drives_from_host = config.replicas == "pjrt"
        self.compiles_between = config.replicas in ("horovod", "multiworker")
        self.compiles_collectives = config.replicas in ("single", "tpu")


def describe(task: Task, hyperparameters: Sequence[tuple[str, Any, Mapping]]) -> dict[str, Any]:
    """Returns the description of a run, ready for JSON; needs no data and no machine of the preset's size.

    Raises UserError: no network can be built from the configuration.
    """
    config, clock = task.config, Clock.of(task.config)
    replicas = _OnPaper(config)
    model = task.build(replicas, precision(config.precision))
    macs = forward_macs(model)
    return {
        "benchmark": config.benchmark,
        "model": config.model,
        "system": config.system,
        "ruleset": config.ruleset,
        "parameters": parameters(model),
        "forward_macs_per_example": macs,
        "forward_flops_per_example": 2 * macs,
        "global_batch_size": config.global_batch_size,
        "steps_per_epoch": clock.whole_steps_per_epoch,
        "train_steps": clock.train_steps,
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


def forward_macs(model: tf_keras.Model) -> int:
    """Returns the multiply-adds of convolutions and matrix products in the forward pass of one example.

    As in the literature, normalisation, activations, biases and pooling do not count: ResNet-50 at 224 px has 4.1e9. A
    layer that multiplies matrices and is not tf_keras's has a method `multiply_adds(input_shape, output_shape) -> int`;
    the shapes lack the batch axis. Raises UserError if a layer has a matrix that this function cannot count, or a
    spatial size is unknown.
    """
    return sum(_macs(layer, inputs, outputs) for layer, inputs, outputs in _calls(model))


def _calls(model: tf_keras.Model) -> Iterator[tuple[tf_keras.layers.Layer, Shape, Shape]]:
    """Yields (layer, input shape, output shape) of every call of every leaf layer; shapes lack the batch axis."""
    for layer in model.layers:
        if isinstance(layer, tf_keras.Model):
            for _ in layer.inbound_nodes:
                yield from _calls(layer)
        elif layer.weights and not isinstance(layer, tf_keras.layers.InputLayer):  # Frozen ones multiply too.
            for node in layer.inbound_nodes:
                yield layer, tuple(node.input_shapes)[1:], tuple(node.output_shapes)[1:]


def _macs(layer: tf_keras.layers.Layer, inputs: Shape, outputs: Shape) -> int:
    if hasattr(layer, "multiply_adds"):
        return layer.multiply_adds(inputs, outputs)
    if isinstance(layer, _WITH_KERNELS):
        # A grouped kernel holds one group's input channels, so its size needs no correction.
        names = ("depthwise_kernel", "pointwise_kernel") if isinstance(layer, _PER_CHANNEL) else ("kernel",)
        kernels = sum(math.prod(getattr(layer, name).shape) for name in names if hasattr(layer, name))
        return _size(layer, (inputs if isinstance(layer, _TRANSPOSED) else outputs)[:-1]) * kernels
    matrices = [v for v in layer.trainable_weights if len(v.shape) > 1]
    if matrices and not isinstance(layer, tf_keras.layers.Embedding):
        raise UserError(f"layer {layer.name} ({type(layer).__name__}): give it a method `multiply_adds`")
    return 0


def _size(layer: tf_keras.layers.Layer, shape: Shape) -> int:
    if None in shape:
        fix = "build the model with a fixed image size"
        raise UserError(f"layer {layer.name}: unknown size {tuple(shape)}; {fix}")
    return math.prod(shape)
