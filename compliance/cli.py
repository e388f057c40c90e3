"""Runs the subcommands of `python -m compliance check | explain | rules | scores | report | compare | package`.

Exit status of `check`: 0 for go and not checked, 1 for no-go (`--strict`: also with advice), 2 for wrong usage.
More is in docs/check-in-ci.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from common.errors import UserError

_PROGRAM = "python -m compliance"
# Subcommand -> (module of this package, what it is for). A module is imported only when its subcommand is called.
_COMMANDS = {
    "check": ("cli_check", "check logs, results folders and submission trees"),
    "explain": ("explain", "explain a rule: what it asks, why, and how to meet it"),
    "rules": ("explain", "print the keys that a benchmark's log must have"),
    "scores": ("submission.cli_scores", "the results table of a submission; not weak scaling, not power"),
    "report": ("report.report", "one page with timelines, curves and scores"),
    "compare": ("report.compare", "two runs or systems side by side"),
    "package": ("packaging.package", "build the submission tree from run outputs"),
}


def parser(*words: str) -> argparse.ArgumentParser:
    """Returns the parser of the command line, or that of the one command that `words` name.

    Raises:
      UserError: the command is not part of this installation.
    """
    whole, commands = _parsers(words[0] if words else None)
    return commands[words[0]] if words else whole


def _parsers(command: str | None) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser, and those of its commands, of which only `command` has its arguments."""
    whole = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__.split("\n")[2])
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in arguments if not word.startswith("-")), None)
    # A terminal that cannot show a character shows its escape.
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = _parsers(command)[0].parse_args(arguments)
        status = options.answer(options)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"{_PROGRAM} {command}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) went away; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = error.filename or "standard output"
        fix = "make it writable or free some space"
        print(f"{_PROGRAM} {command}: {place}: {error.strerror or error}; {fix}", file=sys.stderr)
        with contextlib.suppress(OSError):  # Python shall not try again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        print(f"{_PROGRAM} {command}: interrupted", file=sys.stderr)
        return 130
