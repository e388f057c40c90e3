"""Runs the tests in parts, each by processes of its own: python -m tools.run_tests [--reports=DIR] [PYTEST ARGUMENTS]

TensorFlow keeps the programs of a process for as long as it lives. Fresh processes keep each of them below 3 GB.
Arguments that name tests run these alone, in one part. --reports writes a JUnit report of each part into DIR.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
    return not argument.startswith("-") and (ROOT / argument.partition("::")[0]).exists()


def main(argv: Sequence[str]) -> int:
    """Runs all parts, also after one that fails; returns the first exit status that says so."""
    arguments = [argument for argument in argv if not argument.startswith("--reports=")]
    reports = [argument.partition("=")[2] for argument in argv if argument.startswith("--reports=")]
    selected = [[]] if any(map(names_tests, arguments)) else parts()
    statuses = []
    for number, part in enumerate(selected, 1):
        print(f"part {number} of {len(selected)}: {' '.join(part)}", file=sys.stderr, flush=True)
        report = [f"--junitxml={reports[-1]}/{number}.xml"] if reports else []
        command = [sys.executable, "-m", "pytest", *part, *report, *arguments]
        statuses.append(subprocess.run(command, cwd=ROOT).returncode)
        if statuses[-1] == 2:  # Interrupted.
            break
    failed = [status for status in statuses if status not in (0, NO_TESTS)]
    if failed or 0 in statuses:
        return failed[0] if failed else 0
    return NO_TESTS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
