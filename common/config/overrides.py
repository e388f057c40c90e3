"""Builds a configuration from a preset and command-line overrides. TensorFlow-free.

A benchmark's configuration is one frozen dataclass: `RunConfig` (common/config/schema.py) plus the benchmark's own
fields. A preset is `dataclasses.replace` of a base; a flag `--config.optimizer.momentum=0.9` replaces one field. The
configuration holds every hyperparameter: the step, the log and `--describe` read it.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from common.config import removed
from common.config.legw import legw
from common.config.rules import NAMES, variants_of
from common.config.variants import Variant
from common.errors import UserError, near

C = TypeVar("C")
ORDER = {**dict.fromkeys(NAMES, 0), "legw": 2}  # The order in which overrides apply; 1 for others.
SHORT = ("init", "frozen_stages")  # Fields with a flag of their own.


def preset(presets: Mapping[str, C], name: str, others: Sequence[str] = ()) -> C:
    """Returns the preset called `name`.

    Raises:
      UserError: no such preset; the message lists similar names, also from `others`, the caller's additional names.
    """
    if name not in presets:
        names = [*others, *presets]
        raise UserError(f"--system={name}: unknown{near(name, names)}; known: {', '.join(names)}")
    return presets[name]


def configure(
    presets: Mapping[str, C],
    default: Callable[[], C],
    system: str | None,
    overrides: Sequence[tuple[str, str]],
    replicas: str | None = None,
    seed: int | None = None,
    others: Sequence[str] = (),
) -> C:
    """Returns the validated configuration that a command line asks for.

    Args:
      presets: {name: configuration} of the benchmark.
      default: makes the configuration if no preset is named.
      system: the preset's name, or None.
      overrides: [(path, value)] from `split_overrides`.
      replicas, seed: replace the preset's values; None keeps them.
      others: the caller's additional preset names, for the error message.

    Raises UserError for an unknown preset, field or value, or fields that contradict each other.
    """
    config = preset(presets, system, others) if system else default()
    if replicas:
        config = override(config, "replicas", replicas)
    for path, value in overrides:
        config = override(config, path, value)
    if seed is not None:
        config = dataclasses.replace(config, seed=seed)
    config.validate()
    return config


def override(config: C, path: str, value: str) -> C:
    """Returns `config` with the field at `path` ("optimizer.momentum") set to the parsed `value`.

    The path "legw" scales the configuration by the factor `value` (common/config/legw.py). Raises UserError for an
    unknown field (the message lists similar names) or a value of the wrong type.
    """
    if removed.is_constant(vars(config), path, value):
        return config
    if path == "legw":
        if not config.scales_by_legw:
            raise UserError(
                f"--config.legw={value}: {config.benchmark} has a reference rate and warmup for each batch; set "
                "config.global_batch_size, optimizer.base_learning_rate and schedule.warmup_steps instead"
            )
        return legw(config, parse_value(value, float, "config.legw"))
    if variants := variants_of(path):
        group = variants.renamed(getattr(config, variants.group), value)
        return dataclasses.replace(config, **{variants.group: group})
    return _override(config, path.split("."), value, "config." + path)


def override_all(config: C, flags: Sequence[str]) -> C:
    """Returns a copy with every `--config.path=value` of `flags` applied; other flags are ignored.

    Raises UserError: see `override` and `split_overrides`.
    """
    for path, value in split_overrides(flags)[0]:
        config = override(config, path, value)
    return config


@functools.cache  # Python evaluates every annotation anew, which a study of many rows would wait for.
def field_types(cls: type) -> Mapping[str, Any]:
    """Returns {name: type} of a configuration's fields."""
    hints = typing.get_type_hints(cls)
    return types.MappingProxyType({field.name: hints[field.name] for field in dataclasses.fields(cls)})


