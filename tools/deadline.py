"""Ends a run of the tests in time: skips what `python -m tools.run_tests --minutes=M` does not reach, and names it."""

import os
import time
from collections import Counter

import pytest

END = "TESTS_END_AT"  # Environment variable with the end, in seconds since the epoch, for the processes of pytest.
REASON = "the time of this run is over"


class Deadline:
    """A pytest plugin that skips every test that would begin after the end."""

    def __init__(self) -> None:
        self.end = float(os.environ[END])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skips a test before its fixtures are made."""
        if time.time() > self.end:
            pytest.skip(REASON)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Names the files whose tests were not reached."""
        skipped = [r for r in terminalreporter.stats.get("skipped", ()) if REASON in str(r.longrepr)]
        for file, count in sorted(Counter(r.nodeid.partition("::")[0] for r in skipped).items()):
            terminalreporter.write_line(f"not run for want of time: {count} tests of {file}")
