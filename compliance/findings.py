"""Defines `Finding`, one result of a check, and groups equal findings."""

import json
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ERROR = "error"
ADVICE = "advice"


class Finding(NamedTuple):
    """One thing that is wrong (`error`) or worth knowing (`advice`), at one place or, when grouped, at several.

    `line` counts from 1; 0 means the whole file. A group of several findings has every line number in `lines`.
    """

    rule: str
    severity: str
    path: str
    line: int
    text: str
    message: str
    expected: str
    found: str
    fix: str
    lines: Sequence[int] = ()


@cache
def texts() -> dict[str, dict]:
    """Loads rules/texts.json: descriptions of "keys" and "rules", and the "wording" of findings."""
    path = Path(__file__).parent / "rules" / "texts.json"
    return json.loads(path.read_text(encoding="utf-8"))


def finding(
    rule: str,
    severity: str,
    path: object,
    expected: str,
    actual: str,
    *,
    line: int = 0,
    text: str = "",
    wording: str = "",
    **names: object,
) -> Finding:
    """Builds a finding from the sentence that texts.json has for `wording` (default: `rule`), filled with `names`."""
    words = texts()["wording"][wording or rule]
    message, fix = words["message"].format(**names), words["fix"].format(**names)
    return Finding(rule, severity, str(path), line, text, message, expected, actual, fix)


class FindingGroups:
    """Collects findings. Findings that differ only in line, text and found value become one with all lines.

    A repeated occurrence takes 8 bytes, so a log with a million bad lines can be reported in full.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple, tuple[Finding, array]] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Adds findings of any files, in the order in which the check produces them."""
        for finding in findings:
            kind = (finding.path, finding.rule, finding.severity, finding.message, finding.expected)
            self._groups.setdefault(kind, (finding, array("Q")))[1].append(finding.line)

    def findings(self) -> list[Finding]:
        """Returns one finding per group, in the order of first occurrence."""
        return [one._replace(lines=lines) if len(lines) > 1 else one for one, lines in self._groups.values()]


def clean(text: str) -> str:
    """Replaces control characters with spaces: they could drive a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
