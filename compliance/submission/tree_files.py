"""Finds the logs of a submission tree, and reports missing code and scripts."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.lines import TOKEN

_RESULT = re.compile(r"result_.*\.txt")
_LOG_SUFFIXES = (".txt", ".log", ".out")
_SCRIPTS = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")


def find_logs(root: Path) -> tuple[list[str], list[Finding]]:
    """Finds the logs below `root`: result_*.txt and, outside the layout of a submission, every text file that holds
    a record; where there are none of these, any file that holds one.

    In a benchmark's directory of results a log of another name is an error: no tool would look at it.
    """
    results, others, rest, findings = [], [], [], []

    def unreadable(error: OSError) -> None:
        findings.append(unreadable_directory(error.filename, error))

    for directory, names, files in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path):  # os.walk does not follow it
                fix = "put the directory itself here, or check what it points to"
                findings.append(unchecked(path, "this directory", "a symbolic link", fix))
        for name in sorted(files):
            path = os.path.join(directory, name)
            if _RESULT.fullmatch(name):
                kind = _kind(path)
                if kind == "file":
                    results.append(path)
                else:
                    findings.append(unchecked(path, "this file", kind, "put the log itself here, not a link"))
            elif _kind(path) == "file":
                (others if name.endswith(_LOG_SUFFIXES) else rest).append(path)
        place = place_of(Path(os.path.abspath(directory)))
        if place and place[2] and not names and not any(_RESULT.fullmatch(name) for name in files):
            found = f"{len(files)} other files"
            findings.append(finding("tree.no-results", ERROR, directory, "result_<i>.txt", found))
    for path in filter(_has_token, others):
        directory = Path(os.path.abspath(path)).parent
        if place_of(directory) is not None:
            fix = "name it result_<i>.txt, or check it by its own name"
            findings.append(unchecked(path, "this log", "another name than result_<i>.txt", fix))
        elif not {"benchmarks", "implementations"} & {*directory.parts}:  # sample logs may lie beside code
            results.append(path)
    if not results and not findings:
        results = [path for path in rest if _has_token(path)]
    return sorted(results), findings


def unreadable_directory(directory: str | Path, error: OSError) -> Finding:
    """Builds the finding about a directory that cannot be listed."""
    return unchecked(directory, "this directory", reason_of(error), "make it readable")


def reason_of(error: OSError) -> str:
    """The system's words for an error."""
    return error.strerror or type(error).__name__


def unchecked(path: str | Path, what: str, found: str, fix: str) -> Finding:
    """Builds the finding about a file or directory that is present but not checked."""
    return finding("not-checked", ERROR, path, "a plain, readable file", found, what=what, fix=fix)


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "a file that cannot be read"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "file" if stat.S_ISREG(mode) else "a special file"


def _has_token(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return TOKEN in file.read(1 << 20)
    except OSError:
        return True  # the check of the log reports that it is unreadable


def place_of(directory: Path) -> tuple[Path, str, str | None] | None:
    """(org, system, benchmark) of a directory below a `results/`; benchmark is None where that level is missing."""
    parts = directory.parts
    if "results" not in parts:
        return None
    index = len(parts) - 1 - parts[::-1].index("results")
    below = parts[index + 1 :]
    if not 1 <= len(below) <= 2:
        return None
    return Path(*parts[:index]) if index else Path("."), below[0], below[1] if len(below) == 2 else None


def missing_code(org: Path, pairs: list[str]) -> Iterator[Finding]:
    """Reports files missing that the rules require beside the results: scripts, README, implementation description.

    Args:
      org: the submitter's folder.
      pairs: "system/benchmark" of every directory of results.
    """
    root = org / "benchmarks"
    if not root.is_dir():
        wanted = "benchmarks/<benchmark>/ with code, scripts and README"
        yield finding("tree.file-missing", ADVICE, org, wanted, "none", name="The directory benchmarks/")
        return
    for pair in pairs:
        system, benchmark = pair.split("/", 1)
        top = root / benchmark
        inside = top / "implementations"
        try:
            places = [top / system, inside / system, *(inside / name / system for name in _names(inside))]
            present = {name for place in places for name in _names(place)}
            shared = _names(top)
        except OSError as error:  # files in an unreadable directory are not reported as missing
            yield unreadable_directory(error.filename, error)
            continue
        missing = [
            name for name in _SCRIPTS if name not in present and not (name == "README.md" and name in shared)
        ]
        if not any(name.startswith(f"{system}_") and name.endswith(".json") for name in present):
            missing.append(f"{system}_<implementation>.json")
        for name in missing:
            wanted = f"benchmarks/{benchmark}/{system}/{name}"
            yield finding("tree.file-missing", ADVICE, top / system, wanted, "none", name=name)


def _names(directory: Path) -> set[str]:
    """The names in a directory, none where it does not exist. Raises OSError when it cannot be read."""
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()
