"""timetotrain systems: list | show NAME | detect | validate FILE... | compile BENCHMARK"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from systems import cli
from timetotrain.forecast import compile as compile_

_OTHERS = (compile_.add,)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command of systems/cli.py, or `compile`; returns the exit status as systems.cli.main does."""
    words = list(sys.argv[1:] if argv is None else argv)
    # argparse takes words after `--` right behind the benchmark only.
    at = words.index("--") if words[:1] == ["compile"] and "--" in words else len(words)
    return cli.main(words[:at], _OTHERS, words[at + 1 :])


def parser(*words: str) -> argparse.ArgumentParser:
    """Returns the parser of all commands, or only the command that `words` name."""
    return cli.parser(_OTHERS, *words)
