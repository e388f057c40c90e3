"""Which fields a closed run may change, as the fields' own metadata says. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


def system_field(default: Any) -> Any:
    """A field that describes the system and not the model: a closed run may change it.

    Which machine, how its work is divided and stored, the same function computed otherwise, and when a run evaluates
    and ends, which the log's blocks show.
    """
    return dataclasses.field(default=default, metadata={"closed": "free"})


def data_field(default: Any) -> Any:
    """A field that counts what cleaning and cutting into tokens leave of the rules' data: a closed run may change it.

    It differs from one preparation to the next, and the run is held to it.
    """
    return system_field(default)


def rule_field(default: Any) -> Any:
    """A field that says which rules hold or what the problem is: no closed run changes it, even where the log shows it.

    Of a field that is neither, a closed run may change what the log's header shows to the rules.
    """
    return dataclasses.field(default=default, metadata={"closed": "fixed"})


def closed_rule(config: type, path: str) -> str:
    """Says "free", "fixed" or "" for the field at `path` ("optimizer.momentum") of a configuration class.

    What a group says holds for its fields, what a class says for its subclasses' defaults.
    """
    head, _, rest = path.partition(".")
    for cls in config.__mro__:
        field = cls.__dict__.get("__dataclass_fields__", {}).get(head)
        if field is not None and "closed" in field.metadata:
            return field.metadata["closed"]
    return closed_rule(typing.get_type_hints(config)[head], rest) if rest else ""
