"""Builds a command's flags from a frozen dataclass: parser and help. TensorFlow-free.

Each field is a flag: the field gives name, type and default; `Attributes:` in the class's docstring gives the meaning.
`flag` adds choices, bounds, and whether the value is a path.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from common.config import fields
from common.config.overrides import field_types, parse_value, split_overrides
from common.errors import Parser, UserError, near

F = TypeVar("F")
FOLDER, FILE = "folder", "file"


def flag(default: Any, *, choices: Sequence[str] = (), bounds: Sequence[int] = (), path: str = "") -> Any:
    """Declares a field of a table of flags.

    Args:
      default: value when the command line does not set the flag.
      choices: allowed values; empty for any.
      bounds: the minimum, and optionally the maximum.
      path: FOLDER or FILE if the value is a path.
    """
    facts = {"choices": tuple(choices), "bounds": tuple(bounds), "path": path}
    return dataclasses.field(default=default, metadata=facts)


def parse(table: type[F], argv: Sequence[str], program: str) -> tuple[F, list[tuple[str, str]]]:
    """Parses a command line of flags and `--config.FIELD=VALUE` words; `program` is named in messages.

    `--flag=value`, `--flag value`, `-flag`, `--noflag` and `--flag=false` are all accepted.

    Returns (the flags, the configuration overrides [(path, value)]).

    Raises UserError if a flag is unknown, or a value is wrong or missing.
    """
    overrides, words = split_overrides(argv)
    parser = Parser(prog=program, add_help=False)
    add(parser, table)
    values, rest = parser.parse_known_args(list(_canonical(words, field_types(table))))
    if rest and rest[0].startswith("-"):
        name = rest[0].lstrip("-").partition("=")[0]
        raise UserError(
            f"Unknown command line flag {name!r}{near(name, list(vars(values)))}; see {program} --help"
        )
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}; flags start with --, see {program} --help")
    return table(**vars(values)), overrides


def add(parser: argparse.ArgumentParser, table: type) -> None:
    """Adds the flags of a table to a parser."""
    meanings, kinds = fields.meanings(table), field_types(table)
    for field in dataclasses.fields(table):
        switch = {"nargs": "?", "const": True} if is_switch(kinds[field.name]) else {}
        parser.add_argument(
            f"--{field.name}",
            default=field.default,
            type=_reader(field, kinds[field.name]),
            choices=field.metadata.get("choices") or None,
            help=meanings[field.name].replace("%", "%%"),  # argparse would read % as a format.
            **switch,
        )


def paths(table: type) -> dict[str, str]:
    """Returns {name: FOLDER or FILE} of the flags that take paths."""
    return {f.name: f.metadata["path"] for f in dataclasses.fields(table) if f.metadata.get("path")}


def words(table: Any, names: Iterable[str], always: Sequence[str] = ()) -> list[str]:
    """Returns the flags `names` of a table as command-line words.

    Flags in `always` come first and appear unless None; the others appear only if they differ from their defaults.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(table)}
    changes = [name for name in names if name not in always and getattr(table, name) != defaults[name]]
    always_set = [name for name in always if getattr(table, name) is not None]
    return [_word(name, getattr(table, name)) for name in (*always_set, *changes)]


def kind(field: dataclasses.Field, hint: Any) -> str:
    """Returns the type of a flag in words: "text", "whole number", "switch", "one of a, b"."""
    if field.metadata.get("choices"):
        return "one of " + ", ".join(field.metadata["choices"])
    return "switch" if is_switch(hint) else fields.kind_of(hint).removesuffix(", or none")


def is_switch(hint: Any) -> bool:
    """Whether a flag of this type needs no value."""
    return hint in (bool, bool | None)


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value}"


def _canonical(words: Iterable[str], kinds: Mapping[str, Any]) -> Iterator[str]:
    """Yields the words with two dashes before each flag; `--noflag` becomes `--flag=false`."""
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name[:1].isalpha():
            yield word
            continue
        switch = name.removeprefix("no")
        if name not in kinds and not equals and is_switch(kinds.get(switch)):
            name, equals, value = switch, "=", "false"
        yield f"--{name}{equals}{value}"


def _reader(field: dataclasses.Field, hint: Any) -> Any:
    """Returns the function that reads a flag's value from text."""
    name, choices = field.name, field.metadata.get("choices")
    bounds = field.metadata.get("bounds") or (-math.inf,)
    least, most = (*bounds, math.inf)[:2]

    def read(text: str) -> Any:
        value = parse_value(text, hint, name)
        if choices and value not in choices:
            raise UserError(f"--{name}={text}: unknown{near(text, choices)}; known: {', '.join(choices)}")
        if isinstance(value, int) and not least <= value <= most:
            raise UserError(
                f"--{name}={text}: must be {f'at least {least}' if most == math.inf else f'in [{least}, {most}]'}"
            )
        return value

    return read