def _override(config: Any, fields: Sequence[str], value: str, full: str) -> Any:
    types_ = field_types(type(config))
    head = fields[0]
    variants = variants_of(config.path) if isinstance(config, Variant) else None
    if variants and (reason := variants.refusal(type(config), config.variant, head)):
        raise UserError(f"--{full}={value}: {reason}")
    if head not in types_:
        # A field of a group may be meant: optimizer.base_learning_rate.
        hint = _in_group(head, config) or near(head, list(types_))
        raise UserError(f"--{full}={value}: no field {head!r}{hint or ' in ' + ', '.join(sorted(types_))}")
    current = getattr(config, head)
    if len(fields) > 1:
        if not dataclasses.is_dataclass(current):
            raise UserError(f"--{full}={value}: {head!r} is a plain value, it has no fields")
        return dataclasses.replace(config, **{head: _override(current, fields[1:], value, full)})
    if dataclasses.is_dataclass(current):
        names = ", ".join(f.name for f in dataclasses.fields(current))
        raise UserError(f"--{full}={value}: {head!r} is a group; set one of its fields: {names}")
    return dataclasses.replace(config, **{head: parse_value(value, types_[head], full)})


def _in_group(name: str, config: Any) -> str:
    """Returns " (did you mean optimizer.momentum?)" if groups of `config` have a field `name`, else ""."""
    paths = [
        f"{field.name}.{name}"
        for field in dataclasses.fields(config)
        if dataclasses.is_dataclass(group := getattr(config, field.name)) and name in field_types(type(group))
    ]
    return f" (did you mean {', '.join(paths)}?)" if paths else ""


def parse_value(text: str, kind: Any, full: str) -> Any:
    """Parses the text of a field or flag.

    Args:
      text: as on the command line.
      kind: the field's type.
      full: the field's name on a command line, without dashes.

    Raises UserError if the text is not a value of that type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    optional = origin in (typing.Union, types.UnionType)
    if optional and text.lower() in ("none", ""):
        return None
    item = next(a for a in arguments if a is not type(None)) if optional or origin is tuple else kind
    parts = text.strip("()[] ").split(",") if origin is tuple else [text]
    try:
        values = [_parse_one(part.strip(), item) for part in parts if part.strip() or origin is not tuple]
    except (ValueError, KeyError):
        examples = {
            bool: ("true or false", "true"),
            int: ("a whole number", "8"),
            float: ("a finite number", "0.1"),
        }
        form, example = examples[item]
        if origin is tuple:
            form, example = f"a list, each {form}", f"{example},{example}"
        raise UserError(f"--{full}={text}: not {form}; give a value such as {example}") from None
    return tuple(values) if origin is tuple else values[0]


def _parse_one(text: str, kind: type) -> Any:
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    value = kind(text)
    if kind is float and not math.isfinite(value):
        raise ValueError(text)
    return value


def split_overrides(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Separates `--config.path=value` (or `--config.path value`) from the other arguments of a command line.

    `--NAME=value` is short for `--config.NAME=value` for the fields in SHORT. Returns ([(path, value)], the other
    arguments). The optimizer's name and the schedule's kind come first, because their fields depend on it; "legw" comes
    last, because it scales the values that the others set.

    Raises UserError for a `--config.` argument without a value.
    """
    overrides, rest = [], []
    arguments = iter(argv)
    for argument in arguments:
        short = argument.lstrip("-").partition("=")[0]
        if short in SHORT and argument.startswith("-"):
            argument = f"--config.{argument.lstrip('-')}"
        if not argument.startswith(("--config.", "-config.")):
            rest.append(argument)
            continue
        name, equals, value = argument.lstrip("-").removeprefix("config.").partition("=")
        if not equals:
            value = next(arguments, None)
            if value is None or value.startswith("--"):
                raise UserError(f"{argument}: needs a value, as in {argument}=VALUE")
        overrides.append((name, value))
    return sorted(overrides, key=lambda override: ORDER.get(override[0], 1)), rest
