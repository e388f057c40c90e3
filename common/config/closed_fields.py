"""Marks, in a configuration's field metadata, which fields a run of the closed division may change. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


def system_field(default: Any) -> Any:
    """Declares a field that describes the system, not the model: a closed run may change it.

    Examples: the machine, how its work is divided and stored, another way to compute the same function, and when a run
    evaluates and ends, which the log's blocks show.
    """
    return dataclasses.field(default=default, metadata={"closed": "free"})


def data_field(default: Any) -> Any:
    """Declares a field that counts what cleaning and tokenizing leave of the rules' data: a closed run may change it.

    The count differs between preparations of the data, and the run checks it.
    """
    return system_field(default)


def rule_field(default: Any) -> Any:
    """Declares a field of the rules or the problem: no closed run changes it, even where the log shows it.

    A closed run may change a field without a mark if a line of the log's header shows it to the rules
    (timetotrain/run/closed_division.py).
    """
    return dataclasses.field(default=default, metadata={"closed": "fixed"})


def later_field(default: Any, closed: str = "") -> Any:
    """Declares a field that came after results were published: at its default it has no part in the digest.

    So the digests in published logs and in checkpoints stay those of the same settings (common/config/digest.py).
    `closed`: "free" or "fixed", as the other functions here mark a field; "" marks nothing.
    """
    marks = {"digest": "unless default"} | ({"closed": closed} if closed else {})
    return dataclasses.field(default=default, metadata=marks)


def closed_rule(config: type, path: str) -> str:
    """Returns "free", "fixed" or "" (no mark) for the field at `path` ("optimizer.momentum") of a configuration class.

    A group's mark holds for its fields; a class's mark holds for a subclass that declares another default.
    """
    head, _, rest = path.partition(".")
    for cls in config.__mro__:
        field = cls.__dict__.get("__dataclass_fields__", {}).get(head)
        if field is not None and "closed" in field.metadata:
            return field.metadata["closed"]
    return closed_rule(typing.get_type_hints(config)[head], rest) if rest else ""
