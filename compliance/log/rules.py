"""Loads and compiles the rules of a round, `rules/<ruleset>.json`.

The file has a section for every log ("common") and one for each benchmark ("closed/resnet"). A section is data in a
closed vocabulary, which docs/compliance.md lists. For each key it says how often the key must occur, what its value and
metadata must be (predicates.py), and which keys must come before or after it. In round v0.6 formulas on a small state
order epochs, evaluations and blocks.

Once a log has named its benchmark and division, three sections apply: "common", then "<division>/common" if it exists,
then "<division>/<benchmark>" ("any/<benchmark>" if the rules are the same in both divisions). A section may extend the
section of the same name in another round (`extends`): its keys replace that round's keys, and `without` removes keys.
"""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from common.errors import UserError
from compliance.log.formulas import compile_condition, compile_formula, explain_condition, uses_metadata
from compliance.log.logs import Record
from compliance.log.predicates import compile_predicate, describe

RULESETS = (
    "0.6.0", "0.7.0", "1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0", "5.1.0",
    "6.0.0", "6.1.0",
)  # fmt: skip
DIVISIONS = ("closed", "open")
# Benchmarks of MLPerf HPC (mlperf_logging/benchmark_meta.py). This project has no rules for them.
HPC_BENCHMARKS = ("cosmoflow", "deepcam", "oc20", "openfold")

_DIRECTORY = Path(__file__).parents[1] / "rules"
_UNSET = object()


def ruleset_name(text: str) -> str:
    """Returns a round's name as RULESETS has it: 6.1.0 for 6.1, v6.1 and 6.1.0; other text without its `v`."""
    name = text.removeprefix("v")
    return f"{name}.0" if name.count(".") == 1 else name


# The options of a command's --ruleset.
CHOICE = {"type": ruleset_name, "choices": RULESETS}


@cache
def load(ruleset: str, name: str) -> dict:
    """Returns one section of a round's rules, e.g. `load("0.7.0", "closed/resnet")`.

    Raises UserError if the section does not exist.
    """
    if name not in names(ruleset):
        sections = ", ".join(sorted(names(ruleset)))
        raise UserError(f"no rules {name!r} in ruleset {ruleset}; there are {sections}")
    section = dict(_sections(ruleset)[name])
    if "extends" not in section:
        return section
    base = load(section.pop("extends"), name)
    removals = section.pop("without", ())
    keys = {key: spec for key, spec in base["keys"].items() if key not in removals}
    return {**base, **section, "keys": {**keys, **section.get("keys", {})}}


@cache
def _sections(ruleset: str) -> dict[str, dict]:
    """Returns {name: section} of a round's file; {} for a round without a file."""
    if ruleset not in RULESETS:
        return {}
    return json.loads((_DIRECTORY / f"{ruleset}.json").read_text(encoding="utf-8"))


@cache
def names(ruleset: str) -> frozenset[str]:
    """Returns the names of a ruleset's sections, e.g. {"common", "closed/resnet", ...}."""
    return frozenset(_sections(ruleset))


@cache
def benchmarks(ruleset: str, division: str | None = None) -> list[str]:
    """Returns the benchmarks that `submission_benchmark` may name; for both divisions if `division` is None."""
    choices: dict[str, None] = {}
    for one in DIVISIONS if division is None else (division,):
        name = f"{one}/common" if f"{one}/common" in names(ruleset) else "common"
        choices.update(dict.fromkeys(load(ruleset, name)["keys"]["submission_benchmark"]["value"]["in"]))
    return list(choices)


@cache
def rulesets_with(benchmark: str) -> tuple[str, ...]:
    """Returns the rulesets that allow a benchmark, oldest first."""
    return tuple(ruleset for ruleset in RULESETS if benchmark in benchmarks(ruleset))


def has_divisions(ruleset: str) -> bool:
    """Whether the benchmark's rules depend on the division (from v0.7 on)."""
    return not any(name.startswith("any/") for name in names(ruleset))


def section_name(ruleset: str, division: str | None, benchmark: str) -> str:
    """Returns the name of a benchmark's section; `load` raises if the section does not exist."""
    return f"{division if has_divisions(ruleset) else 'any'}/{benchmark}"


def has_rules(ruleset: str, benchmark: str, division: str = "closed") -> bool:
    """Whether a round has a section for a benchmark; some rounds name benchmarks that they have no section for."""
    return section_name(ruleset, division, benchmark) in names(ruleset)


def optimizers(ruleset: str, benchmark: str) -> tuple[str, ...]:
    """Returns the optimizers that a closed log of a benchmark may name; () if the round's rules name none."""
    value = benchmark_section(ruleset, benchmark).get("keys", {}).get("opt_name", {}).get("value", {})
    return tuple(value.get("in") or ([value["equal"]] if "equal" in value else []))


