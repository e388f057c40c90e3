"""Limits what a model of a stranger may ask for before anything of its size is made.

A checkpoint of a kilobyte can describe a network of 10^12 weights, or one whose input has 10^12 pixels. Weights may not
exceed those in the file; what no weight measures, such as the sides of a picture or the width of a search, may not lie
far beyond the presets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from common.config.schema import RunConfig
from common.errors import UserError
from common.train.serving import Serving

# A whole number may be so many times the largest of the benchmark's presets, and any of this size is fine.
MOST_TIMES, FINE = 16, 256
MOST_INPUT = 1 << 28  # Numbers of one input of the network: an hour of frames of 224 x 224 pixels has fewer.
_SPARE = 1 << 20  # Weights that a network may have beyond its file's: those that are derived.
_MOST_TEXT = 4096  # Characters of a text, and numbers of a list.
_RUN = {field.name for field in dataclasses.fields(RunConfig)}
# Bounded by the weights, or of training alone.
_FREE = ("num_classes", "vocabulary_size", "data.shuffle_buffer", "epoch_images", "num_frames")


def check(config: RunConfig, presets: Iterable[RunConfig]) -> None:
    """Refuses a configuration with a number far beyond those of the benchmark's presets.

    Raises:
      UserError: so.
    """
    most: dict[str, float] = {}
    for preset in presets:
        for path, value in _numbers(preset):
            most[path] = max(most.get(path, 0), value)
    for path, value in _numbers(config):
        bound = max(FINE, MOST_TIMES * most.get(path, 0))
        if path not in _FREE and not abs(value) <= bound:
            raise UserError(
                f"config.{path}={value} is far beyond the presets (at most {bound}); give --allow_large if "
                "you trust it"
            )


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields (path, whole number) of the benchmark's own fields; a list or a text counts by its length too."""
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), prefix + field.name
        if not prefix and field.name in _RUN:
            continue
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{path}.")
        elif isinstance(value, str | tuple):
            if len(value) > _MOST_TEXT:
                yield path, len(value)
            yield from ((path, x) for x in value if isinstance(value, tuple) and isinstance(x, int))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield path, value


@contextlib.contextmanager
def weights_within(arrays: Mapping[str, Any], where: str | os.PathLike) -> Iterator[None]:
    """Within it, variables with more numbers together than the `arrays` of a file are refused before they are made.

    Raises:
      UserError: so; `where` names the file.
    """
    left = [2 * sum(array.size for array in arrays.values()) + _SPARE]

    def creator(make: Any, **options: Any) -> tf.Variable:
        shape = options.get("shape")
        if shape is None and not callable(options.get("initial_value")):
            shape = getattr(options.get("initial_value"), "shape", ())
        left[0] -= math.prod(tf.TensorShape(shape).as_list()) if shape is not None else 0
        if left[0] < 0:
            raise UserError(f"{where}: describes a network with more weights than it holds; get a sound copy")
        return make(**options)

    with tf.variable_creator_scope(creator):
        yield


def check_input(serving: Serving, where: str | os.PathLike) -> None:
    """Refuses a network whose input is too large to be one.

    Raises:
      UserError: so.
    """
    for name, spec in serving.core.items():
        if (size := math.prod(spec.shape.as_list())) > MOST_INPUT:
            raise UserError(
                f"{where}: its input {name} has {size} numbers; give --allow_large if you trust it"
            )
