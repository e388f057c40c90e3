"""Checks a tree's system description, and that directory, logs and description name the same system."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.check_log import LogResult
from compliance.log.logs import shown
from compliance.log.rules import DIVISIONS
from compliance.submission import rounds
from compliance.submission.tree_files import read_small

_MAX_JSON_BYTES = 1 << 20
_FIELDS_FROM, _STATUS_FROM = (1, 0), (4, 1)
# The fields that system_desc_checker.py joins into a table row.
_IN_TABLE = frozenset(
    ("submitter", "system_name", "host_processor_model_name", "host_processor_core_count")
    + ("accelerator_model_name", "accelerators_per_node", "framework")
)


def read_description(
    path: Path, asked_by: Path, ruleset: str, strict: bool = False
) -> tuple[dict | None, list[Finding]]:
    """Reads a system's JSON. Returns (description, findings); the description is None if it cannot be used.

    Args:
      path: the JSON file.
      asked_by: the results directory that needs it; the finding about a missing file names it.
      ruleset: the round whose vocabulary the fields must use.
      strict: whether a missing description is an error (else advice).
    """
    try:
        content = load(path)
    except FileNotFoundError:
        severity, wanted = ERROR if strict else ADVICE, f"systems/{path.name}"
        return None, [finding("tree.system-missing", severity, asked_by, wanted, "none", name=path.name)]
    except (OSError, ValueError) as error:
        found = str(error)[:120] or type(error).__name__
        return None, [finding("system.json", ERROR, path, "a JSON object", found)]
    return content, [*_fields(path, content, ruleset), *_counts(path, content)]


def load(path: Path) -> dict:
    """Returns the JSON object of a system's description.

    Raises:
      FileNotFoundError: the file does not exist.
      OSError, ValueError: it is not a regular file (a link, a pipe, a device), too large, or not a JSON object.
    """
    text = read_small(path, _MAX_JSON_BYTES).decode("utf-8-sig")
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"a JSON {type(content).__name__}")
    return content


def count(description: object, field: str) -> int | None:
    """Returns a field that holds a whole number, as a number or in digits, else None."""
    value = description.get(field) if isinstance(description, dict) else None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    if isinstance(value, int):
        return value if 0 <= value < 10**9 else None
    return int(value) if re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII) else None


def _fields(path: Path, content: dict, ruleset: str) -> Iterator[Finding]:
    """Yields errors for fields that the round's tools refuse, advice for fields that only differ from the rules."""
    from systems import schema  # has the fields and vocabularies; needed only if there is a description

    for problem in schema.errors(content, ruleset or "0.7.0"):
        name = problem.partition(":")[0]
        severity = ERROR if _refused(name, content, ruleset) else ADVICE
        if severity == ADVICE and name in content and not isinstance(content[name], str):
            continue  # a number or a list: every round accepts one in fields that no table shows
        yield _field(path, content, severity, problem)
    for problem in schema.placeholders(content):
        yield _field(path, content, ADVICE, problem)


def _field(path: Path, content: dict, severity: str, problem: str) -> Finding:
    """Builds the finding about one field from the schema's sentence, "name: what is wrong; what to write"."""
    name, _, said = problem.partition(": ")
    wrong, _, remedy = said.partition("; ")
    found = shown(content[name]) if name in content else f"no {name}"
    names = {"name": name, "problem": wrong, "remedy": remedy or "give it a value"}
    wanted = remedy.removeprefix("write ").removeprefix("add it, with ") or "another value"
    return finding("system.field", severity, path, wanted, found, **names)


def _refused(name: str, content: dict, ruleset: str) -> bool:
    """Whether the round's tools refuse a submission because of this field.

    mlperf_logging/system_desc_checker/system_desc_checker.py requires all fields since 1.0.0 (seven of them strings),
    and the words of `status` since 4.1.0. Its condition says 4.0.0, but the descriptions published there have the older
    words. Before 1.0.0 only the division is read (package_checker.py).
    """
    at = rounds.number(ruleset)
    if name not in content:
        return name == "division" or at >= _FIELDS_FROM
    if name == "status" and isinstance(content[name], str):
        return at >= _STATUS_FROM
    return at >= _FIELDS_FROM and name in _IN_TABLE and not isinstance(content[name], str)


def _counts(path: Path, content: dict) -> Iterator[Finding]:
    for field in ("number_of_nodes", "accelerators_per_node"):
        if count(content, field) is None:
            found = shown(content.get(field))
            yield finding("system.count", ADVICE, path, "a whole number in a string", found, field=field)


def disagreements(
    path: Path, system: str, description: dict | None, source: Path, group: list[LogResult]
) -> Iterator[Finding]:
    """Reports that directory, logs and system description name different systems or divisions."""
    if description is not None:
        division = description.get("division")
        logged = sorted({result.division for result in group if isinstance(result.division, str)})
        # A word that is not a division ("close", "Closed") is a system.field finding, not another division.
        if division in DIVISIONS and logged and logged != [division]:
            # Logs that obey the closed rules may be submitted as open: rounds 2.1 to 3.1 published such entries.
            severity = ADVICE if (division, logged) == ("open", ["closed"]) else ERROR
            wanted, found = f"{division} (systems/{source.name})", " and ".join(logged)
            yield finding("tree.division", severity, path, wanted, found, wording="tree.division.system")
    names = [system]
    if description is not None and isinstance(description.get("system_name"), str):
        names.append(description["system_name"])
        if compare(names[1], system) == "other":
            yield finding("tree.system", ADVICE, source, system, names[1], wording="tree.system.file")
    for platform in sorted({result.platform for result in group if isinstance(result.platform, str)}):
        verdicts = {compare(platform, name) for name in names}
        if "same" in verdicts:
            continue
        certain = "other" in verdicts or (len(names) == 2 and " " not in platform.strip())
        rule = "tree.system" if certain else "tree.system-unclear"
        yield finding(rule, ADVICE, path, " or ".join(dict.fromkeys(names)), platform[:80])


_NODES = re.compile(r"^\s*\d+\s*x\s*(?=\w)", re.IGNORECASE)


def compare(name: str, other: str) -> str:
    """Compares two system names: returns "same", "other" or "unclear".

    "same": one name begins like the other or contains it. "other": the same words with different numbers. A leading
    count of nodes ("1xDGX-1") is ignored.
    """
    if bool(_NODES.match(name)) != bool(_NODES.match(other)):
        name, other = _NODES.sub("", name), _NODES.sub("", other)
    # "NVIDIA DGX-1" without the manufacturer is in "dgx1_mxnet".
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
    """Whether `name` contains `part`, ignoring case and punctuation; cut numbers and very short parts do not count."""
    whole, inner = (re.sub(r"[^a-z\d]", "", text.lower()[:200]) for text in (name, part))
    return len(inner) > 3 and bool(re.search(rf"(?<!\d){inner}(?!\d)", whole))


def _parts(name: str) -> list[str]:
    """ "TPU v3-32" -> ["tpuv", "3", "32"]."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])[^a-z\d]+(?=[a-z])", "", name.lower()[:200]))
