"""What `--system=here` is made of: a benchmark's rule, and the fields chosen so far. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import operator
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from common.config.hardware import Machine
from common.config.schema import RunConfig

TINY = "cpu-tiny"
# What `Rule.notes` says of fields that several benchmarks have.
SCALED = "every picture is scaled to it, in pixels; details smaller than a pixel are lost"
FLIPPED = "mirrors half of the pictures; set False where left and right differ, as for text"
CROPPED = "range of a random crop, as part of the picture; (1.0, 1.0) keeps all of it"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A benchmark's rule for `here`, from its presets.py.

    Attributes:
      preset: the preset for the user's own data.
      example_bytes: function of the configuration; returns the bytes of memory that one example takes in a training
        step. They were measured; the configuration's sizes scale them.
      eval_bytes: the same of an evaluation; `example_bytes` by default.
      weight_bytes: function of the configuration; returns the bytes of weights, gradients and slots that grow with the
        data's classes, beyond RESERVE_BYTES.
      gpu_batch: maximum number of examples per GPU.
      tiny: the preset for the generated data.
      choices: function of (configuration, machine, bytes of the data folder); returns further fields
        {path: (value, why)}.
      rate_part: function of (configuration, starting preset); returns the part of the preset's learning rate that suits
        the data, and why.
      notes: {path: what it does to the data} of fields that are said to the user even if the preset's value stays.
      weights: {path: value} of the fields that fit the network to weights of `timetotrain weights`; {} for none.
      enough: (examples of a class, these times epochs) with which a network that starts from nothing beats its data's
        baseline: between runs that did and did not (tests/timetotrain/run/test_ending.py). None if no run tells.
      background: number of the network's classes that are none of the data's.
      counts: function of (configuration, data folder); returns {path: value} of the fields that the files themselves
        fix, {} if files are missing. It serves benchmarks without a converter, whose data have no description.
    """

    preset: str
    example_bytes: Callable[[Any], float]
    gpu_batch: int
    eval_bytes: Callable[[Any], float] | None = None
    weight_bytes: Callable[[Any], float] = lambda _: 0.0
    tiny: str = TINY
    choices: Callable[[Any, Machine, int], Mapping[str, tuple[Any, str]]] = lambda *_: {}
    rate_part: Callable[[Any, Any], tuple[float, str]] = lambda *_: (1.0, "")
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    enough: tuple[int, int] | None = None
    background: int = 0
    counts: Callable[[Any, pathlib.Path], Mapping[str, Any]] = lambda *_: {}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A field chosen for this machine or data, and why; the first choice of a run is its starting preset."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.field}={value}: {self.why}"


class Draft:
    """A configuration under construction; fields in `fixed` stay as they are."""

    def __init__(self, config: RunConfig, fixed: set[str]):
        self.config, self.fixed = config, fixed
        self.choices: list[Choice] = []

    def take(self, path: str, value: Any, why: str) -> None:
        """Sets a field unless the command line gives it."""
        if path in self.fixed or operator.attrgetter(path)(self.config) == value:
            return
        self.config = with_field(self.config, path, value)
        self.say(path, why)

    def say(self, path: str, why: str) -> None:
        """Lists a field with its value and `why`; it replaces what was said of it."""
        choice = Choice(path, operator.attrgetter(path)(self.config), why)
        self.choices = [other for other in self.choices if other.field != path] + [choice]


def with_field(config: Any, path: str, value: Any) -> Any:
    """Returns `config` with the field at `path` replaced; lists (from JSON) become tuples."""
    head, _, rest = path.partition(".")
    value = tuple(value) if isinstance(value, list) else value
    value = with_field(getattr(config, head), rest, value) if rest else value
    return dataclasses.replace(config, **{head: value})
