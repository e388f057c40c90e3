"""Writes the help of `python -m BENCHMARK --help`: every flag, every field of the configuration. TensorFlow-free."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from common.config import automatic, benchmarks, fields
from common.config import overrides as configs
from common.config.schema import RunConfig

ASKS = ("--help", "-help", "-h", "--h", "--helpfull", "--helpshort", "-?")
_GROUPS = {
    "": "Fields of every benchmark",
    "optimizer": "The optimizer",
    "schedule": "The learning rate",
    "communication": "Communication between replicas",
    "data": "The data",
    "decode": "The search for a translation",
}


def asked(argv: Sequence[str]) -> bool:
    """Whether a command line asks for help."""
    return any(word in ASKS for word in argv)


def print_help(benchmark: str, module: Any, defined: Sequence[flags.Flag], argv: Sequence[str]) -> None:
    """Prints the help of a benchmark.

    Args:
      benchmark: its name.
      module: its presets.
      defined: the flags of the command line.
      argv: the command line; a preset that it names with --system gives the values of the fields.

    Raises:
      UserError: no such preset.
    """
    name = system(argv)
    if name == automatic.NAME:
        config = automatic.choose(module, data_dir=_value(argv, "data_dir"))[0]
    else:
        config = configs.preset(module.PRESETS, name, [automatic.NAME]) if name else module.Config()
    width = min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else 120
    print("\n".join(_lines(benchmark, module, defined, config, name, width)))


def system(argv: Sequence[str]) -> str | None:
    """Returns the preset that a command line names, or None."""
    return _value(argv, "system")


def _value(argv: Sequence[str], flag: str) -> str | None:
    words = list(argv)
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            return value if equals else next(iter(words[i + 1 : i + 2]), None)
    return None


def _lines(
    benchmark: str, module: Any, defined: Sequence[flags.Flag], config: Any, name: str | None, width: int
) -> Iterator[str]:
    program = f"python -m {benchmarks.command(benchmark)}"
    yield f"usage: {program} --system=NAME --data_dir=DIR [FLAG=VALUE ...] [--config.FIELD=VALUE ...]"
    yield f"       {program} --help [--system=NAME]    with the values of a preset"
    yield ""
    yield from _wrapped(f"presets: {', '.join(module.PRESETS)}", width, "  ")
    yield ""
    yield "Flags"
    for flag in defined:
        kind = flag.flag_type().replace("string enum", "one of " + ", ".join(_choices(flag)))
        value = "" if flag.value is None or flag.value is False else f", default {flag.value}"
        yield from _entry(f"--{flag.name}", f"{_type(kind)}{value}", _help(flag), width)
    described = fields.describe(config, RunConfig)
    if name:
        yield ""
        yield from _wrapped(f"The values below are those of preset {name}: {config.source}", width, "")
    for title, source, members in _groups(config, described):
        yield ""
        yield title
        if source:
            yield from _wrapped(source, width, "  ", "  ")
        for field in members:
            yield from _entry(f"--config.{field.path}={field.text}", field.kind, field.meaning, width)
    yield ""
    yield from _entry(
        "--config.legw=FACTOR", "number", "scales batch, rate and warmup together, by LEGW.", width
    )


def _groups(config: Any, described: Sequence[fields.Field]) -> Iterator[tuple[str, str, list[fields.Field]]]:
    """Yields (title, what its class says of it, fields): the benchmark's own first, then those of every benchmark."""
    own = [field for field in described if field.own and not field.group]
    yield f"Fields of {config.benchmark} alone", "", own
    for group in dict.fromkeys(field.group for field in described if field.own and field.group):
        members = [field for field in described if field.group == group]
        yield _title(group), fields.purpose(type(getattr(config, group))), members
    for group in dict.fromkeys(field.group for field in described if not field.own):
        members = [field for field in described if field.group == group and not field.own]
        yield _title(group), fields.purpose(type(getattr(config, group))) if group else "", members


def _title(group: str) -> str:
    return _GROUPS.get(group, group) + (f" (config.{group})" if group else "")


def _entry(head: str, kind: str, text: str, width: int) -> Iterator[str]:
    yield f"  {head}  ({kind})"
    yield from _wrapped(" ".join(text.split()), width, "      ", "      ")


def _wrapped(text: str, width: int, indent: str, first: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _choices(flag: flags.Flag) -> Sequence[str]:
    return getattr(flag.parser, "enum_values", None) or ()


def _help(flag: flags.Flag) -> str:
    """Returns a flag's text without the list of choices that absl puts before it."""
    return flag.help.partition(">: ")[2] if _choices(flag) else flag.help


def _type(kind: str) -> str:
    return {"string": "text", "int": "whole number", "bool": "switch", "float": "number"}.get(kind, kind)
