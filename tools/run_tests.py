"""Runs the tests in parts, each by processes of its own: python -m tools.run_tests [FLAGS] [PYTEST ARGUMENTS]

TensorFlow keeps the programs of a process for as long as it lives. Fresh processes keep each of them below 3 GB.
Arguments that name tests run these alone, in one part.

    --by-file       every file is a part, and of the tests that are named too
    --reports=DIR   writes a JUnit report of each part into DIR
    --journal=FILE  pytest's flag of tests/conftest.py: what has passed is left out, until the sources change
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import journal

ROOT = Path(__file__).resolve().parents[1]
# Folders that share a part; what none of them names is the last part.
PARTS = (
    ("tests/common",),
    ("tests/mnist", "tests/ptb", "tests/studies"),
    ("tests/gnmt", "tests/maskrcnn", "tests/ssd", "tests/transformer"),
    ("tests/resnet", "tests/tsm_kinetics"),
)
NO_TESTS = 5  # Pytest's exit status where the arguments leave none of a part.


def parts() -> list[list[str]]:
    """The pytest arguments that select each part; together they select every test once."""
    chosen = [name for part in PARTS for name in part]
    return [*(list(part) for part in PARTS), ["tests", *(f"--ignore={name}" for name in chosen)]]


def names_tests(argument: str) -> bool:
    """Whether an argument is the path of a test file or folder, or the name of a test in one."""
    path = ROOT / argument.partition("::")[0]
    return path.is_relative_to(ROOT / "tests") and path.exists()


def parts_by_file(arguments: Sequence[str]) -> list[list[str]]:
    """The pytest arguments of a part for every file with tests that the arguments select.

    Raises:
      SystemExit: all have passed before, as a journal says; or a file cannot be imported, or an argument is wrong.
    """
    # So quiet that each file is a line, "path: number of tests", also beside -vv.
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qqqqqq", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, NO_TESTS):
        sys.exit(done.stdout + f"pytest cannot collect the tests (status {done.returncode})")
    named = [argument for argument in arguments if "::" in argument and names_tests(argument)]
    found = re.findall(r"^(\S+\.py): \d+$", done.stdout, re.MULTILINE)
    if not found and journal.PASSED in done.stdout:
        print(done.stdout, end="")
        sys.exit(0)
    return [[n for n in named if n.startswith(f"{file}::")] or [file] for file in dict.fromkeys(found)]


def main(argv: Sequence[str]) -> int:
    """Runs all parts, also after one that fails; returns the first exit status that says so."""
    arguments = [argument for argument in argv if not argument.startswith(("--reports=", "--by-file"))]
    reports = [argument.partition("=")[2] for argument in argv if argument.startswith("--reports=")]
    # Named once for all parts: an edit meanwhile begins no new journal.
    if any(argument.startswith("--journal=") for argument in argv):
        os.environ.setdefault(journal.SOURCES, journal.sources())
    if "--by-file" in argv:
        selected = parts_by_file(arguments)
        arguments = [argument for argument in arguments if not names_tests(argument)]
    else:
        selected = [[]] if any(map(names_tests, arguments)) else parts()
    statuses = []
    for number, part in enumerate(selected, 1):
        print(f"part {number} of {len(selected)}: {' '.join(part)}", file=sys.stderr, flush=True)
        report = [f"--junitxml={reports[-1]}/{number}.xml"] if reports else []
        command = [sys.executable, "-m", "pytest", *part, *report, *arguments]
        statuses.append(subprocess.run(command, cwd=ROOT).returncode)
        if statuses[-1] == 2:  # Interrupted.
            break
    bad = {" ".join(part): status for part, status in zip(selected, statuses) if status not in (0, NO_TESTS)}
    for part, status in bad.items():
        print(f"failed: {part or 'the tests'} (status {status})", file=sys.stderr)
    if bad:
        return next(iter(bad.values()))
    return 0 if 0 in statuses else NO_TESTS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
