"""Runs `timetotrain check`, `explain`, `rules`, `scores`, `accept`, `report`, `compare` and `package`.

`python -m compliance COMMAND` is the same.

Exit status of `check`: 0 for go, 1 for no-go (`--strict`: also with advice), 2 for not checked and for wrong usage.
docs/check-in-ci.md has more.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from common.errors import Parser, UserError, answering

_PROGRAM = "timetotrain"
# Subcommand -> (its module in this package, help text). The module is imported only when the subcommand runs.
_COMMANDS = {
    "check": ("cli_check", "check logs, results folders and submission trees"),
    "explain": ("explain", "explain a rule: what it asks, why, and how to meet it"),
    "rules": ("explain", "print the keys that a benchmark's log must have"),
    "scores": ("submission.cli_scores", "the results table of a submission; not weak scaling, not power"),
    "accept": ("acceptance.command", "will a submission be accepted? also while its runs are under way"),
    "report": ("report.page", "one page with timelines, curves and scores"),
    "compare": ("report.compare", "two runs or systems side by side"),
    "package": ("packaging.package", "build the submission tree from run outputs"),
}


def parser(*words: str) -> argparse.ArgumentParser:
    """Returns the parser of the whole command line, or of the one command that `words` names.

    Raises:
      UserError: this installation does not include the command.
    """
    whole, commands = _parsers(words[0] if words else None)
    return commands[words[0]] if words else whole


def _parsers(command: str | None) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the main parser and the subparsers. Only the subparser of `command` gets its arguments."""
    whole = Parser(prog=_PROGRAM, description=__doc__.split("\n\n")[1])
    subparsers = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module_name, purpose) in _COMMANDS.items():
        made = subparsers.add_parser(name, help=purpose, description=purpose)
        if name == command:
            module_name = f"{__package__}.{module_name}"
            if find_spec(module_name) is None:
                raise UserError(f"{name} is not part of this installation")
            module = import_module(module_name)
            getattr(module, f"add_{name}_arguments", getattr(module, "add_arguments", None))(made)
            made.set_defaults(answer=getattr(module, f"run_{name}", getattr(module, "run", None)))
    return whole, subparsers.choices


@answering()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in arguments if not word.startswith("-")), None)
    # Print an escape for a character that the terminal cannot show.
    sys.stdout.reconfigure(errors="backslashreplace")
    options = _parsers(command)[0].parse_args(arguments)
    return options.answer(options)
