"""Writes the outcome of a check as SARIF 2.1.0, which code scanning and editors show next to the lines.

The form: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0, sections 3.13 to 3.30.
"""

import os

from compliance.api import Outcome
from compliance.findings import ERROR, Finding, texts

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {ERROR: "error"}  # advice is a "note"
_MAX_PLACES = 100  # per finding; a log may have a million bad lines


def as_sarif(outcome: Outcome) -> str:
    """Returns one SARIF run: the rules that found something, and a result for each finding."""
    import json

    ids = list(dict.fromkeys(finding.rule for finding in outcome.findings))
    run = {
        "tool": {"driver": {"name": "compliance", "rules": [_rule(name, outcome) for name in ids]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "exitCode": outcome.verdict.exit_status}],
        "artifacts": [{"location": _artifact(path)} for path in outcome.files],
        "results": [_result(finding, ids.index(finding.rule)) for finding in outcome.findings],
        "properties": {"verdict": outcome.verdict.answer},
    }
    content = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(content, indent=1, ensure_ascii=True)


def _rule(name: str, outcome: Outcome) -> dict:
    first = next(finding for finding in outcome.findings if finding.rule == name)
    about = texts()["rules"].get(name)
    text = about if isinstance(about, str) else first.message
    return {
        "id": clean(name),
        "shortDescription": {"text": clean(text)},
        "help": {"text": f"timetotrain explain {clean(name)}"},
        "defaultConfiguration": {"level": _LEVELS.get(first.severity, "note")},
    }


def _result(finding: Finding, index: int) -> dict:
    message = f"{finding.message} Expected {finding.expected}; found {finding.found}. Fix: {finding.fix}."
    lines = list(finding.lines[:_MAX_PLACES]) or [finding.line]
    if len(finding.lines) > _MAX_PLACES:
        message += f" ({len(finding.lines)} lines in all.)"
    artifact = {"artifactLocation": _artifact(finding.path)}
    regions = ({"region": {"startLine": line}} if line else {} for line in lines)
    first, *others = ({"physicalLocation": artifact | region} for region in regions)
    result = {
        "ruleId": clean(finding.rule), "ruleIndex": index, "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": clean(message)}, "locations": [first],
    }  # fmt: skip
    if others:
        result["relatedLocations"] = others
    return result


def _artifact(path: str) -> dict:
    """Returns a path relative to the working directory, which is the source root in CI; for others a file: URI."""
    from pathlib import Path
    from urllib.parse import quote

    if os.path.isabs(path):
        near = os.path.relpath(path)
        if near.startswith(os.pardir):
            return {"uri": "file://" + quote(os.fsencode(Path(path).as_posix()))}
        path = near
    return {"uri": quote(os.fsencode(Path(path).as_posix())), "uriBaseId": "%SRCROOT%"}


def clean(text: str) -> str:
    """Replaces control characters with spaces: they could drive a terminal or break XML."""
    return "".join(char if char.isprintable() else " " for char in text)
