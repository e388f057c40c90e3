"""Marks the fields that a closed-division run may change, in the fields' metadata. TensorFlow-free."""

import dataclasses
import typing
from typing import Any


def system_field(default: Any) -> Any:
    """Declares a field that describes the system, not the model: a closed run may change it.

    Examples: the machine, how work is divided and stored, another way to compute the same function, and when a run
    evaluates and ends (the log's blocks show that).
    """
    return dataclasses.field(default=default, metadata={"closed": "free"})


def data_field(default: Any) -> Any:
    """Declares a count of the examples that remain after cleaning and tokenizing: a closed run may change it.

    The count depends on how the data were prepared, and the run checks it.
    """
    return system_field(default)


def rule_field(default: Any) -> Any:
    """Declares a field of the rules or the problem: a closed run may not change it, even if the log shows it.

    A closed run may change an unmarked field if the log's header shows it (timetotrain/run/closed_division.py).
    """
    return dataclasses.field(default=default, metadata={"closed": "fixed"})


def added_field(default: Any, closed: str = "") -> Any:
    """Declares a field added after results were published: the digest omits it at its default.

    So published logs and checkpoints keep their digests (common/config/digest.py). `closed` is the mark that the other
    functions here set: "free" or "fixed"; "" sets none.
    """
    marks = {"digest": "unless default"} | ({"closed": closed} if closed else {})
    return dataclasses.field(default=default, metadata=marks)


def closed_rule(config: type, path: str) -> str:
    """Returns "free", "fixed" or "" (no mark) for the field at `path` ("optimizer.momentum") of a configuration class.

    A group's mark applies to its fields. A base class's mark applies to a subclass that only changes the default.
    """
    head, _, rest = path.partition(".")
    for cls in config.__mro__:
        field = cls.__dict__.get("__dataclass_fields__", {}).get(head)
        if field is not None and "closed" in field.metadata:
            return field.metadata["closed"]
    return closed_rule(typing.get_type_hints(config)[head], rest) if rest else ""
