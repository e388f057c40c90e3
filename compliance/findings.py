"""What a check has to say: findings, and the grouping of equal ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ERROR = "error"
ADVICE = "advice"


class Finding(NamedTuple):
    """One thing that is wrong (`error`) or worth knowing (`advice`), at one place or, once grouped, at several."""

    rule: str  # the id that `python -m compliance explain` takes
    severity: str
    path: str
    line: int  # 1-based; 0: the whole file
    text: str
    message: str
    expected: str
    found: str
    fix: str
    lines: Sequence[int] = ()  # every line of the group, when there are several


class Groups:
    """Collects findings; those that differ only in line, text and found value become one with all line numbers.

    Memory: 8 bytes for a repeated occurrence, so that a log of a million bad lines can be reported in full.
    """

    def __init__(self) -> None:
        self._first: dict[tuple, Finding] = {}
        self._lines: dict[tuple, array] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Takes findings of any file, in the order in which they arose."""
        for finding in findings:
            kind = (finding.path, finding.rule, finding.severity, finding.message, finding.expected)
            if kind not in self._first:
                self._first[kind] = finding
            elif (lines := self._lines.get(kind)) is not None:
                lines.append(finding.line)
            else:
                self._lines[kind] = array("Q", (self._first[kind].line, finding.line))

    def findings(self) -> list[Finding]:
        """One finding for each group, in the order of their first occurrences."""
        return [
            finding._replace(lines=self._lines[kind]) if kind in self._lines else finding
            for kind, finding in self._first.items()
        ]
