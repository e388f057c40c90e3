"""Finds the tests that run a file's lines, from coverage measured per test.

`python -m tools.mutate.tests_of [PYTEST ARGUMENTS]` measures, and writes MAP: {file: [test files, most lines first]}.
Without a map, a file's tests are those that import it.
"""

from __future__ import annotations

import ast
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from tools.mutate.faults import ROOT

MAP = ROOT / ".cache" / "tests_of.json"
MOST = 6  # Test files per source file.


def tests_of(path: str) -> tuple[str, ...]:
    """The test files that run lines of `path`; at most MOST."""
    if MAP.exists():
        found = json.loads(MAP.read_text()).get(path)
        if found:
            return tuple(found[:MOST])
    return importers(path) or (str(Path("tests") / Path(path).parts[0]),)


def importers(path: str) -> tuple[str, ...]:
    """The test files that import `path` (directly or through one module), and its namesake; at most MOST.

    The namesake comes first, then direct importers, then the nearest, then the quick ones.
    """
    module = _module(path)
    slow = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    stem = Path(path).stem
    users = {_module(name) for name, imported in _imports().items() if module in imported}
    found = {
        name: module in imported
        for name, imported in _imports().items()
        if Path(name).name.startswith("test_")
        and (imported & {module, *users} or name == str(Path("tests", path).parent / f"test_{stem}.py"))
    }

    def order(name: str) -> tuple:
        shared = os.path.commonpath([Path("tests", path), name])
        return stem not in Path(name).stem, not found[name], -len(Path(shared).parts), name in slow, name

    return tuple(sorted(found, key=order)[:MOST])


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _sources() -> list[Path]:
    """The project's Python files, without those that git ignores (which may be whole environments)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [file for file in map(ROOT.joinpath, listed.stdout.splitlines()) if file.exists()]


@cache
def _imports() -> dict[str, set[str]]:
    """The modules that each project file imports; `from a import b` counts as both a and a.b."""
    imported: dict[str, set[str]] = {}
    for file in _sources():
        names = imported.setdefault(str(file.relative_to(ROOT)), set())
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return imported


def measure(arguments: list[str]) -> dict[str, list[str]]:
    """Runs the tests under coverage with one context per test; returns {file: [test files, most lines first]}."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "coverage"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n0",
            "--cov=.",
            "--cov-context=test",
            "--cov-report=",
            *arguments,
        ]
        subprocess.run(command, cwd=ROOT, check=False, env={**_environment(), "COVERAGE_FILE": str(data)})
        lines: dict[str, Counter] = {}
        query = (
            "SELECT file.path, context.context, length(line_bits.numbits) FROM line_bits "
            "JOIN file ON file.id = line_bits.file_id JOIN context ON context.id = line_bits.context_id"
        )
        with sqlite3.connect(data) as database:
            for path, context, size in database.execute(query):
                if context:
                    name = str(Path(path).resolve().relative_to(ROOT))
                    lines.setdefault(name, Counter())[context.partition("::")[0]] += size
    return {
        name: [test for test, _ in found.most_common()]
        for name, found in sorted(lines.items())
        if not name.startswith("tests/")
    }


def _environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


if __name__ == "__main__":
    MAP.parent.mkdir(exist_ok=True)
    MAP.write_text(json.dumps(measure(sys.argv[1:]), indent=1) + "\n")
