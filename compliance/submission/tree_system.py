"""Checks a tree's system description, and that directory, logs and description name the same system."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.logs import noting_repeats, text_of
from compliance.submission import rounds
from compliance.submission.published_tables import other_spellings
from compliance.submission.tree_files import read_small

_MAX_JSON_BYTES = 1 << 20
_FIELDS_FROM, _STATUS_FROM = (1, 0), (4, 1)


def read_description(
    path: Path, asked_by: Path, ruleset: str, strict: bool = False, logged: object = None
) -> tuple[dict | None, list[Finding]]:
    """Reads a system's JSON. Returns (description, findings); the description is None if it cannot be used.

    Args:
      path: the JSON file.
      asked_by: the results directory that needs it; the finding about a missing file names it.
      ruleset: the round whose vocabulary the fields must use.
      strict: whether a missing description is an error (else advice).
      logged: submission_status of the system's logs; None if unknown.
    """
    try:
        content, faults = _read(path)
    except FileNotFoundError:
        severity, expected = ERROR if strict else ADVICE, f"systems/{path.name}"
        return None, [finding("tree.system-missing", severity, asked_by, expected, "none", name=path.name)]
    except (OSError, ValueError) as error:
        actual = str(error)[:120] or type(error).__name__
        return None, [finding("system.json", ERROR, path, "a JSON object", actual)]
    faults += _fields(path, content, ruleset, logged)
    for field, name, other in other_spellings(content) if rounds.number(ruleset) >= _FIELDS_FROM else ():
        faults.append(finding("system.name", ADVICE, path, other, text_of(name), field=field, other=other))
    for field in ("number_of_nodes", "accelerators_per_node"):
        if count(content, field) is None:
            about = "a whole number in a string", text_of(content.get(field))
            faults.append(finding("system.count", ADVICE, path, *about, field=field))
    return content, faults


def load_or_empty(path: Path, most: int = _MAX_JSON_BYTES) -> dict:
    """Returns the JSON object of a regular file of at most `most` bytes; {} if it has none."""
    try:
        return _read(path, most)[0]
    except (OSError, ValueError):
        return {}


def _read(path: Path, most: int = _MAX_JSON_BYTES) -> tuple[dict, list[Finding]]:
    """Returns (the JSON object, findings about its form).

    Raises:
      FileNotFoundError: the file does not exist.
      OSError, ValueError: it is not a regular file (a link, a pipe, a device), too large, or not a JSON object.
    """
    text, faults = read_small(path, most).decode("utf-8"), []
    repeated: list[tuple[str, object, object]] = []
    if text.startswith("\ufeff"):
        faults.append(finding("system.bom", ERROR, path, "a JSON object from the first byte on", "EF BB BF"))
    try:
        content = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=noting_repeats(repeated))
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"a JSON {type(content).__name__}")
    for key, value, later in repeated[:5]:
        actual = f"{key[:80]}: {text_of(value, 60)}, then {text_of(later, 60)}"
        faults.append(finding("system.twice", ADVICE, path, "each field once", actual))
    return content, faults


def count(description: object, field: str) -> int | None:
    """Returns a field that holds a whole number, as a number or in digits, else None."""
    value = description.get(field) if isinstance(description, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # the stock summarizer takes int() of what it reads
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    if isinstance(value, int):
        return value if 0 <= value < 10**9 else None
    return int(value) if re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII) else None


def accelerators(description: object) -> int | None:
    """Returns the accelerators of all nodes; None if the description does not give them."""
    nodes, each = (count(description, name) for name in ("number_of_nodes", "accelerators_per_node"))
    return None if nodes is None or each is None else nodes * each


def _fields(path: Path, content: dict, ruleset: str, logged: object) -> Iterator[Finding]:
    """Yields errors for fields that the round's tools refuse, advice for fields that only differ from the rules."""
    from systems import schema  # has the fields and vocabularies; needed only if there is a description

    for problem in schema.errors(content, ruleset or "0.7.0", logged=logged):
        name = problem.partition(":")[0]
        severity = ERROR if _refused(name, content, ruleset) else ADVICE
        if severity == ADVICE and name in content and not isinstance(content[name], str):
            continue  # a list or an object: every round accepts one in fields that no table shows
        yield _field(path, content, severity, problem)
    for problem in schema.placeholders(content):
        yield _field(path, content, ADVICE, problem)


def _field(path: Path, content: dict, severity: str, problem: str) -> Finding:
    """Builds the finding about one field from the schema's sentence, "name: what is wrong; what to write"."""
    name, _, sentence = problem.partition(": ")
    wrong, _, remedy = sentence.partition("; ")
    actual = text_of(content[name]) if name in content else f"no {name}"
    names = {"name": name, "problem": wrong, "remedy": remedy or "give it a value"}
    expected = remedy.removeprefix("write ").removeprefix("add it: ") or "another value"
    return finding("system.field", severity, path, expected, actual, **names)


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
    from systems.schema import IN_TABLE

    return at >= _FIELDS_FROM and name in IN_TABLE and not isinstance(content[name], str)