def benchmark_section(ruleset: str, benchmark: str) -> dict:
    """Returns a benchmark's closed section; its runs, samples and target hold for both divisions. {} if unknown."""
    name = section_name(ruleset, "closed", benchmark)
    return load(ruleset, name) if name in names(ruleset) else {}


class KeyRule:
    """The compiled rules of one key.

    `checks` holds (aspect, test, expected, say). `test(record, counts, state, times)` is true if the record obeys
    the rule. `expected` is a text, or a function of (record, state) that returns it. `say` selects the sentence for a
    record that does not obey, '' means the usual sentence. `counts` has the number of each key before this record,
    `state` is that of `RuleState`, and `times` maps each key to the earliest time that was logged for it.
    """

    def __init__(self, key: str, spec: dict):
        self.key = key
        self.spec = spec
        self.occurs = spec.get("occurs", "optional")
        self.once = self.occurs == "exactly_one"
        self.times = self.occurs["at_least"] if isinstance(self.occurs, dict) else self.occurs != "optional"
        self.remembers = tuple((name, compile_formula(one)) for name, one in spec.get("remembers", ()))
        self.collects = spec.get("collects")
        saves = spec.get("saves_time")
        self.saves_time = (saves["in"], compile_formula(saves["by"])) if saves else None
        self.keeps = bool(self.remembers or self.collects or self.saves_time)  # something for later rules
        self.sets = tuple(spec.get("sets", {}).items())
        self.target = spec.get("target")
        self.selects = spec.get("selects")
        self.allowed = spec.get("value", {}).get("in")
        self.checks = tuple(self._compile(spec))

    @staticmethod
    def _compile(spec: dict):
        if "value" in spec:
            test = compile_predicate(spec["value"])
            yield "value", lambda record, *_, test=test: test(record.value), describe(spec["value"]), ""
        for name, predicate in spec.get("metadata", {}).items():
            yield "metadata", *_on_metadata(name, predicate), ""
        for other in spec.get("after", ()):
            yield "order", lambda record, counts, *_, other=other: other in counts, f"after {other}", ""
        for other in spec.get("not_after", ()):
            yield "order", lambda record, counts, *_, other=other: other not in counts, f"before {other}", ""
        for some in spec.get("metadata_any", ()):
            test = lambda record, *_, some=some: any(name in record.metadata for name in some)  # noqa: E731
            yield "metadata", test, f"metadata {' or '.join(some)}", ""
        for having, predicates in spec.get("metadata_if", {}).items():
            for name, predicate in predicates.items():
                test, expected = _on_metadata(name, predicate, having)
                yield "metadata", test, f"{expected}, with {having}", ""
        for word, when in (("formula", ""), ("first_formula", " at the first one")):
            for formula in spec.get(word, ()):
                aspect = "metadata" if uses_metadata(formula) else "value"
                yield aspect, _on_formula(formula, first=bool(when)), partial(_explained, formula, when), ""
        if "within" in spec:
            yield _within_minutes(**spec["within"])
        for condition in spec.get("when", ()):
            test = _on_formula(condition["formula"])
            yield "order", test, "the order of events of the rules", condition["say"]


def _on_metadata(name: str, predicate: dict, having: str = ""):
    """Returns (test, expected) of an entry of the metadata; with `having`, of records that have that entry, too."""
    test = compile_predicate(predicate)

    def holds(record, counts, state, times) -> bool:
        value = record.metadata.get(name, _UNSET)
        return (bool(having) and having not in record.metadata) or (value is not _UNSET and test(value))

    return holds, f"metadata {name}" + (f": {describe(predicate)}" if predicate else "")


def _on_formula(formula: str, first: bool = False):
    """Returns the test of a condition; `first`: for the first record of the key alone."""
    condition = compile_condition(formula)

    def holds(record, counts, state, times) -> bool:
        return (first and record.key in counts) or condition(record.value, record.metadata, state)

    return holds


def _explained(formula: str, suffix: str, record: Record, state: dict) -> str:
    return explain_condition(formula, record.metadata, state) + suffix


def _within_minutes(key: str, minutes: float | dict) -> tuple[str, Callable[..., bool], str, str]:
    """Returns the check that a record comes within `minutes`, a number or `{"remembered": name}`."""
    name = minutes["remembered"] if isinstance(minutes, dict) else None

    def holds(record, counts, state, times) -> bool:
        limit = minutes if name is None else state.get(name, 0)
        return key not in times or record.time_ms - times[key] < limit * 60_000

    def expected(record, state) -> str:
        return f"less than {minutes if name is None else state.get(name, 0)} minutes after the first {key}"

    return "order", holds, expected, "initialization takes too long"


@cache
def compiled(ruleset: str, name: str) -> dict[str, KeyRule]:
    """Returns the compiled rules of one section, by key."""
    return {key: KeyRule(key, spec) for key, spec in load(ruleset, name)["keys"].items()}
