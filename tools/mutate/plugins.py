"""Pytest plugins: run the tests most likely to notice a fault first, and record the first failure."""

import contextlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

from tools.mutate.faults import Fault

FIRST = 8  # Number of tests to run before the others.
_COMMON = frozenset(
    [
        "the",
        "and",
        "for",
        "from",
        "with",
        "has",
        "one",
        "its",
        "are",
        "test",
        "tests",
        "self",
        "none",
        "return",
        "config",
        "true",
        "false",
    ]
)


def words(text: str) -> set[str]:
    """The words of a text, or the parts of its identifiers, shortened so that singular and plural match."""
    return {word[:6].rstrip("s") for word in re.findall("[a-z0-9]{3,}", text.lower()) if word not in _COMMON}


class LikeliestFirst:
    """Moves the tests that share the most words with the fault to the front, one per function."""

    def __init__(self, fault: Fault):
        self.words = words(f"{fault.name} {fault.why} {Path(fault.file).stem}")
        self.code = words(fault.old)

    def _likeness(self, item: pytest.Item) -> float:
        name = words(item.name.partition("[")[0])
        source: set[str] = set()
        with contextlib.suppress(
            AttributeError, OSError, TypeError
        ):  # Not a function, or one made at run time.
            source = words(inspect.getsource(inspect.unwrap(item.obj)))
        return 3 * len(self.words & name) + len(self.words & source) + len(self.code & (name | source))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sorts the tests; the rest keep their order, so that module fixtures are made only once."""
        seen: Counter[str] = Counter()
        leaders = []
        for item in items:
            function = item.nodeid.partition("[")[0]
            if not seen[function]:
                leaders.append(item)
            seen[function] += 1
        first = sorted(leaders, key=self._likeness, reverse=True)[:FIRST]
        items[:] = [*first, *(item for item in items if item not in first)]


class FirstFailure:
    """Writes the name of the first test that fails, or of a file that cannot be imported."""

    def __init__(self, path: Path):
        self.path = path

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid, encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records a test."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Records a file."""
        self._note(report)
