"""Defines the 33 fields of an MLPerf system description, and validates descriptions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `counts`: an integer written in digits; `needed`: a submission may not leave it empty."""

    name: str
    about: str
    counts: bool = False
    needed: bool = False


# Names and order: mlcommons/logging `mlperf_logging/system_desc_checker/system_desc_checker.py` (required_fields, the
# same in all rulesets from 0.6.0 to 6.1.0).
FIELDS: tuple[Field, ...] = (
    Field("submitter", "organization that submits", needed=True),
    Field("division", "closed or open", needed=True),
    Field("status", "availability of the system", needed=True),
    Field("system_name", "name in the results table", needed=True),
    Field("number_of_nodes", "hosts in the system", counts=True, needed=True),
    Field("host_processors_per_node", "CPU sockets of one host", counts=True, needed=True),
    Field("host_processor_model_name", "CPU model"),
    Field("host_processor_core_count", "cores of one CPU"),
    Field("host_processor_vcpu_count", "hardware threads of one CPU"),
    Field("host_processor_frequency", "nominal CPU clock"),
    Field("host_processor_caches", "sizes of the CPU caches"),
    Field("host_processor_interconnect", "link between the sockets, e.g. UPI 10.4 GT/s"),
    Field("host_memory_capacity", "main memory of one host"),
    Field("host_storage_type", "local storage, e.g. NVMe SSD"),
    Field("host_storage_capacity", "size of the local storage of one host"),
    Field("host_networking", "network adapters of one host and their speed"),
    Field("host_networking_topology", "how the hosts are connected, e.g. fat tree"),
    Field("host_memory_configuration", "memory modules, e.g. 16 x 32 GB DDR4-2400"),
    Field("accelerators_per_node", "accelerators of one host, 0 for none", counts=True, needed=True),
    Field("accelerator_model_name", "accelerator model"),
    Field("accelerator_host_interconnect", "link from host to accelerator, e.g. PCIe 3.0 x16"),
    Field("accelerator_frequency", "accelerator clock"),
    Field("accelerator_on-chip_memories", "caches and scratchpads of one accelerator"),
    Field("accelerator_memory_configuration", "kind of accelerator memory, e.g. HBM2"),
    Field("accelerator_memory_capacity", "memory of one accelerator"),
    Field("accelerator_interconnect", "link between accelerators, e.g. NVLink 2.0 300 GB/s"),
    Field("accelerator_interconnect_topology", "how the accelerators are connected, e.g. 2-D torus"),
    Field("cooling", "air, liquid, ..."),
    Field("hw_notes", "anything else about the hardware"),
    Field("framework", "framework and version", needed=True),
    Field("other_software_stack", "libraries and drivers, with versions"),
    Field("operating_system", "operating system and version"),
    Field("sw_notes", "anything else about the software"),
)
NAMES: tuple[str, ...] = tuple(field.name for field in FIELDS)

DIVISIONS = ("closed", "open")
_SHORT = ("cloud", "onprem", "preview", "research")
# mlperf_logging/compliance_checker/training_*/common.yaml (submission_status) up to 3.1.0, and
# system_desc_checker.py (availability_options) from 4.0.0.
_LONG = ("Available cloud", "Available on-premise", "Preview", "Research, Development, or Internal (RDI)")

# Placeholders that submitters forget to replace, as seen in published v0.6 and v0.7 descriptions.
_PLACEHOLDERS = frozenset({"todo", "tbd", "fixme", "xxx", "-", "?", "n/a", "na", "none", "null", "cpuname"})
# "none" and "N/A" carry information
_NEVER_PLACEHOLDER = frozenset({"hw_notes", "sw_notes", "accelerator_model_name"})
# The fields that system_desc_checker.py joins into a table row. Every round accepts numbers in the others.
IN_TABLE = frozenset(
    ("submitter", "system_name", "host_processor_model_name", "host_processor_core_count")
    + ("accelerator_model_name", "accelerators_per_node", "framework")
)
# Longer strings are no count, and Python refuses to parse very long ones.
_COUNT = re.compile(r"[0-9]{1,18}")
# Forty published v0.7 descriptions give the software stack as an object of versions; the stock tools accept it.
_MAY_BE_OBJECT = frozenset({"other_software_stack"})


# The newest round (compliance/log/rules.py, RULESETS).
NEWEST = "6.1.0"


