"""`timetotrain completion bash | zsh | fish`: prints the script that completes verbs, flags, presets and fields.

shtab generates the script from the verbs' parsers.
"""

from __future__ import annotations

import argparse
import contextlib

import shtab

from common.config import automatic, benchmarks, fields
from common.config.rules import with_every_field
from common.errors import UserError
from timetotrain import flags
from timetotrain.cli import PROG, parser
from timetotrain.launch import containers
from timetotrain.run.options import RunFlags
from timetotrain.verbs import VERBS

SHELLS = ("bash", "zsh", "fish")
_PATHS = {flags.FOLDER: shtab.DIRECTORY, flags.FILE: shtab.FILE}
_WHERE = {
    "bash": f"{PROG} completion bash > ~/.local/share/bash-completion/completions/{PROG}",
    "zsh": f"{PROG} completion zsh > a folder of $fpath, as _{PROG}",
    "fish": f"{PROG} completion fish > ~/.config/fish/completions/{PROG}.fish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell's name."""
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = "Install it with, for example: " + "; ".join(_WHERE.values())


def run(options: argparse.Namespace) -> int:
    """Prints the script; returns 0."""
    print(shtab.complete(whole_parser(), options.shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Returns a parser of all installed verbs, used only for completion."""
    whole = argparse.ArgumentParser(prog=PROG)
    whole.add_argument("--version", action="store_true", help="print the version")
    verbs = whole.add_subparsers()
    for name, verb in VERBS.items():
        if name == "run":
            _add_benchmarks(verbs.add_parser(name, help=verb.about))
            continue
        with contextlib.suppress(UserError, ModuleNotFoundError):
            # The parser's actions include its own --help.
            verbs.add_parser(
                name, help=verb.about, parents=[parser(name)], add_help=False, conflict_handler="resolve"
            )
    return whole


def _add_benchmarks(parser: argparse.ArgumentParser) -> None:
    """Adds a subparser for each benchmark, with its flags, its presets and the fields of its configuration."""
    names = parser.add_subparsers()
    for name in benchmarks.NAMES:
        module = benchmarks.module(name, "presets")
        command = names.add_parser(name, help=f"train {name}")
        added = flags.add(command, RunFlags, {"system": [automatic.NAME, *module.PRESETS]})
        for flag, path in flags.paths(RunFlags).items():
            added[flag].complete = _PATHS[path]  # type: ignore[attr-defined]
        for field in fields.describe(with_every_field(module.Config())):
            choices = ("true", "false") if field.kind == "true or false" else None
            meaning = field.meaning.replace("%", "%%")
            action = command.add_argument(f"--config.{field.path}", choices=choices, help=meaning)
            if field.path in containers.PATH_FIELDS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
