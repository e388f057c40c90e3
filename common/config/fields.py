"""Describes the fields of a configuration: type, value, meaning. TensorFlow-free.

A field's meaning comes from its class's docstring, under `Attributes:`, as `name: meaning` or `name, other: meaning`.
It cites the source of a constant, if there is one. tests/common/config/test_fields.py checks that every field of every
benchmark has a meaning.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from common.config.overrides import field_types

_ENTRY = re.compile(r"  (\w+(?:, \w+)*): (.*)")


@dataclasses.dataclass(frozen=True)
class Field:
    """One field, as the help shows it.

    Attributes:
      path: its name after `--config.` on a command line: "optimizer.momentum".
      kind: form of a value, as `kind_of` returns it: "number", "whole numbers a,b,...", "text, or none".
      value: its value in the described configuration.
      meaning: its purpose.
      specific: whether it is specific to the benchmark.
    """

    path: str
    kind: str
    value: Any
    meaning: str
    specific: bool

    @property
    def group(self) -> str:
        """The group that contains it, such as "optimizer"; "" for a field of the configuration itself."""
        return self.path.rpartition(".")[0]

    @property
    def text(self) -> str:
        """The value in command-line form."""
        if isinstance(self.value, tuple):
            return ",".join(map(_plain, self.value))
        return "" if self.value is None else _plain(self.value)


def describe(config: Any, shared: type | None = None) -> list[Field]:
    """Returns the fields of a configuration in order, including the fields of groups.

    Args:
      config: the configuration that supplies the values, such as a preset.
      shared: the class with the fields that all benchmarks share (RunConfig).
    """
    everywhere = {field.name for field in dataclasses.fields(shared)} if shared else set()
    return list(_describe(config, everywhere, ""))


def _describe(config: Any, everywhere: set[str], prefix: str) -> Iterator[Field]:
    texts = meanings(type(config))
    for name, kind in field_types(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from _describe(value, everywhere, f"{prefix}{name}.")
            continue
        meaning = texts.get(name, "")
        specific = bool(everywhere) and (prefix or name).partition(".")[0] not in everywhere
        yield Field(prefix + name, kind_of(kind), value, meaning, specific)


def meanings(cls: type) -> dict[str, str]:
    """Returns {field: meaning} from the docstrings of a class and its bases; a subclass takes precedence."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= _attributes(base.__dict__.get("__doc__") or "")
    return texts


def purpose(cls: type) -> str:
    """Returns the first paragraph of a class's docstring, on one line."""
    return " ".join(inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\n")[0].split())


def _attributes(docstring: str) -> dict[str, str]:
    lines = inspect.cleandoc(docstring).splitlines()
    if "Attributes:" not in lines:
        return {}
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index("Attributes:") + 1 :]:
        entry = _ENTRY.fullmatch(line)
        if entry:
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        elif line.startswith("    "):
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
        elif line.strip():
            break
    return texts


def kind_of(kind: Any) -> str:
    """Returns the type of a field in words."""
    words = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    arguments = [a for a in typing.get_args(kind) if a not in (type(None), Ellipsis)]
    if typing.get_origin(kind) is tuple:
        many = {int: "whole numbers", float: "numbers", str: "words"}[arguments[0]]
        return f"{many} a,b,..."
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return f"{kind_of(arguments[0])}, or none"
    return words[kind]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
