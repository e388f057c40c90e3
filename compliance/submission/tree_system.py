"""Checks a tree's system description, and whether directory, logs and description name the same system."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.check_log import LogResult
from compliance.log.logs import shown

_MAX_JSON_BYTES = 1 << 20


def read_description(path: Path, asked_by: Path, ruleset: str) -> tuple[dict | None, list[Finding]]:
    """Reads a system's JSON: (description, findings); the description is None where it cannot be used.

    Args:
      path: the JSON file.
      asked_by: the directory of results that needs it, which the finding about a missing file names.
      ruleset: the round whose vocabulary the fields must use.
    """
    try:
        if not path.is_file():
            wanted = f"systems/{path.name}"
            return None, [finding("tree.system-missing", ADVICE, asked_by, wanted, "none", name=path.name)]
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"more than {_MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError(f"a JSON {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        found = str(error)[:120] or type(error).__name__
        return None, [finding("system.json", ERROR, path, "a JSON object", found)]
    from systems import schema  # has the fields and vocabularies; needed only when there is a description

    wanted = "the 33 fields of the rules, all strings"
    remarks = [
        finding("system.field", ERROR, path, wanted, path.name, problem=problem)
        for problem in schema.errors(content, ruleset or "0.7.0")
    ]
    remarks += [
        finding("system.field", ADVICE, path, "a value, or nothing", path.name, problem=problem)
        for problem in schema.placeholders(content)
    ]
    for field in ("number_of_nodes", "accelerators_per_node"):
        value = content.get(field)
        if not (isinstance(value, (str, int)) and re.fullmatch(r"\d{1,9}", str(value))):
            wanted = "a whole number in a string"
            remarks.append(finding("system.count", ADVICE, path, wanted, shown(value), field=field))
    return content, remarks


def disagreements(
    path: Path, system: str, description: dict | None, source: Path, group: list[LogResult]
) -> Iterator[Finding]:
    """Reports where directory, logs and system description name different systems or divisions."""
    if description is not None:
        division = description.get("division")
        logged = sorted({result.division for result in group if isinstance(result.division, str)})
        # A wrong case is a wrong word of the description (system.field), not another division.
        if isinstance(division, str) and logged and logged != [division.strip().lower()]:
            wanted, found = f"{division} (systems/{source.name})", " and ".join(logged)
            yield finding("tree.division", ERROR, path, wanted, found, wording="tree.division.system")
    names = [system]
    if description is not None and isinstance(description.get("system_name"), str):
        names.append(description["system_name"])
        if compare(names[1], system) == "other":
            yield finding("tree.system", ERROR, source, system, names[1], wording="tree.system.file")
    for platform in sorted({result.platform for result in group if isinstance(result.platform, str)}):
        verdicts = {compare(platform, name) for name in names}
        if "same" in verdicts:
            continue
        certain = "other" in verdicts or (len(names) == 2 and " " not in platform.strip())
        rule, severity = ("tree.system", ERROR) if certain else ("tree.system-unclear", ADVICE)
        yield finding(rule, severity, path, " or ".join(dict.fromkeys(names)), platform[:80])


_NODES = re.compile(r"^\s*\d+\s*x\s*(?=\w)", re.IGNORECASE)


def compare(name: str, other: str) -> str:
    """Compares two names of systems: "same" (one begins like the other, or is in it), "other" (the same words with
    other numbers), or "unclear". A leading count of nodes ("1xDGX-1") is ignored.
    """
    if bool(_NODES.match(name)) != bool(_NODES.match(other)):
        name, other = _NODES.sub("", name), _NODES.sub("", other)
    # "NVIDIA DGX-1" without its maker is in "dgx1_mxnet".
    if any(_holds(a, b) or _holds(a, b.partition(" ")[2]) for a, b in ((name, other), (other, name))):
        return "same"
    ours, theirs = _parts(name), _parts(other)
    shorter = min(len(ours), len(theirs))
    if shorter and ours[:shorter] == theirs[:shorter]:
        return "same"
    words, their_words = ([part for part in parts if part.isalpha()] for parts in (ours, theirs))
    shorter = min(len(words), len(their_words))
    return "other" if shorter and words[:shorter] == their_words[:shorter] else "unclear"


def _holds(name: str, part: str) -> bool:
    """Whether `part` is in `name`, ignoring case and punctuation; a cut number or a very short part does not count."""
    whole, inner = (re.sub(r"[^a-z\d]", "", text.lower()[:200]) for text in (name, part))
    return len(inner) > 3 and bool(re.search(rf"(?<!\d){inner}(?!\d)", whole))


def _parts(name: str) -> list[str]:
    """ "TPU v3-32" -> ["tpuv", "3", "32"]."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])[^a-z\d]+(?=[a-z])", "", name.lower()[:200]))
