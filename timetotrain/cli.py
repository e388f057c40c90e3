"""The command line `timetotrain VERB ...`; `python -m timetotrain VERB ...` in a checkout. TensorFlow-free.

Exit status: what the verb returns; 2 for wrong usage or a part that is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import timetotrain
from common.config import benchmarks
from common.errors import Parser, UserError, answering, near
from common.files import INSTALLED
from timetotrain import extras
from timetotrain.verbs import VERBS, Verb

PROG = "timetotrain"
# Verbs that read the user's own configuration, which may name modules in the current folder. The other verbs read
# files from strangers and must not import modules from there: an unpacked archive may contain one.
_FINDS_OWN = ("run", "search", "study", "launch", "forecast")
# Verbs of earlier versions, and what does their work now.
_GONE = {"rent": "forecast BENCHMARK --rent", "why": "compare LOG LOG"}
ALLOW_PLUGINS = "--allow_plugins"


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"{PROG} {timetotrain.__version__}")
        return 0
    # A terminal that cannot show a character shows an escape instead.
    sys.stdout.reconfigure(errors="backslashreplace")
    name, *words = argv
    if name in _GONE:
        raise UserError(f"{name}: is now `{PROG} {_GONE[name]}`")
    if name not in VERBS:
        raise UserError(f"{name}: no verb of {PROG}{near(name, list(VERBS))}; see {PROG} --help")
    if "" not in sys.path and (name in _FINDS_OWN or ALLOW_PLUGINS in words):
        # `python -m` puts the current folder on the path; a console script does not. Appended last, it hides nothing
        # installed.
        sys.path.append("")
    try:
        return call(name, words)
    except ModuleNotFoundError as error:
        text = extras.line(error, INSTALLED)
        if text is None:
            raise
        raise UserError(text) from error


def call(name: str, words: Sequence[str]) -> int:
    """Runs the verb `name` with the words that follow it; returns the exit status.

    Raises UserError if the verb is not installed, or a package that it needs is not. Exceptions of the verb itself
    pass through.
    """
    verb = VERBS[name]
    module = load(name, verb)
    if verb.words is not None:
        return module.main([*verb.words, *words])
    return _member(module, f"run_{name}", "run")(parser(name).parse_args(words))


def parser(name: str) -> argparse.ArgumentParser:
    """Returns the parser of the verb `name`, which has no `main`.

    Raises UserError if the verb is not part of this installation.
    """
    verb = VERBS[name]
    module = load(name, verb)
    parser_of_verb = Parser(prog=f"{PROG} {name}", description=verb.about[0].upper() + verb.about[1:] + ".")
    _member(module, f"add_{name}_arguments", "add_arguments")(parser_of_verb)
    return parser_of_verb


def _member(module: Any, special: str, usual: str) -> Any:
    return getattr(module, special, None) or getattr(module, usual)


def load(name: str, verb: Verb) -> Any:
    """Imports and returns a verb's module; raises UserError if it is not part of this installation."""
    in_package = verb.module.startswith(PROG + ".")
    module = verb.module if in_package else benchmarks.command(verb.module)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise UserError(f"{PROG} {name}: not part of this installation ({module} is missing)") from None


def overview() -> str:
    """Returns the help of `timetotrain` itself."""
    width = max(map(len, VERBS))
    lines = [
        f"usage: {PROG} VERB ...",
        "",
        "Trains the benchmarks of MLPerf and checks, reports and packages their results.",
        "",
        "verbs:",
        *(f"  {name:<{width}}  {verb.about}" for name, verb in VERBS.items()),
        "",
        f"benchmarks: {', '.join(benchmarks.NAMES)}",
        "",
        f"{PROG} VERB --help lists a verb's flags; {PROG} run BENCHMARK --help also every field of its",
        f"configuration. {PROG} --version prints the version.",
    ]
    return "\n".join(lines)
