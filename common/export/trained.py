"""Rebuilds a trained network from its checkpoint alone, in fp32, ready to answer or to be exported."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from common.config import benchmarks
from common.config.digest import from_dict
from common.config.schema import RunConfig
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers import batch_norm
from common.layers.precision import precision
from common.train import checkpoint, checkpoint_file, warm_start
from common.train.serving import Codec, Serving
from common.train.step import State


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
      path: the checkpoint.
      config: of the run that saved it, for one replica in fp32 (fp64 stays).
      labels: names of its classes; () where the checkpoint has none.
      assets: {name: content}, such as a vocabulary.
      model, serving: the network, and what it offers.
      step: training steps behind it.
    """

    path: pathlib.Path
    config: RunConfig
    labels: tuple[str, ...]
    assets: dict[str, bytes]
    model: tf_keras.Model
    serving: Serving
    step: int

    @property
    def benchmark(self) -> str:
        return self.config.benchmark

    def about(self) -> dict[str, Any]:
        """Returns what an export says of itself, ready for JSON."""
        return {
            "benchmark": self.benchmark,
            "kind": self.serving.kind,
            "labels": list(self.labels),
            "step": self.step,
            "config": dataclasses.asdict(self.config),
        }

    def weights(self) -> dict[str, tf.Variable]:
        """Returns the variables of an inference by name: weights, and of batch norm the merged moments."""
        return warm_start.variables(self.model)


def find(path: str | os.PathLike) -> pathlib.Path:
    """Returns a checkpoint file: `path`, or of the folder `path` the best one that a run noted, else the newest.

    Raises:
      UserError: there is none.
    """
    path = pathlib.Path(path)
    found = checkpoint_file.checkpoints(path) if path.is_dir() else [path]
    if path.is_dir() and (path / checkpoint_file.BEST).is_file():
        found = [path / checkpoint_file.BEST]
    if not found or not found[-1].is_file():
        raise UserError(f"{path}: no checkpoint there; name a checkpoint_*.npz, or its folder")
    return found[-1]


def load(path: str | os.PathLike, benchmark: str = "", fold_batch_norm: bool = False) -> Trained:
    """Rebuilds the network of a checkpoint.

    Args:
      path: a checkpoint file, or a folder (`find`).
      benchmark: of a checkpoint of a version that did not store it; "" takes the configuration's.
      fold_batch_norm: fold the moments into the convolutions before them (`fold`).

    Raises:
      UserError: the checkpoint is missing, damaged or of an unknown benchmark.
    """
    path = find(path)
    file = checkpoint_file.read(path)
    benchmark = benchmark or file.meta.get("benchmark") or file.meta["config"].get("benchmark", "")
    if benchmark not in benchmarks.NAMES:
        raise UserError(f"{path}: benchmark {benchmark!r} is unknown; known: {', '.join(benchmarks.NAMES)}")
    config = alone(from_dict(benchmarks.module(benchmark, "presets").Config, file.meta["config"]))
    task = benchmarks.module(benchmark, "task").Task(config, None)
    replicas = Single()
    state = State(task, replicas, precision(config.precision))
    checkpoint.restore_weights(state, path)
    batch_norm.merge_moments(state.model, replicas)
    if fold_batch_norm:
        fold(state.model)
    labels = tuple(file.meta.get("labels", ()))
    serving = benchmarks.module(benchmark, "serving").serving(task, state.model, labels)
    return Trained(path, config, labels, file.assets, state.model, serving, int(file.meta["step"]))


def alone(config: RunConfig) -> RunConfig:
    """Returns a run's configuration for one replica in full precision, uncompiled."""
    kept = "fp64" if config.precision == "fp64" else "fp32"
    single = config.single_replica()
    return dataclasses.replace(single, precision=kept, compile="off", accumulation_steps=1)


def codec(benchmark: str, config: RunConfig, assets: dict[str, bytes], where: str | os.PathLike) -> Codec:
    """Returns the codec of a network for texts, from its assets; `where` names their source in errors.

    Raises:
      UserError: there are no assets.
    """
    if not assets:
        raise UserError(f"{where}: holds no vocabulary; save the checkpoint again with this version")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in assets.items():
            pathlib.Path(folder, name).write_bytes(content)
        return benchmarks.module(benchmark, "serving").codec(config, folder)


def fold(model: tf_keras.Model) -> int:
    """Folds batch norm into the convolution before it: y = conv(x, k s) + (beta - mean s), s = gamma / sqrt(var + eps).

    A batch norm behind anything but a convolution of its own stays.

    Returns:
      How many were folded.
    """
    count = 0
    for norm in batch_norm.span_layers(model):
        before = _convolution_before(norm)
        if before is None:
            continue
        gamma, beta = norm.scale_offset()
        scale = gamma / np.sqrt(norm.merged_variance.numpy().astype(np.float64) + norm.epsilon)
        offset = beta - norm.merged_mean.numpy() * scale
        before.kernel.assign(before.kernel.numpy() * scale)
        bias = getattr(before, "bias", None)
        norm.fold(offset if bias is None else offset + bias.numpy() * scale)
        if bias is not None:
            bias.assign(np.zeros(bias.shape))
        count += 1
    return count


def _convolution_before(norm: batch_norm.SpanBatchNorm) -> Any:
    nodes = norm.inbound_nodes
    layer = nodes[0].inbound_layers if len(nodes) == 1 else None
    alone = layer is not None and not isinstance(layer, list) and len(layer.outbound_nodes) == 1
    kernel = getattr(layer, "kernel", None) if alone else None
    # With another activation than none, the scale cannot pass it.
    linear = alone and vars(layer).get("activation") in (None, tf_keras.activations.linear)
    return layer if kernel is not None and linear and len(layer.inbound_nodes) == 1 else None
