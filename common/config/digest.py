"""Converts a configuration to plain values and back, and computes the digest that identifies it. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from common.config import plugins
from common.config.overrides import field_types
from common.errors import UserError, near

C = TypeVar("C")


def to_dict(config: Any) -> dict[str, Any]:
    """Returns a configuration as a nested plain dict, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
    """Returns the configuration that `to_dict` converted; JSON lists become tuples again.

    Raises:
      UserError: a field that this version does not know.
    """
    hints = field_types(cls)
    fields = {}
    for name, value in values.items():
        if name not in hints:
            hint = near(name, list(hints))
            raise UserError(f"config.{name}: unknown field{hint}; written by another version?")
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            value = from_dict(kind, value)
        elif isinstance(value, list):
            value = tuple(value)
        fields[name] = value
    return cls(**fields)


def digest(config: Any) -> str:
    """Returns the SHA-256 of the configuration's canonical JSON, in hexadecimal.

    A `later_field` (common/config/closed_fields.py) counts only where it differs from its default. Where the
    configuration names functions of one's own, the sources of their modules are part of the digest.

    Raises:
      UserError: such a module is no longer found.
    """
    values = _digested(config)
    if functions := config.own_functions():
        values["own_functions"] = {field: plugins.digest(field, name) for field, name in functions.items()}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _digested(config: Any) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("digest") == "unless default" and value == field.default:
            continue
        found[field.name] = _digested(value) if dataclasses.is_dataclass(value) else value
    return found
