"""Runs the stock checker (mlperf_logging's compliance_checker) in isolation.

Its rules are Python source that it evaluates, and a log's values choose which of its files it loads; a
crafted tree can make it run code, loop or fill the disk (docs/compliance-differences.md). So the values
that select files are held against an allow-list first, and the checker runs in a process of its own, in an
empty directory, with limits on memory, time and file size; its messages come back as findings.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.logs import Record, read_log, token_line_numbers
from compliance.log.rules import STOCK_RULESETS

# The checker needs 9 bytes of memory and 0.2 microseconds for a byte of log (1.76 GB and 42 s for 200 MB, measured).
MEMORY_BYTES = 4 << 30
BASE_SECONDS = 30
SECONDS_PER_MB = 0.5
_SELECTORS = ("submission_division", "submission_benchmark", "opt_name")
_WORKER = Path(__file__).with_name("stock_worker.py")
_OPTIMIZER = re.compile(r"[A-Za-z0-9_]{1,64}")


class Verdict(NamedTuple):
    """`result` is pass, fail, crash, timeout or refused (a selector outside the allow-list: it was not
    run)."""

    result: str
    messages: list[str]
    warnings: list[str]


@lru_cache(maxsize=1)
def _package() -> Path:
    spec = find_spec("mlperf_logging")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("mlperf-logging is not installed; pip install mlperf-logging==4.1.68")
    return Path(next(iter(spec.submodule_search_locations))) / "compliance_checker"


@cache
def allowed(ruleset: str) -> dict[str, frozenset[str]]:
    """The values of each selector for which the installed checker has rule files."""
    names = {path.stem for path in (_package() / f"training_{ruleset}").glob("*.yaml")}
    if not names:
        raise UserError(f"mlperf-logging has no ruleset {ruleset}")
    own = {name for name in names if not name.endswith("common") and not re.search(r"_(lars|sgd)$", name)}
    stems = {re.sub(r"^(closed|open)_", "", name) for name in own}
    optimizers = {name.rsplit("_", 1)[1] for name in names if re.search(r"resnet_(lars|sgd)$", name)}
    return {
        "submission_division": frozenset(("closed", "open")),
        "submission_benchmark": frozenset(stems),
        "opt_name": frozenset(optimizers),
    }


def rulesets_with(key: str) -> list[str]:
    """The rulesets from 1.0.0 on whose rules name `key`; [] when the stock checker is not installed."""
    if find_spec("mlperf_logging") is None:
        return []
    named = re.compile(rf"NAME:\s*['\"]?{re.escape(key)}['\"]?\s*$", re.MULTILINE)
    return [
        ruleset
        for ruleset in STOCK_RULESETS
        if any(
            named.search(path.read_text(encoding="utf-8", errors="replace"))
            for path in (_package() / f"training_{ruleset}").glob("*.yaml")
        )
    ]


def unsafe_selector(path: str, ruleset: str) -> Record | None:
    """Finds the first record whose value would make the stock checker load a file that is not one of its rules.

    `opt_name` selects a file only for resnet; for other benchmarks any plain word is harmless.
    """
    known = allowed(ruleset)
    for record in read_log(path, ruleset):
        if record.__class__ is not Record or record.key not in _SELECTORS:
            continue
        value = record.value
        if isinstance(value, str) and value in known[record.key]:
            continue
        if record.key == "opt_name" and isinstance(value, str) and _OPTIMIZER.fullmatch(value):
            continue
        return record
    return None


def verdict(path: str, ruleset: str) -> Verdict:
    """Runs the stock checker on one log in an isolated process.

    Raises:
      UserError: mlperf-logging is not installed, or has no such ruleset.
    """
    unsafe = unsafe_selector(path, ruleset)
    if unsafe is not None:
        return Verdict("refused", [f"line {unsafe.line}: {unsafe.key} selects no rules of the checker"], [])
    seconds = int(BASE_SECONDS + SECONDS_PER_MB * Path(path).stat().st_size / 1e6)
    command = [
        sys.executable,
        "-I",
        str(_WORKER),
        str(Path(path).resolve()),
        ruleset,
        str(MEMORY_BYTES),
        str(seconds),
    ]
    with tempfile.TemporaryDirectory(prefix="stock-checker-") as empty:
        try:
            done = subprocess.run(
                command, cwd=empty, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, env={}
            )
        except subprocess.TimeoutExpired:
            return Verdict("timeout", [f"stopped after {seconds} s"], [])
    try:
        answer = json.loads(done.stdout)
        return Verdict(answer["verdict"], answer["messages"], answer["warnings"])
    except (ValueError, KeyError, TypeError):
        if done.returncode < 0:
            return Verdict("timeout", [f"stopped by signal {-done.returncode}"], [])
        reason = done.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][:300]
        return Verdict("crash", [reason or f"exit status {done.returncode}"], [])


def findings(path: str, ruleset: str) -> list[Finding]:
    """Returns the stock checker's verdict as findings, in plain words and with the file's own line numbers."""
    result, messages, warnings = verdict(path, ruleset)
    if result == "refused":
        wanted = f"a division, benchmark and optimizer of ruleset {ruleset}"
        return [finding("stock.refused", ERROR, path, wanted, messages[0])]
    if result in ("crash", "timeout"):
        return [finding("stock.crash", ERROR, path, "a verdict", f"{result}: {messages[0][:200]}")]
    numbers = _Numbers(path)
    found = [translate(message, ERROR, path, numbers) for message in messages]
    return found + [translate(warning, ADVICE, path, numbers) for warning in warnings]


class _Numbers:
    """Maps the stock checker's record numbers, from 0, to line numbers of the file, which is read when first needed."""

    def __init__(self, path: str):
        self._path, self._numbers = path, None

    def __getitem__(self, index: int) -> int:
        if self._numbers is None:
            self._numbers = token_line_numbers(self._path)
        return self._numbers[index] if index < len(self._numbers) else 0


