"""Defines the verdict of a check, go or no-go, and merges the verdicts of several paths."""

from collections.abc import Sequence
from typing import NamedTuple

from compliance.findings import ERROR, Finding

GO, NO_GO, NOT_CHECKED = "go", "no-go", "not checked"
_MOST_REASONS = 5
PRACTICE = "smoke runs are practice, not results"


class Verdict(NamedTuple):
    """The answer to "would this be accepted?": `answer` is GO, NO_GO or NOT_CHECKED; `reasons` are short sentences.

    NOT_CHECKED means that no rule is broken, but there is no result to accept: for example smoke runs, runs without a
    target, or a folder without logs in the layout of a submission.
    """

    answer: str
    reasons: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Returns the verdict in one line."""
        reasons = "; ".join(self.reasons[:_MOST_REASONS])
        more = len(self.reasons) - _MOST_REASONS
        return self.answer + (f": {reasons}" if reasons else "") + (f"; and {more} more" if more > 0 else "")

    @property
    def exit_status(self) -> int:
        """Returns 0 for GO and sound practice, 1 for NO_GO, 2 for NOT_CHECKED."""
        sound = bool(self.reasons) and all(reason.endswith(PRACTICE) for reason in self.reasons)
        return 0 if sound and self.answer == NOT_CHECKED else (GO, NO_GO, NOT_CHECKED).index(self.answer)


def of_findings(findings: Sequence[Finding], practice: bool) -> Verdict:
    """Returns the verdict of logs that are not a submission; `practice`: whether a log is from a smoke run."""
    broken = dict.fromkeys(finding.rule for finding in findings if finding.severity == ERROR)
    if broken:
        return Verdict(NO_GO, tuple(broken))
    if any(finding.rule == "no_mlperf_result" for finding in findings):
        return Verdict(NOT_CHECKED, ("no quality target was set, so there is no result",))
    if practice:
        return Verdict(NOT_CHECKED, (PRACTICE,))
    return Verdict(GO)


def merge(verdicts: Sequence[Verdict], names: Sequence[str]) -> Verdict:
    """Returns the verdict of several paths: NO_GO if any is NO_GO, else NOT_CHECKED if any is, else GO."""
    if len(verdicts) == 1:
        return verdicts[0]
    for word in (NO_GO, NOT_CHECKED):
        reasons = [
            f"{name}: {reason}"
            for verdict, name in zip(verdicts, names)
            if verdict.answer == word
            for reason in verdict.reasons
        ]
        if reasons:
            return Verdict(word, tuple(reasons))
    return Verdict(GO)
