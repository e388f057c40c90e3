"""Runs the stock tools in this process, without isolation but fast enough for many logs, and keeps their verdicts."""

import builtins
import contextlib
import functools
import importlib
import io
import logging
import pkgutil
import re
import signal
import types
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from compliance.submission import tree_params


class _TooLongError(Exception):
    pass


def _stop(*_):
    raise _TooLongError


def keep_rules(replace: Callable[..., Any] = setattr) -> None:
    """Makes the stock checker read each rule file once per process, because most of its time goes into YAML."""
    load, loaded = mlp_compliance.yaml.load, {}

    def cached(file, Loader):  # noqa: N803 (PyYAML's name)
        if file.name not in loaded:
            loaded[file.name] = load(file, Loader=Loader)
        return loaded[file.name]

    # A namespace of its own: we read YAML, too.
    replace(mlp_compliance, "yaml", types.SimpleNamespace(**vars(mlp_compliance.yaml) | {"load": cached}))


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

        def cached(source, *names, run=run, mode=name):
            return run(compiled(source, "<string>", mode), *names)

        replace(mlp_compliance, name, cached, *(() if replace is setattr else (False,)))
    for module in pkgutil.iter_modules(mlp_parser.__path__):
        parser = importlib.import_module(f"{mlp_parser.__name__}.{module.name}")
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
        passes = checker.check_file(str(path), config or f"training_{ruleset}/common.yaml")
    except Exception as error:
        return "crash", [repr(error)]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        logging.disable(disabled)
    return "pass" if passes else "fail", [*checker.overwritable.values(), *checker.not_overwritable]


class Stock(NamedTuple):
    """The stock checker's verdict on a log (pass, fail or crash), and its first message or the exception."""

    verdict: str
    message: str


# ------------------------------------------------------------------------------------------- the tools for trees

# What package_checker.py and repo_checker.py log as an error -> the kind of error.
KINDS = {
    "Incorrect number of files": "runs",
    "files do not comply": "logs",
    "Seed checker failed": "seeds",
    "RCP Test Failed": "convergence",
    "System description file checker failed": "description",
    "git-unfriendly": "repository",
    "> 50MB": "repository",
    "broken symbolic links": "repository",
}


class _StockError(Exception):
    """Replaces the exception with which the stock checker ended on a log; the message is the name of its type."""


def judge_once() -> None:
    """Makes the stock tools for trees judge each log once per process, by the common rules of its round."""
    from mlperf_logging.rcp_checker import rcp_checker

    make_fast()
    rcp_checker.re = Lines(re)
    verdict_of = functools.cache(judged)

    def remembered(path: str, config: str, checker: object) -> tuple[bool, None, None, None]:
        stock = verdict_of(str(path), config.partition("/")[0].removeprefix("training_"))
        if stock.verdict == "crash":
            raise _StockError(stock.message.partition("(")[0])
        return stock.verdict == "pass", None, None, None

    mlp_compliance.main = remembered


def judged(path: str, ruleset: str, config: str | None = None) -> Stock:
    """Returns the stock checker's verdict on a log, with its first message."""
    answer, messages = verdict(path, ruleset, 60, config)
    return Stock(answer, " ".join(messages[0].split())[:80] if messages else "")


class _Kinds(logging.Handler):
    """Collects the kinds of the errors that the stock tools log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.kinds: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.kinds |= {kind for words, kind in KINDS.items() if words in message}


@contextlib.contextmanager
def _listening() -> Iterator[_Kinds]:
    """Catches what a tool logs and prints; an exception of the tool becomes the kind "crash: TYPE"."""
    handler, top = _Kinds(), logging.getLogger()
    before, top.handlers = top.handlers, [handler]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield handler
    except Exception as error:
        handler.kinds = {f"crash: {error if isinstance(error, _StockError) else type(error).__name__}"}
    finally:
        top.handlers = before


def package(org: Path, ruleset: str, flags: frozenset[str]) -> list[str]:
    """Returns the kinds of errors for which the stock tools stop a tree; ["crash: TYPE"] if a tool raises."""
    from mlperf_logging.package_checker import package_checker
    from mlperf_logging.repo_checker import repo_checker

    options = [tree_params.RCP_BYPASS, tree_params.BERT_SAMPLES, tree_params.SEED_BYPASS]
    with _listening() as handler:
        package_checker.check_training_package(
            str(org), "training", ruleset, True, False, *(one in flags for one in options), ""
        )
        if ruleset >= "2.0.0":
            repo_checker.run_checks(str(org))
    return sorted(handler.kinds)


def convergence(folder: Path, ruleset: str, flags: frozenset[str]) -> str:
    """Returns rcp_checker's "pass", "fail" or "no reference", or "crash: TYPE"; writes scaling.json as it does."""
    from mlperf_logging.rcp_checker import rcp_checker

    with _listening() as handler:
        passes, message, _ = rcp_checker.check_directory(
            str(folder), "training", ruleset, False, tree_params.BERT_SAMPLES in flags,
            rcp_pass="pruned_rcps", set_scaling=True,
        )  # fmt: skip
        return "pass" if passes else "no reference" if "Missing" in message or "Cannot" in message else "fail"
    return handler.kinds.pop()


def score(folder: Path, ruleset: str) -> float | None | str:
    """Returns the summarizer's score of a folder, or "crash: TYPE"."""
    from mlperf_logging.result_summarizer import result_summarizer

    with _listening() as handler:
        return result_summarizer._compute_strong_score_standalone(
            folder.name, folder.parent.name, False, str(folder), "training", ruleset
        )[0]
    return handler.kinds.pop()
