"""Runs the stock tools in this process, without isolation but fast enough for many logs, and keeps their verdicts."""

import builtins
import contextlib
import functools
import importlib
import io
import json
import logging
import pkgutil
import re
import signal
import types
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.metadata import version
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


class Verdicts:
    """The stock checker's verdicts, in a file of JSON lines, or in memory alone if `path` is None.

    The key is a log's content, its rule file, the version.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._known: dict[tuple, Stock] = {}
        if path is not None and path.is_file():
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self._known = {tuple(key): Stock(*verdict) for key, verdict in rows}

    @staticmethod
    def _key(path: str, config: str) -> tuple[str, str, str]:
        return sha256(Path(path).read_bytes()).hexdigest(), config, version("mlperf-logging")

    def get(self, path: str, config: str) -> Stock | None:
        """Returns the known verdict on a log."""
        return self._known.get(self._key(path, config))

    def add(self, path: str, config: str, verdict: Stock) -> None:
        """Appends a verdict that is not in the file."""
        key = self._key(path, config)
        if key not in self._known:
            self._known[key] = verdict
            if self._path is not None:
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(json.dumps([key, verdict]) + "\n")

    def verdict(self, path: str, ruleset: str) -> Stock:
        """Returns the verdict on a log by a round's common rules, as the tools for trees take them."""
        config = f"training_{ruleset}/common.yaml"
        if (known := self.get(path, config)) is None:
            known = judged(path, ruleset, config)
            self.add(path, config, known)
        return known


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


def ask(verdict_of: Callable[[str, str], Stock]) -> None:
    """Makes the stock tools for trees ask a function for each log's verdict: (path, round) -> verdict."""
    from mlperf_logging.rcp_checker import rcp_checker

    make_fast()
    rcp_checker.re = Lines(re)

    def remembered(path: str, config: str, checker: object) -> tuple[bool, None, None, None]:
        said = verdict_of(str(path), config.partition("/")[0].removeprefix("training_"))
        if said.verdict == "crash":
            raise _StockError(said.message.partition("(")[0])
        return said.verdict == "pass", None, None, None

    mlp_compliance.main = remembered


def judged(path: str, ruleset: str, config: str | None = None) -> Stock:
    """Returns the stock checker's verdict on a log, with its first message."""
    found, messages = verdict(path, ruleset, 60, config)
    return Stock(found, " ".join(messages[0].split())[:80] if messages else "")


class _Kinds(logging.Handler):
    """Collects the kinds of the errors that the stock tools log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.kinds: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        self.kinds |= {kind for words, kind in KINDS.items() if words in said}


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
    with _listening() as heard:
        package_checker.check_training_package(
            str(org), "training", ruleset, True, False, *(one in flags for one in options), ""
        )
        if ruleset >= "2.0.0":
            repo_checker.run_checks(str(org))
    return sorted(heard.kinds)


def convergence(folder: Path, ruleset: str, flags: frozenset[str]) -> str:
    """Returns rcp_checker's "pass", "fail" or "no reference", or "crash: TYPE"; writes scaling.json as it does."""
    from mlperf_logging.rcp_checker import rcp_checker

    with _listening() as heard:
        passes, said, _ = rcp_checker.check_directory(
            str(folder), "training", ruleset, False, tree_params.BERT_SAMPLES in flags,
            rcp_pass="pruned_rcps", set_scaling=True,
        )  # fmt: skip
        return "pass" if passes else "no reference" if "Missing" in said or "Cannot" in said else "fail"
    return heard.kinds.pop()


def score(folder: Path, ruleset: str) -> float | None | str:
    """Returns the summarizer's score of a folder, or "crash: TYPE"."""
    from mlperf_logging.result_summarizer import result_summarizer

    with _listening() as heard:
        return result_summarizer._compute_strong_score_standalone(
            folder.name, folder.parent.name, False, str(folder), "training", ruleset
        )[0]
    return heard.kinds.pop()
