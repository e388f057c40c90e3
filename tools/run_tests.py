"""Runs the tests in parts, each in its own processes: python -m tools.run_tests [FLAGS] [PYTEST ARGUMENTS]

TensorFlow keeps a process's compiled programs for as long as the process lives; fresh processes free that memory.
Arguments that name tests run only these tests, in one part.

    --by_file       every file is its own part, even if tests are named; each test of EACH_TEST's files is its own part
    --slots=N       N parts at a time, at least 1; a part's output is printed when it ends
    --reports=DIR   writes a JUnit report of each part into DIR
    --journal=FILE  pytest's flag of tests/conftest.py: skips tests that have passed, until the sources change
    --minutes=M     begins no test after M minutes, names those left out; the number of commits chooses the first part
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from tools import deadline, journal

ROOT = Path(__file__).resolve().parents[1]
# Folders that share a part; the last part has everything that none of them names.
PARTS = (
    ("tests/common",),
    ("tests/mnist", "tests/ptb", "tests/lab"),
    ("tests/gnmt", "tests/maskrcnn", "tests/ssd", "tests/transformer"),
    ("tests/resnet", "tests/tsm_kinetics"),
)
# Files whose tests are separate parts, by file: each fills gigabytes with compiled programs.
EACH_TEST = ("tests/common/export/test_export.py",)
INTERRUPTED = 2  # Pytest's exit status after Ctrl-C.
NO_TESTS = 5  # Pytest's exit status if the arguments leave no test in a part.
GRACE_SECONDS = 20.0  # From an interruption to the end of a part that does not end by itself.


def parts() -> list[list[str]]:
    """The pytest arguments that select each part; together they select every test once."""
    names = [name for part in PARTS for name in part]
    return [*(list(part) for part in PARTS), ["tests", *(f"--ignore={name}" for name in names)]]


def number_of(root: Path) -> int:
    """Returns the number of a checkout's commits, a number from its hash in a shallow clone, or 0 without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        shallow = git("rev-parse", "--is-shallow-repository") == "true"
        return int(git("rev-parse", "HEAD"), 16) if shallow else int(git("rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return 0


def names_tests(argument: str) -> bool:
    """Whether an argument is a path of a test file or folder, or names a test in one."""
    path = ROOT / argument.partition("::")[0]
    return path.is_relative_to(ROOT / "tests") and path.exists()


def parts_by_file(arguments: Sequence[str]) -> list[list[str]]:
    """The pytest arguments of one part per file with selected tests, most tests first.

    Raises SystemExit if a journal says that all have passed, a file cannot be imported, or an argument is wrong.
    """
    # Quiet enough that each test is one line, even with -vv.
    command = [sys.executable, "-m", "pytest", "--collect-only", *arguments, "--verbosity=-1"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, NO_TESTS):
        sys.exit(done.stdout + f"pytest cannot collect the tests (status {done.returncode})")
    tests = defaultdict(list)
    for test in re.findall(r"^\S+\.py::.+$", done.stdout, re.MULTILINE):
        tests[test.partition("::")[0]].append(test)
    if not tests and journal.PASSED in done.stdout:
        print(done.stdout, end="")
        sys.exit(0)
    ids = [argument for argument in arguments if "::" in argument and names_tests(argument)]
    selected: list[list[str]] = []
    for file in sorted(tests, key=lambda file: len(tests[file]), reverse=True):
        if file in EACH_TEST:
            selected += [[test] for test in tests[file]]
        else:
            selected.append([n for n in ids if n.startswith(f"{file}::")] or [file])
    return selected


def say(line: str) -> None:
    """Prints a line to stderr immediately; parallel parts all write there."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Runner:
    """Runs commands, each with its children in a process group, which ends when this process is told to end."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen] = set()
        self.signal = 0  # The one that ended the parts.

    def run(self, place: str, command: Sequence[str], whole: bool) -> int:
        """Runs part `place` ("3 of 42"), says when it starts and ends; returns its exit status.

        `whole` prints the output when the part ends, rather than while it runs.
        """
        say(f"part {place}: {' '.join(filter(names_tests, command)) or 'the tests'}")
        start = time.monotonic()
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if whole else {}
        process = subprocess.Popen(
            command, cwd=ROOT, text=True, errors="replace", start_new_session=True, **output
        )
        self.running.add(process)
        if self.signal:  # It came before the process was there to receive it.
            end(process, signal.SIGINT)
        text = process.communicate()[0]
        self.running.discard(process)
        print(text or "", end="", flush=True)
        minutes = (time.monotonic() - start) / 60
        say(f"part {place}: ended after {minutes:.1f} minutes with status {process.returncode}")
        return process.returncode

    def run_all(self, commands: Sequence[Sequence[str]], slots: int) -> list[int | None]:
        """Runs the parts, `slots` at a time; the status is None for parts that an interruption skipped."""
        interrupted = False

        def run(number: int) -> int | None:
            nonlocal interrupted
            if interrupted or self.signal:
                return None
            status = self.run(f"{number} of {len(commands)}", commands[number - 1], whole=slots > 1)
            interrupted |= status == INTERRUPTED
            return status

        with self.ended_by_signals(), futures.ThreadPoolExecutor(slots) as pool:
            return list(pool.map(run, range(1, len(commands) + 1)))

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Makes SIGTERM and Ctrl-C interrupt the running parts, which then say what they ran, and kill them later."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.signal:
            sys.exit(128 + self.signal)

    def _on_signal(self, number: int, _: Any) -> None:
        for process in list(self.running):
            # A test may ignore an interruption; whoever asks twice does not wait.
            end(process, signal.SIGKILL if self.signal else signal.SIGINT)
            killer = threading.Timer(GRACE_SECONDS, end, (process, signal.SIGKILL))
            killer.daemon = True
            killer.start()
        self.signal = self.signal or number


def end(process: subprocess.Popen, number: int) -> None:
    """Sends a signal to the process group of a command; its members may live longer than the command."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def main(argv: Sequence[str]) -> int:
    """Runs all parts, even after a failure; returns the first failing exit status, if any."""
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--by_file", action="store_true")
    ours.add_argument("--slots", type=int, default=1)
    ours.add_argument("--reports")
    ours.add_argument("--minutes", type=float)
    flags, arguments = ours.parse_known_args(argv)
    if flags.slots < 1:
        ours.error(f"--slots={flags.slots}: must be at least 1")
    # Identify the sources once for all parts, so that an edit meanwhile does not start a new journal.
    if any(argument.startswith("--journal=") for argument in argv):
        os.environ.setdefault(journal.SOURCES, journal.sources())
    if flags.by_file:
        selected = parts_by_file(arguments)
        arguments = [argument for argument in arguments if not names_tests(argument)]
    else:
        selected = [[]] if any(map(names_tests, arguments)) else parts()
    if flags.minutes is not None:
        os.environ[deadline.END] = str(time.time() + 60 * flags.minutes)
        first = number_of(ROOT) % max(1, len(selected))
        selected = selected[first:] + selected[:first]
    commands = []
    for number, part in enumerate(selected, 1):
        report = [f"--junitxml={flags.reports}/{number}.xml"] if flags.reports else []
        commands.append([sys.executable, "-m", "pytest", *part, *report, *arguments])
    statuses = Runner().run_all(commands, flags.slots)
    good = (0, NO_TESTS, None)
    bad = {" ".join(part): status for part, status in zip(selected, statuses) if status not in good}
    for part, status in bad.items():
        print(f"failed: {part or 'the tests'} (status {status})", file=sys.stderr)
    if bad:
        return next(iter(bad.values()))
    return 0 if 0 in statuses else NO_TESTS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
