"""`timetotrain completion bash | zsh | fish`: the script that completes verbs, flags, presets and fields.

shtab writes the script from parsers. Verbs whose command lines build their own parsers are asked for them.
"""

from __future__ import annotations

import argparse
import unittest.mock
from typing import Any

import shtab

from common.config import benchmarks, fields
from common.errors import UserError
from timetotrain.cli import PROG, load
from timetotrain.run.command import parser as run_parser
from timetotrain.verbs import VERBS, Verb

SHELLS = ("bash", "zsh", "fish")
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
    """Returns a parser of every verb, for completion alone; verbs that are not installed are left out."""
    whole = argparse.ArgumentParser(prog=PROG)
    whole.add_argument("--version", action="store_true", help="print the version")
    verbs = whole.add_subparsers()
    for name, verb in VERBS.items():
        if name == "run":
            _add_benchmarks(verbs.add_parser(name, help=verb.about))
            continue
        try:
            parser = parser_of(name, verb)
        except (UserError, ModuleNotFoundError):
            continue
        # Its own --help is among the parser's actions.
        verbs.add_parser(name, help=verb.about, parents=[parser], add_help=False, conflict_handler="resolve")
    return whole


def parser_of(name: str, verb: Verb) -> argparse.ArgumentParser:
    """Returns the parser of a verb.

    A command line of its own builds its parser and parses; what it would parse with is caught.

    Raises:
      UserError: the verb is not part of this installation.
    """
    module: Any = load(name, verb)
    if verb.words is None:
        parser = argparse.ArgumentParser(prog=f"{PROG} {name}")
        module.add_arguments(parser)
        return parser
    with unittest.mock.patch.object(argparse.ArgumentParser, "parse_args", _catch):
        try:
            module.main(list(verb.words))
        except _Caught as caught:
            parser = caught.parser
    for word in verb.words:
        (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        if word not in subparsers.choices:
            raise UserError(f"{PROG} {name}: not part of this installation")
        parser = subparsers.choices[word]
    return parser


class _Caught(BaseException):
    def __init__(self, parser: argparse.ArgumentParser):
        super().__init__()
        self.parser = parser


def _catch(self: argparse.ArgumentParser, *_: Any, **__: Any) -> argparse.Namespace:
    raise _Caught(self)


def _add_benchmarks(parser: argparse.ArgumentParser) -> None:
    """Adds a subparser for each benchmark, with its flags, its presets and the fields of its configuration."""
    from timetotrain.run import cli

    names = parser.add_subparsers()
    for name in benchmarks.NAMES:
        module = benchmarks.module(name, "presets")
        made = names.add_parser(name, help=f"train {name}")
        for flag in cli.defined():
            choices = getattr(flag.parser, "enum_values", None)
            if flag.name == "system":
                choices = list(module.PRESETS)
            _add(made, f"--{flag.name}", flag.help.partition(">: ")[2] or flag.help, choices, flag.boolean)
        for action in run_parser()._actions:
            if action.option_strings[0] not in made._option_string_actions:
                _add(made, action.option_strings[0], "", action.choices, action.nargs == 0)
        for field in fields.describe(module.Config()):
            choices = ("true", "false") if field.kind == "true or false" else None
            _add(made, f"--config.{field.path}", field.meaning, choices, False)


def _add(parser: argparse.ArgumentParser, name: str, text: str, choices: Any, switch: bool) -> None:
    # A % in a text would be a format for argparse.
    text = " ".join(text.split()).replace("%", "%%")
    if switch:
        parser.add_argument(name, action="store_true", help=text)
        return
    added = parser.add_argument(name, choices=choices, help=text)
    if name.endswith(("_dir", "evaluate", "export")):
        added.complete = shtab.DIRECTORY if name.endswith("_dir") else shtab.FILE