def statuses(ruleset: str = "0.7.0") -> tuple[str, ...]:
    """The allowed values of `status` in a round, given the round's ruleset ("0.6.0" ... "6.1.0")."""
    major, minor = (int(part) for part in ruleset.split(".")[:2])
    if major >= 4:
        return _LONG
    return tuple(word for word in _SHORT if word != "preview") if (major, minor) < (0, 7) else _SHORT


def status_in(ruleset: str, status: object) -> str:
    """Returns a short status ("onprem") in the words of a round; anything else unchanged, as text."""
    words = statuses(ruleset)
    return words[_SHORT.index(status)] if words == _LONG and status in _SHORT else str(status)


def validate(description: object, ruleset: str = "0.7.0", *, submission: bool = True) -> list[str]:
    """Lists a description's faults, one sentence each that names the field and the fix; [] if there are none.

    `submission=False` is for a machine that is not being submitted yet: fields that a submission must fill may be
    empty.
    """
    if not isinstance(description, dict):
        return [f"the description is {_kind(description)}; write one JSON object with the 33 fields"]
    problems = errors(description, ruleset, submission=submission)
    return problems + placeholders(description)


def errors(
    description: dict, ruleset: str = "0.7.0", *, submission: bool = True, logged: object = None
) -> list[str]:
    """The faults of `validate` without placeholders, which many published descriptions contain.

    `logged`: the word for the availability that the system's logs have, which decides between two words of the round.
    """
    problems = _misnamed(description)
    for field in FIELDS:
        if field.name in description and not _is_placeholder(field, description[field.name]):
            problems += _wrong_value(field, description[field.name], ruleset, submission, logged)
    return problems


def placeholders(description: dict) -> list[str]:
    """Lists fields that still hold a placeholder ("TODO", "N/A"), one sentence each."""
    return [
        f'{field.name}: {description[field.name]!r} is a placeholder; write the value, or "" if it is not known'
        for field in FIELDS
        if _is_placeholder(field, description.get(field.name))
    ]


def _is_placeholder(field: Field, value: object) -> bool:
    return (
        isinstance(value, str)
        and value.strip().lower() in _PLACEHOLDERS
        and field.name not in _NEVER_PLACEHOLDER
    )


def _misnamed(description: dict) -> list[str]:
    problems = []
    missing = [name for name in NAMES if name not in description]
    extra = [str(name) for name in description if name not in NAMES]
    for name in missing:
        near = get_close_matches(name, extra, n=1, cutoff=0.8)
        if near:
            problems.append(f"{name}: missing, but there is {near[0]!r}; rename it to {name!r}")
        else:
            field = next(one for one in FIELDS if one.name == name)
            unknown = "" if field.needed else ', or "" if it is not known'
            problems.append(f"{name}: missing; add it: {field.about}{unknown}")
    return problems


def _wrong_value(field: Field, value: object, ruleset: str, submission: bool, logged: object) -> list[str]:
    name = field.name
    if field.name in _MAY_BE_OBJECT and isinstance(value, dict):
        return []
    if not isinstance(value, str):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and (whole or not field.counts)
        if fits and name not in IN_TABLE | {"division", "status"}:
            return []
        quoted = (
            f'write "{value}"' if fits else 'write digits, e.g. "8"' if field.counts else "write a string"
        )
        return [f"{name}: {_kind(value)}, and every field is a string; {quoted}"]
    text = value.strip()
    if not text:
        if not (submission and field.needed):
            return []
        return [f"{name}: empty; give it, as a submission must: {field.about}"]
    if field.counts and not (_COUNT.fullmatch(text) and (int(text) > 0 or "accel" in name)):
        return [f'{name}: {text[:40]!r} is not a whole number; write digits only, e.g. "8" ({field.about})']
    allowed = {"division": DIVISIONS, "status": statuses(ruleset)}.get(name)
    if allowed and value not in allowed:
        near = get_close_matches(text, allowed, n=2, cutoff=0.6)
        if name == "status" and logged in _SHORT and allowed is _LONG:
            near = [_LONG[_SHORT.index(logged)]]
        elif len(near) == 2:
            near = []  # "available" is near to two words
        fix = f"write {near[0]!r}" if near else f"write one of {', '.join(map(repr, allowed))}"
        return [f"{name}: {text[:60]!r} is not a word that ruleset {ruleset} knows; {fix}"]
    return []


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    return {list: "a list", dict: "an object", str: "a string"}.get(type(value), type(value).__name__)
