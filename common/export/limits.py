"""Limits the sizes in an untrusted model before memory is allocated.

A checkpoint of a kilobyte can describe a network with 10^12 weights, or with an input of 10^12 pixels. A network may
not have many more weights than its file. Sizes that do not depend on weights, such as a picture's sides or a search's
width, may not be far beyond the presets.
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

# A whole number may be at most MOST_TIMES the largest value in the benchmark's presets. Any number up to FINE is
# allowed.
MOST_TIMES, FINE = 16, 256
MOST_INPUT = 1 << 28  # Maximum numbers in one network input: 1,783 RGB frames of 224 x 224 pixels.
_SPARE = 1 << 20  # Weights that a network may have in addition to its file's, for derived ones.
_MOST_TEXT = 4096  # Maximum characters of a text and numbers of a list.
_RUN = {field.name for field in dataclasses.fields(RunConfig)}
# Fields that the weights bound or that only training uses.
_FREE = ("num_classes", "vocabulary_size", "data.shuffle_buffer", "epoch_images", "num_frames")


def check(config: RunConfig, presets: Iterable[RunConfig]) -> None:
    """Checks the numbers of a configuration.

    Raises UserError if a number is far beyond the benchmark's presets.
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
    """Yields (path, whole number) for the benchmark's own fields; also the length of a long list or text."""
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
    """Limits the total size of variables created in the `with` block by the size of a file's `arrays`.

    Raises UserError if the variables would be too large; `where` names the file.
    """
    budget = [2 * sum(array.size for array in arrays.values()) + _SPARE]

    def creator(make: Any, **options: Any) -> tf.Variable:
        shape = options.get("shape")
        if shape is None and not callable(options.get("initial_value")):
            shape = getattr(options.get("initial_value"), "shape", ())
        budget[0] -= math.prod(tf.TensorShape(shape).as_list()) if shape is not None else 0
        if budget[0] < 0:
            raise UserError(f"{where}: describes a network with more weights than it holds; get a good copy")
        return make(**options)

    with tf.variable_creator_scope(creator):
        yield


def check_input(serving: Serving, where: str | os.PathLike) -> None:
    """Checks the size of a network's inputs.

    Raises UserError if an input is larger than MOST_INPUT.
    """
    for name, spec in serving.core.items():
        if (size := math.prod(spec.shape.as_list())) > MOST_INPUT:
            problem = f"its input {name} has {size} numbers"
            raise UserError(f"{where}: {problem}; give --allow_large if you trust it")
