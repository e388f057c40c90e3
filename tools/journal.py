"""Remembers which long tests have passed, so that `make e2e` continues where it stopped.

The journal's first line identifies the sources; changed sources start a new journal.
"""

import hashlib
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = (
    "JOURNAL_SOURCES"  # Environment variable that gives the parts of one run the sources as of its start.
)

PASSED = "tests have passed before"  # tools/run_tests.py looks for these words: nothing is left to run.


def sources(root: pathlib.Path = ROOT) -> str:
    """Identifies the checkout: its commit and any differences from it."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False).stdout

    return (
        f"{git('rev-parse', 'HEAD').decode().strip()} {hashlib.sha256(git('diff', 'HEAD')).hexdigest()[:16]}"
    )


class Journal:
    """A pytest plugin that uses one journal file."""

    def __init__(self, path: pathlib.Path, now: str):
        self.path = path
        self.keeps = True
        lines = path.read_text().splitlines() if path.exists() else []
        self.passed_ids = set(lines[1:]) if lines[:1] == [now] else set()
        if lines[:1] != [now]:  # A concurrent process may be writing to it.
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(now + "\n")

    def pytest_configure(self, config: pytest.Config) -> None:
        """If pytest-xdist distributes the tests, lets only the controlling process write."""
        self.keeps = not hasattr(config, "workerinput")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects the tests that have passed."""
        done = [item for item in items if item.nodeid in self.passed_ids]
        if done:
            print(
                f"{len(done)} {PASSED}, as {self.path} says; {len(items) - len(done)} are left; "
                f"remove the file to run them all"
            )
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.passed_ids]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records a test that has passed."""
        if self.keeps and report.when == "call" and report.passed:
            with self.path.open("a") as file:
                file.write(report.nodeid + "\n")
