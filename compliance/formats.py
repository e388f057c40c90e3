"""Formats the outcome of a check as text and JSON."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path

from common.errors import counted
from compliance.api import Outcome
from compliance.findings import ADVICE, ERROR, Finding, clean
from compliance.log.check_log import ASKED_FOR, LogResult
from compliance.submission.tree_files import LOG_SUFFIXES

_MOST_RULESETS = 8  # how many lines the text output spends on rulesets
_SHOWN_LINES = 12
_SHOWN_LOGS = 3
_WIDTH = 160


def counts(findings: Sequence[Finding]) -> tuple[int, int]:
    """Returns (errors, pieces of advice); a group counts once."""
    errors = sum(finding.severity == ERROR for finding in findings)
    return errors, len(findings) - errors


def places(finding: Finding) -> str:
    """Returns the lines of a finding as text: "line 7", "lines 3, 9, 12 (3 in all)", "whole file"."""
    lines = finding.lines
    if len(lines) > 1:
        numbers = ", ".join(map(str, lines[:_SHOWN_LINES]))
        return f"lines {numbers}{', ...' if len(lines) > _SHOWN_LINES else ''} ({len(lines)} in all)"
    return f"line {finding.line}" if finding.line else "whole file"


def verdict_line(outcome: Outcome) -> str:
    """Returns the outcome in one line: verdict, counts, reasons."""
    numbers = counts(outcome.findings)
    errors, advice = (counted(count, noun) for count, noun in zip(numbers, ("error", "piece")))
    summary = f"{counted(len(outcome.files), 'file')} checked, {errors}, {advice} of advice"
    word, _, reasons = outcome.verdict.line.partition(": ")
    return f"{word}: {summary}" + (f": {reasons}" if reasons else "")


def merged(findings: Sequence[Finding]) -> tuple[list[Finding], dict[int, list[Finding]]]:
    """Merges findings that say the same of several logs of a folder, which a reader need not see again.

    Returns (the first of each kind, {id of a finding: those that it stands for}). Only advice of other logs is merged:
    an error is reported for each log, because each of these logs must be fixed. Two findings are of one kind if they
    agree in everything but the log and its lines.
    """
    first: dict[tuple, Finding] = {}
    alike: dict[int, list[Finding]] = {}
    firsts: list[Finding] = []
    for finding in findings:
        folder = str(Path(finding.path).parent)
        kind = (folder, finding.rule, finding.severity, finding.message, finding.expected, finding.found)
        stands = first.setdefault(kind, finding)
        if finding.severity == ADVICE and finding.path.endswith(LOG_SUFFIXES) and stands.path != finding.path:
            alike[id(stands)].append(finding)
            continue
        firsts.append(finding)
        alike[id(finding)] = []
    return firsts, alike


def as_text(outcome: Outcome) -> str:
    """Formats the outcome for people: grouped by file, errors first, the verdict on the last line."""
    blocks: list[str] = []
    firsts, alike = merged(outcome.findings)
    for path, group in _by_path(firsts):
        blocks.append(clean(path))
        for finding in group:
            others = alike[id(finding)]
            names = ", ".join(Path(one.path).name for one in others[:_SHOWN_LOGS])
            names += ", ..." if len(others) > _SHOWN_LOGS else ""
            logs = f"  and in {counted(len(others), 'more log')}: {names}" if others else ""
            blocks.append(f"  {finding.severity}  {finding.rule}  {places(finding)}{clean(logs)}")
            blocks.append(f"    {clean(finding.message)}")
            blocks.append(f"    expected {clean(finding.expected)}; found {clean(finding.found)}")
            if finding.text:
                blocks.append(f"    | {clean(finding.text)[:_WIDTH]}")
            blocks.append(f"    fix: {clean(finding.fix)}")
        blocks.append("")
    return "\n".join([*blocks, *_rulesets(outcome), *_acceptance(outcome), clean(verdict_line(outcome))])


def _acceptance(outcome: Outcome) -> list[str]:
    """Returns the answer of `accept` in a line, if runs are missing or the committee decides."""
    if outcome.submissions:
        from compliance.acceptance.tree_answer import OPEN, answer_tree  # not needed for a log

        answer = answer_tree(outcome)  # where it is no more than the verdict, the last line has it
        return [clean(f"accept: {answer.line}")] if answer.answer == OPEN else []
    return []


def _rulesets(outcome: Outcome) -> list[str]:
    """Returns a line for each ruleset that the check chose, with the reason; none if the user chose the ruleset."""
    logs = (log for log in outcome.logs if log.ruleset_reason not in ("", ASKED_FOR))
    rows = Counter((log.ruleset, log.ruleset_reason) for log in logs).most_common()
    lines = [clean(f"ruleset {name}, {counted(n, 'log')}: {why}") for (name, why), n in rows[:_MOST_RULESETS]]
    rest = sum(count for _, count in rows[_MOST_RULESETS:])
    return [*lines, f"other rulesets, {counted(rest, 'log')}"] if rest else lines


def _by_path(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.path, []).append(finding)
    return [(path, sorted(group, key=lambda one: one.severity == ADVICE)) for path, group in groups.items()]


def as_json(outcome: Outcome) -> str:
    """Formats the outcome for programs: verdict, counts, files, logs, and findings with all their line numbers."""
    import json

    errors, advice = counts(outcome.findings)
    findings = [
        {**finding._asdict(), "lines": list(finding.lines) or ([finding.line] if finding.line else [])}
        for finding in outcome.findings
    ]
    content = {
        "verdict": outcome.verdict._asdict(), "errors": errors, "advice": advice,
        "files": list(outcome.files), "logs": [_log(log) for log in outcome.logs], "findings": findings,
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=True)


def _log(log: LogResult) -> dict[str, object]:
    """Returns what a log declares; a value of a wrong type or with too many digits becomes null."""
    values = {name: getattr(log, name) for name in ("benchmark", "division", "platform")}
    return {
        "path": log.path, "ruleset": log.ruleset, "ruleset_reason": log.ruleset_reason, "passes": log.passes,
        **{name: value[:200] if isinstance(value, str) else None for name, value in values.items()},
        "smoke": log.smoke,
        "minutes": log.minutes if log.minutes is not None and isfinite(log.minutes) else None, "met": log.met,
    }  # fmt: skip


FORMATS: dict[str, Callable[[Outcome], str]] = {"text": as_text, "json": as_json}
