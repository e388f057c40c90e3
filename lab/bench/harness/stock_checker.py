"""Runs the stock checker in this process, without isolation but fast enough for many logs, and keeps its verdicts."""

import builtins
import functools
import importlib
import json
import logging
import os
import pkgutil
import signal
import types
from collections.abc import Callable
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser


class _TooLongError(Exception):
    pass


def _stop(*_):
    raise _TooLongError


def keep_rules(replace: Callable[..., Any] = setattr) -> None:
    """Makes the stock checker read each rule file once per process, because most of its time goes into YAML."""
    load, kept = mlp_compliance.yaml.load, {}

    def cached(file, Loader):  # noqa: N803 (PyYAML's name)
        if file.name not in kept:
            kept[file.name] = load(file, Loader=Loader)
        return kept[file.name]

    replace(mlp_compliance.yaml, "load", cached)


class Lines:
    """Replaces `re` in a stock parser: its only substitution takes quadratic time in the length of a line.

    The substitution removes what comes before a line's last token. It is called only on a line that has a token, and no
    line end inside.
    """

    @staticmethod
    def sub(pattern: str, token: str, line: str) -> str:
        assert pattern == ".*" + token
        return line[line.rindex(token) :]

    def __init__(self, re: types.ModuleType):
        self.compile, self.X = re.compile, re.X


def make_fast(replace: Callable[..., Any] = setattr) -> None:
    """Applies `keep_rules`, compiles each test of a rule file only once, and cuts off a line's start by a search."""
    keep_rules(replace)
    compiled = functools.lru_cache(maxsize=None)(builtins.compile)
    for name in ("eval", "exec"):
        run = getattr(builtins, name)

        def kept(source, *names, run=run, mode=name):
            return run(compiled(source, "<string>", mode), *names)

        replace(mlp_compliance, name, kept, *(() if replace is setattr else (False,)))
    for found in pkgutil.iter_modules(mlp_parser.__path__):
        parser = importlib.import_module(f"{mlp_parser.__name__}.{found.name}")
        if isinstance(getattr(parser, "re", None), types.ModuleType):
            replace(parser, "re", Lines(parser.re))


def config(path: str | PathLike, ruleset: str) -> str:
    """Returns the first rule file: v0.6 Minigo has its own, which its log does not select."""
    minigo = ruleset == "0.6.0" and "/minigo/" in str(path)
    return f"training_{ruleset}/{'minigo' if minigo else 'common'}.yaml"


def verdict(
    path: str | PathLike, ruleset: str, seconds: int = 20, config: str | None = None
) -> tuple[str, list[str]]:
    """Returns ("pass" | "fail" | "crash", messages). Clears the checker's global queue first, as every caller must."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, False, False)
    before, disabled = signal.signal(signal.SIGALRM, _stop), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    signal.alarm(seconds)
    try:
        passed = checker.check_file(str(path), config or f"training_{ruleset}/common.yaml")
    except Exception as error:
        return "crash", [repr(error)]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        logging.disable(disabled)
    return "pass" if passed else "fail", [*checker.overwritable.values(), *checker.not_overwritable]


class Stock(NamedTuple):
    """The stock checker's verdict on a log (pass, fail or crash), and its first message or the exception."""

    verdict: str
    message: str


class Kept:
    """Verdicts in a file of JSON lines; the key is the log, its size, and the version of mlperf-logging.

    Args:
      path: the file; None: keep nothing.
      folder: names of logs are relative to this folder.
    """

    def __init__(self, path: Path | None, folder: Path):
        self._path, self._folder = path, folder
        self._known: dict[tuple, Stock] = {}
        if path is not None and path.is_file():
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self._known = {tuple(key): Stock(*verdict) for key, verdict in rows}

    def _key(self, path: str) -> tuple[str, int, str]:
        return os.path.relpath(path, self._folder), os.path.getsize(path), version("mlperf-logging")

    def get(self, path: str) -> Stock | None:
        """Returns the file's verdict on a log."""
        return self._known.get(self._key(path))

    def add(self, path: str, verdict: Stock) -> None:
        """Appends a verdict that is not in the file."""
        key = self._key(path)
        if self._path is not None and key not in self._known:
            self._known[key] = verdict
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps([key, verdict]) + "\n")
