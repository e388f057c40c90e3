"""Converts a configuration to plain values and back, and computes the digest that identifies it. TensorFlow-free."""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from common.config import plugins, removed
from common.config.fields import kind_of
from common.config.overrides import field_types
from common.config.rules import variants_of
from common.config.variants import Variant, Variants
from common.errors import UserError, near

C = TypeVar("C")
# What digests keep of earlier versions' fields: the value of those that are gone, and the names of those that are
# constants of a benchmark's class. So logs and checkpoints keep their digests.
_GONE = {"first_block_epochs": 0.0, "first_block_steps": 0}
_CONSTANTS = ("model", "steps_per_epoch_rounding")


def to_dict(config: Any) -> dict[str, Any]:
    """Returns a configuration as a nested plain dict, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(cls: type[C], values: Mapping[str, Any], path: str = "config") -> C:
    """Converts the result of `to_dict` back to a configuration; JSON lists become tuples again.

    Raises UserError for a field that this version does not know, or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{path}: is not a group of fields; written by another version?")
    if path == "config":
        values = removed.without(values)
    hints = field_types(cls)
    fields = {}
    for name, value in values.items():
        if name not in hints:
            hint = near(name, list(hints))
            raise UserError(f"{path}.{name}: unknown field{hint}; written by another version?")
        kind = hints[name]
        if (variants := _variants(kind)) and isinstance(value, Mapping):
            kind, value = variants.of_saved(value)
        if dataclasses.is_dataclass(kind):
            fields[name] = from_dict(kind, value, f"{path}.{name}")
            continue
        value = tuple(value) if isinstance(value, list) else value
        if not _fits(value, kind):
            message = f"{path}.{name}={str(value)[:80]}: not {kind_of(kind)}"
            raise UserError(f"{message}; written by another version?")
        fields[name] = value
    names = (field.name for field in dataclasses.fields(cls) if field.init)
    return cls(**{name: fields[name] for name in names if name in fields})


def _variants(kind: Any) -> Variants[Any] | None:
    """Returns the classes of an optimizer or a schedule; None for another type."""
    return variants_of(kind.path) if isinstance(kind, type) and issubclass(kind, Variant) else None


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has a field's type; an int is accepted as a float."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind or (kind is type(None) and value is None)


def digest(config: Any) -> str:
    """Returns the SHA-256 of the configuration's canonical JSON, in hexadecimal.

    It includes a `added_field` (common/config/closed_fields.py) only if the value differs from the default. If the
    configuration names user functions, the digest includes the source of their modules.

    Raises UserError if Python no longer finds such a module.
    """
    values = _digested(config)
    if functions := config.plugin_functions():
        values["own_functions"] = {field: plugins.digest(field, name) for field, name in functions.items()}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _digested(config: Any) -> dict[str, Any]:
    """Returns what a digest covers: the fields, and fields of earlier versions that are constants now."""
    constants = {name: getattr(config, name) for name in _CONSTANTS}
    return {**_GONE, **constants, **_fields(config)}


def _fields(config: Any) -> dict[str, Any]:
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("digest") == "unless default" and value == field.default:
            continue
        if variants := _variants(type(value)):
            value = variants.every_field(value)
        values[field.name] = _fields(value) if dataclasses.is_dataclass(value) else value
    return values
