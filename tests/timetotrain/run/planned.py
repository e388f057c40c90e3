"""Helpers for tests of `timetotrain run`: what it plans for a command line."""

import contextlib
import io
import os
import pathlib
import shlex
from unittest import mock

from timetotrain.run import command

ROOT = pathlib.Path(__file__).resolve().parents[3]


def printed(benchmark: str, *words: str, python: str = "python") -> str:
    """Returns what `timetotrain run BENCHMARK WORDS --print_command` prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), mock.patch.dict(os.environ, {"PYTHON": python}):
        assert command.main([benchmark, *words, "--print_command"]) == 0
    return output.getvalue()


def command_of(benchmark: str, *words: str) -> list[str]:
    """Returns the command of a single run, without its folder of results."""
    (line,) = printed(benchmark, *words).splitlines()
    return [word for word in shlex.split(line) if word != "--result_dir=results"]
