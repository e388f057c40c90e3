"""Runs the stock checker (mlperf_logging's compliance_checker) in isolation.

Its rules are Python source that it evaluates, and a log's values choose which of its files it loads; a
crafted tree can make it run code, loop or fill the disk (docs/compliance-differences.md). So the values
that select files are held against an allow-list first, and the checker runs in a process of its own, in an
empty directory, with limits on memory, time and file size; only its verdict and messages come back.
"""

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
from compliance.log.logs import Record, read_log

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
        sys.executable, "-I", str(_WORKER), str(Path(path).resolve()), ruleset, str(MEMORY_BYTES),
        str(seconds),
    ]  # fmt: skip
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