_OCCURS = re.compile(r"Required ([A-Z_]+(?:\(\d+\))?) occurrence of '(\w+)' ?but found (\d+)(.*)", re.S)
_ONE_OF = re.compile(r"Required AT_LEAST_ONE occurrence of (.+)", re.S)
_CHECK = re.compile(
    r"CHECK for '(.+?)' failed in line (\d+):\n(.*?)\nfailed test: (.*?)\ncurrent context", re.S
)
_TARGET = re.compile(r"Failed checks for (.+?) : (.*)", re.S)
_CODE = re.compile(r"Failed executing .*?triggered by line ?:\n(.*?)(\n|$)", re.S)


def translate(message: str, severity: str, path: str, numbers) -> Finding:
    """Translates one message of the stock checker into a finding."""
    if match := _OCCURS.match(message):
        wanted, key, count, values = match.groups()
        wanted = wanted.lower().replace("_", " ").replace("(", " ").replace(")", "")
        names = {"wording": "stock.occurs", "key": key, "wanted": wanted}
        return finding(f"{key}.occurs", severity, path, wanted, count + values[:120], **names)
    if match := _ONE_OF.match(message):
        keys = match.group(1).replace("'", "")[:200]
        names = {"wording": "stock.one-of", "key": keys}
        return finding(
            f"{keys.split()[0]}.occurs", severity, path, f"at least one of {keys}", "none", **names
        )
    if match := _CHECK.match(message):
        key, index, text, test = match.groups()
        names = {"wording": "stock.value", "key": key, "line": numbers[int(index)], "text": text[:400]}
        return finding(f"{key}.check", severity, path, _plain(test), text[-120:], **names)
    if match := _TARGET.match(message):
        key, test = match.groups()
        names = {"wording": "stock.target", "key": key}
        return finding(f"{key}.target", severity, path, _plain(test), "none that does", **names)
    if match := _CODE.match(message):
        text = match.group(1)[:400]
        return finding("stock.check", severity, path, "a value of the usual type", text[:120], text=text)
    if message.startswith("Log lines had parsing errors"):
        wanted, found = "one JSON object each", "lines that do not parse"
        return finding("line-json", severity, path, wanted, found, wording="stock.parse")
    if message.startswith("No log lines"):
        return finding("no-records", severity, path, "lines with :::MLLOG", "none")
    return finding("stock.message", severity, path, "its rules", " ".join(message.split())[:300])


def _plain(test: str) -> str:
    """A test of the stock rules without the Python around the names: v['value'] >= 1 becomes value >= 1."""
    text = " ".join(test.split())
    text = re.sub(r"v\['metadata'\]\['(\w+)'\]", r"metadata \1", text)
    text = re.sub(r"\b[vs]\['(\w+)'\]", r"\1", text)
    return text.replace("ll.timestamp", "time").replace(" v ", " the record ")[:300]


def cross_check(path: str, ruleset: str, ours: bool) -> list[Finding]:
    """Reports a disagreement between this package's verdict (`ours`: no error) and the stock checker's."""
    result, messages, _ = verdict(path, ruleset)
    if (result == "pass") == ours:
        return []
    said = "; ".join(" ".join(message.split())[:160] for message in messages[:3]) or "no message"
    names = {"theirs": result, "ours": "pass" if ours else "fail"}
    return [finding("cross-check", ADVICE, path, f"the same verdict at {ruleset}", said, **names)]
