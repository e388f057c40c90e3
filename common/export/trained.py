"""Rebuilds a trained network from just its checkpoint, in fp32, for inference or export."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from typing import Any

import tensorflow as tf
import tf_keras

from common.config import benchmarks
from common.config.digest import from_dict
from common.config.schema import RunConfig
from common.distributed.replicas.single import Single
from common.errors import UserError, one_line
from common.export import limits
from common.layers import batch_norm
from common.layers.precision import precision
from common.train import checkpoint, checkpoint_file, warm_start
from common.train.serving import Codec, Serving
from common.train.state import Network

_FIX = "it was written by another version, or is damaged; get a good copy"


@dataclasses.dataclass(frozen=True)
class Trust:
    """What the user allows a model to do (docs/security.md).

    Attributes:
      plugins: whether it may name functions to import, MODULE:FUNCTION (docs/extend.md).
      large: whether its sizes may be far beyond the presets.
    """

    plugins: bool = False
    large: bool = False


STRANGER = Trust()  # The least trust.


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
      path: the checkpoint.
      config: the saved run's configuration, adapted to one replica in fp32 (fp64 stays) without training.
      saved: the configuration of the run that saved it.
      labels: names of its classes; () if the checkpoint has none.
      assets: {name: content}, such as a vocabulary.
      model, serving: the network, and its inference interface.
      step: number of training steps it has taken.
    """

    path: pathlib.Path
    config: RunConfig
    saved: RunConfig
    labels: tuple[str, ...]
    assets: dict[str, bytes]
    model: tf_keras.Model
    serving: Serving
    step: int

    @property
    def benchmark(self) -> str:
        return self.config.benchmark

    def about(self) -> dict[str, Any]:
        """Returns the description that an export contains, ready for JSON."""
        return {
            "benchmark": self.benchmark,
            "kind": self.serving.kind,
            "reading": dataclasses.asdict(self.serving.reading),
            "inputs": {name: [s.shape.as_list(), s.dtype.name] for name, s in self.serving.core.items()},
            "labels": list(self.labels),
            "step": self.step,
            "config": {
                **dataclasses.asdict(self.config),
                **{name: dataclasses.asdict(getattr(self.saved, name)) for name in ("optimizer", "schedule")},
            },
        }

    def weights(self) -> dict[str, tf.Variable]:
        """Returns the inference variables by name: weights, and batch norm's merged moments."""
        return warm_start.variables(self.model)


def find(path: str | os.PathLike) -> pathlib.Path:
    """Returns a checkpoint file: `path` itself, or in a folder the best one that a run noted, else the newest.

    Raises UserError if there is no checkpoint.
    """
    path = pathlib.Path(path)
    paths = checkpoint_file.checkpoints(path) if os.path.isdir(path) else [path]
    if os.path.isdir(path) and (path / checkpoint_file.BEST).is_file():
        paths = [path / checkpoint_file.BEST]
    if not paths or not os.path.isfile(paths[-1]):
        raise UserError(f"{path}: no checkpoint there; name a checkpoint_*.npz, or its folder")
    return paths[-1]


def load(path: str | os.PathLike, benchmark: str = "", trust: Trust = STRANGER) -> Trained:
    """Rebuilds the network of a checkpoint, which may be untrusted.

    It ignores the optimizer and the schedule.

    Args:
      path: a checkpoint file, or a folder (`find`).
      benchmark: for a checkpoint from a version that did not store it; "" takes the configuration's.
      trust: what the checkpoint may do.

    Raises UserError if the checkpoint is missing, damaged, of an unknown benchmark, or needs something that `trust`
    does not allow.
    """
    path = find(path)
    file = checkpoint_file.read(path, training=False)
    benchmark = benchmark or file.meta["benchmark"]
    saved, config = described(benchmark, file.meta["config"], path, trust)
    with one_line(f"{path}: no network can be made of it", _FIX):
        task, replicas = benchmarks.module(benchmark, "task").Task(config, None), Single()
        with limits.weights_within(file.arrays, path):
            network = Network(task, replicas, precision(config.precision))
        checkpoint.restore_weights_of(network, file)
        batch_norm.merge_moments(network.model, replicas)
        labels = tuple(file.meta["labels"])
        serving = benchmarks.module(benchmark, "serving").serving(task, network.model, labels)
    if not trust.large:
        limits.check_input(serving, path)
    step = file.meta["step"]
    return Trained(path, config, saved, labels, file.assets, network.model, serving, step)


def check_benchmark(name: Any, where: str | os.PathLike) -> None:
    """Checks the benchmark that the model `where` names.

    Raises UserError if this project has no such benchmark.
    """
    if name not in benchmarks.NAMES:
        names = ", ".join(benchmarks.NAMES)
        raise UserError(f"{where}: benchmark {str(name)[:80]!r} is unknown; known: {names}")


def described(
    benchmark: Any, values: Any, where: str | os.PathLike, trust: Trust = STRANGER
) -> tuple[RunConfig, RunConfig]:
    """Returns (the configuration that a model describes, the same adapted for inference by `alone`).

    Args:
      benchmark: the name from the model.
      values: its configuration as plain values.
      where: the model, for errors.
      trust: what it may do.

    Raises:
      UserError: the benchmark is unknown, a field is invalid, or the model needs something that `trust` does not allow.
    """
    check_benchmark(benchmark, where)
    presets = benchmarks.module(benchmark, "presets")
    with one_line(f"{where}: its configuration cannot be used", _FIX):
        try:
            saved = dataclasses.replace(from_dict(presets.Config, values), benchmark=benchmark)
            if not trust.large:
                limits.check(saved, presets.PRESETS.values())
            for field, name in () if trust.plugins else _without_training(saved).plugin_functions().items():
                raise UserError(
                    f"config.{field}={name[:80]!r} is code that the model names; give --allow_plugins to import and "
                    "run it"
                )
            return saved, alone(saved)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error


def _without_training(config: RunConfig) -> RunConfig:
    """Resets the fields that only training reads to a preset's values."""
    usual = next(iter(benchmarks.module(config.benchmark, "presets").PRESETS.values()))
    names = ("optimizer", "schedule", "loss_scale", "init")
    return dataclasses.replace(config, **{name: getattr(usual, name) for name in names})


def alone(config: RunConfig) -> RunConfig:
    """Adapts a run's configuration for inference: one replica in full precision, uncompiled, without training."""
    precision = "fp64" if config.precision == "fp64" else "fp32"
    single = _without_training(config).single_replica()
    return dataclasses.replace(single, precision=precision, compile="off", accumulation_steps=1)


def codec(benchmark: str, config: RunConfig, assets: dict[str, bytes], where: str | os.PathLike) -> Codec:
    """Returns a text network's codec from its assets; `where` names their source in errors.

    Raises UserError if there are no assets although the text is not bytes, or an asset's name is not a plain file name.
    """
    if not assets and not getattr(config, "reads_bytes", False):
        raise UserError(f"{where}: holds no vocabulary; save the checkpoint again with this version")
    for name in assets:
        checkpoint_file.check_asset(where, name)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in assets.items():
            pathlib.Path(folder, name).write_bytes(content)
        with one_line(f"{where}: its vocabulary cannot be used", _FIX):
            return benchmarks.module(benchmark, "serving").codec(config, folder)
