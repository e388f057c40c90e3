"""Writes a benchmark's help: every flag and every field of the configuration. TensorFlow-free."""

import dataclasses
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from common.config import automatic, benchmarks, fields
from common.config import overrides as configs
from common.config.overrides import field_types
from common.config.schema import RunConfig
from timetotrain import flags
from timetotrain.run.options import BenchmarkFlags

ASKS = ("--help", "-help", "-h", "--h", "--helpfull", "--helpshort", "-?")
_GROUPS = {
    "": "Fields of every benchmark",
    "optimizer": "The optimizer",
    "schedule": "The learning rate",
    "communication": "Communication between replicas",
    "data": "The data",
    "decode": "The search for a translation",
}


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether a command line asks for help."""
    return any(word in ASKS for word in argv)


def print_help(benchmark: str, table: type[BenchmarkFlags], program: str, argv: Sequence[str]) -> None:
    """Prints a benchmark's help: every flag and every field of its configuration.

    Raises UserError if the preset is unknown, or a flag is wrong.

    Args:
      table: the command's flags.
      program: the command.
      argv: the command line; if it names a preset with --system, the help shows that preset's field values, and
        with --config.optimizer.name the fields of that rule, and with --config.schedule.kind of that kind.
    """
    options, _ = flags.parse(table, [word for word in argv if word not in ASKS], program)
    module = benchmarks.module(benchmark, "presets")
    if options.system == automatic.NAME:
        config = automatic.choose(module, data_dir=options.data_dir)[0]
    elif options.system:
        config = configs.preset(module.PRESETS, options.system, [automatic.NAME])
    else:
        config = module.Config()
    config = configs.override_all(config, argv)
    print("\n".join(_lines(module, table, config, program, options.system)))


def flag_lines(table: type, names: Iterable[str] | None = None) -> Iterator[str]:
    """Yields the help of a table's flags, or only of those in `names`."""
    meanings, kinds = fields.meanings(table), field_types(table)
    for field in dataclasses.fields(table):
        if names is None or field.name in names:
            value = (
                "" if field.default in (None, "") or field.default is False else f", default {field.default}"
            )
            kind = flags.kind(field, kinds[field.name])
            yield from _entry(f"--{field.name}", f"{kind}{value}", meanings[field.name])


def _lines(module: Any, table: type, config: Any, program: str, name: str | None) -> Iterator[str]:
    yield f"usage: {program} --system=NAME --data_dir=DIR [FLAG=VALUE ...] [--config.FIELD=VALUE ...]"
    yield f"       {program} --help [--system=NAME]    with the values of a preset"
    yield ""
    yield from _wrapped(f"presets: {', '.join(module.PRESETS)}", "  ")
    yield ""
    yield "Flags"
    yield from flag_lines(table)
    described = fields.describe(config, RunConfig)
    if name:
        yield ""
        yield from _wrapped(f"The values below are those of preset {name}: {config.source}", "")
    for title, source, members in _groups(config, described):
        yield ""
        yield title
        if source:
            yield from _wrapped(source, "  ", "  ")
        for field in members:
            yield from _entry(f"--config.{field.path}={field.text}", field.kind, field.meaning)
    yield ""
    yield from _entry("--config.legw=FACTOR", "number", "scales batch, rate and warmup together, by LEGW.")


def _groups(config: Any, described: Sequence[fields.Field]) -> Iterator[tuple[str, str, list[fields.Field]]]:
    """Yields (title, class description, fields): the benchmark's own group first, then the common groups."""
    own_fields = [field for field in described if field.specific and not field.group]
    yield f"Fields of {config.benchmark} alone", "", own_fields
    for group in dict.fromkeys(field.group for field in described if field.specific and field.group):
        members = [field for field in described if field.group == group]
        yield _title(group), fields.purpose(type(getattr(config, group))), members
    for group in dict.fromkeys(field.group for field in described if not field.specific):
        members = [field for field in described if field.group == group and not field.specific]
        yield _title(group), fields.purpose(type(getattr(config, group))) if group else "", members


def _title(group: str) -> str:
    return _GROUPS.get(group, group) + (f" (config.{group})" if group else "")


def _entry(head: str, kind: str, text: str) -> Iterator[str]:
    yield f"  {head}  ({kind})"
    yield from _wrapped(" ".join(text.split()), "      ", "      ")


def _wrapped(text: str, indent: str, first: str = "") -> list[str]:
    width = min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else 120
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
