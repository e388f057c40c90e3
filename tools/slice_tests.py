"""Runs a slice of the long tests, as time allows: python -m tools.slice_tests [MINUTES]

The number of commits chooses the slice, and in a shallow clone, which has no number, the commit's hash. A test that
fails is an error, and ends its group. Groups of tests that the minutes (20 by default) do not reach are named, and each
round of the slices begins with another group.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

from tools.run_tests import EACH_TEST, NO_TESTS, Runner, number_of, say

ROOT = Path(__file__).resolve().parents[1]
SLICES, MINUTES, SLOTS = 12, 20.0, 2
TOGETHER = 4  # Tests of one file in one process, which share what the file's fixtures make.
# Files whose tests take minutes each and share nothing: four of them may not end in time.
EACH_ALONE = (
    *EACH_TEST,
    "tests/test_end_to_end.py",
    "tests/timetotrain/run/test_pjrt_targets.py",
    "tests/timetotrain/test_own_end_to_end.py",
)


def units(tests: Sequence[str]) -> list[list[str]]:
    """Returns the tests in groups, each of one file, that run in one process."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return [
        members[i : i + step]
        for file, members in files.items()
        for step in [1 if file in EACH_ALONE else TOGETHER]
        for i in range(0, len(members), step)
    ]


def chosen(groups: Sequence[list[str]], number: int) -> list[list[str]]:
    """Returns the groups of a slice in the order in which they run; each round begins with another one."""
    mine = list(groups[number % SLICES :: SLICES])
    first = number // SLICES % max(1, len(mine))
    return mine[first:] + mine[:first]


def main(argv: Sequence[str]) -> int:
    """Returns 1 if a test fails, else 0."""
    deadline = time.monotonic() + 60 * float(argv[0] if argv else MINUTES)
    pytest = [sys.executable, "-m", "pytest", "-n0"]
    listed = subprocess.run(
        [*pytest, "--collect-only", "--verbosity=-1", "-m", "e2e"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    if listed.returncode:
        sys.exit(listed.stdout + f"pytest cannot collect the tests (status {listed.returncode})")
    number = number_of(ROOT)
    slice_ = chosen(units([line for line in listed.stdout.splitlines() if "::" in line]), number)
    say(f"slice {number % SLICES + 1} of {SLICES}: {sum(map(len, slice_))} long tests")
    runner = Runner()

    def run(place: int) -> int | None:
        left = deadline - time.monotonic()
        if left <= 0 or runner.signal:
            return None
        # With -x a failure counts, even if the time would run out in a later test of the group.
        command = [*pytest, "-x", "-m", "e2e or not e2e", *slice_[place]]
        return runner.run(f"{place + 1} of {len(slice_)}", command, whole=True, seconds=left)

    with runner.ended_by_signals(), futures.ThreadPoolExecutor(SLOTS) as pool:
        statuses = list(pool.map(run, range(len(slice_))))
    failed = [group for group, status in zip(slice_, statuses) if status not in (0, NO_TESTS, None)]
    for outcome, groups in (
        ("failed", failed),
        ("not run to their end, for want of time", [g for g, s in zip(slice_, statuses) if s is None]),
    ):
        for group in groups:
            print(f"{outcome}: {' '.join(group)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
