"""Describes the rules of a key in words, and finds the sections of a rule file that apply to a benchmark's logs."""

from common.errors import UserError
from compliance.hints import hint
from compliance.log import rules
from compliance.log.formulas import describe_formula, uses_metadata
from compliance.log.predicates import describe


def target_in_words(spec: dict) -> str:
    """Describes a target, which may depend on another key."""
    if "by" in spec:
        return f"{describe(spec['then'])}; from {spec['by']} {spec['less']} on {describe(spec['else'])}"
    return describe(spec)


def _formulas(spec: dict) -> list[tuple[str, str]]:
    """Returns (value or metadata, words) for each formula of a key."""
    return [
        ("metadata" if uses_metadata(formula) else "value", describe_formula(formula) + when)
        for word, when in (("formula", ""), ("first_formula", " at the first one"))
        for formula in spec.get(word, ())
    ]


def _entry(name: str, predicate: dict) -> str:
    return name + (f" ({describe(predicate)})" if predicate else "")


def _metadata(spec: dict) -> list[str]:
    phrases = [_entry(name, predicate) for name, predicate in spec.get("metadata", {}).items()]
    phrases += [" or ".join(some) for some in spec.get("metadata_any", ())]
    for having, predicates in spec.get("metadata_if", {}).items():
        phrases += [f"{_entry(name, predicate)} with {having}" for name, predicate in predicates.items()]
    if "collects" in spec:
        names = spec["collects"]["all_of"]
        once = f"each of {len(names)} names once: {', '.join(names[:3])}, ..."
        phrases.append(f"in all records together {once}")
    return phrases


def _order(spec: dict) -> list[str]:
    phrases = [f"after {key}" for key in spec.get("after", ())]
    phrases += [f"before {key}" for key in spec.get("not_after", ())]
    if "within" in spec:
        minutes = spec["within"]["minutes"]
        limit = "the minutes of the division" if isinstance(minutes, dict) else f"{minutes} minutes"
        phrases.append(f"less than {limit} after the first {spec['within']['key']}")
    return phrases + [f"not when {condition['say']}" for condition in spec.get("when", ())]


def describe_key(spec: dict) -> dict[str, str]:
    """Describes the rules of one key in words: {aspect: description}."""
    words = {}
    if isinstance(occurs := spec.get("occurs"), dict):
        words["occurs"] = f"at least {occurs['at_least']}"
    elif occurs:
        words["occurs"] = occurs.replace("_", " ")
    for other, value in spec.get("once_if", {}).items():
        words["occurs"] = f"exactly one when {other} is {value}, else none"
    phrases = [describe(spec["value"])] if "value" in spec else []
    if phrases := phrases + [text for about, text in _formulas(spec) if about == "value"]:
        words["value"] = " and ".join(phrases)
    if phrases := [*_metadata(spec), *(text for about, text in _formulas(spec) if about == "metadata")]:
        words["metadata"] = ", ".join(phrases)
    if order := _order(spec):
        words["order"] = "; ".join(order)
    if "target" in spec:
        words["target"] = f"at least one {target_in_words(spec['target'])}"
    return words


def sections_of(
    ruleset: str, division: str, benchmark: str
) -> tuple[dict, list[tuple[str, dict[str, dict]]]]:
    """Returns the benchmark's section of a round, and (title, its keys) of every section that applies to its logs.

    Raises UserError if the ruleset does not know the benchmark or division.
    """
    if benchmark in rules.HPC_BENCHMARKS:
        raise UserError(f"{benchmark} is a benchmark of MLPerf HPC, which is not covered")
    names = rules.benchmarks(ruleset, division if division in rules.DIVISIONS else None)
    for word, value, choices in (("division", division, rules.DIVISIONS), ("benchmark", benchmark, names)):
        if value not in choices:
            raise UserError(f"ruleset {ruleset} has no {word} {value!r}; {hint((value,), choices)}")
    name = rules.section_name(ruleset, division, benchmark)
    if name not in rules.names(ruleset):
        reason = f"ruleset {ruleset} names {benchmark} and has no rules for it"
        raise UserError(f"{reason}; name an earlier --ruleset")
    info = rules.load(ruleset, name)
    common = [one for one in ("common", f"{division}/common") if one in rules.names(ruleset)]
    every = {key: spec for one in common for key, spec in rules.load(ruleset, one)["keys"].items()}
    sections = [("every log", every), (f"{benchmark}, {division}", info["keys"])]
    for key, spec in info["keys"].items():
        if "selects" in spec:
            for choice in spec["value"]["in"]:
                choice_keys = rules.load(ruleset, spec["selects"].format(choice))["keys"]
                sections.append((f"{benchmark}, {division}, {key} {choice}", choice_keys))
    for key in (*info["keys"], *info.get("removes", ())):
        sections[0][1].pop(key, None)
    return info, sections
