"""Loads and compiles the rule files of `rules/<ruleset>/`.

A file is data in a closed vocabulary (docs/compliance.md lists it): for each key how often it must occur,
what its value and metadata must be (predicates.py), which keys must come before or after it, and, for round
v0.6, a small state that orders epochs, evaluations and blocks. `common.json` holds for every log;
`<division>/<benchmark>.json` (`any/` where the round knows no difference) is added to it once the log has
named its benchmark and division.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from functools import cache
from pathlib import Path

from common.errors import UserError
from compliance.log.predicates import Test, compile_predicate, describe

OWN_RULESETS = ("0.6.0", "0.7.0")
# The rulesets of mlperf_logging 4.1.68, which checks them in its own process (stock.py).
STOCK_RULESETS = (
    *("1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0"),
    *("4.0.0", "4.1.0", "5.0.0", "5.1.0", "6.0.0", "6.1.0"),
)
RULESETS = OWN_RULESETS + STOCK_RULESETS
DIVISIONS = ("closed", "open")

_DIRECTORY = Path(__file__).parents[1] / "rules"
_COMPARE: dict[str, Callable[[object, object], bool]] = {
    "equal": operator.eq,
    "greater": operator.gt,
    "at_most": operator.le,
}
_UNSET = object()


@cache
def load(ruleset: str, name: str) -> dict:
    """The content of one rule file, e.g. `load("0.7.0", "closed/resnet")`.

    Raises:
      UserError: there is no such file.
    """
    path = _DIRECTORY / ruleset / f"{name}.json"
    if name not in names(ruleset):
        raise UserError(
            f"no rules {name!r} in ruleset {ruleset}; there are {', '.join(sorted(names(ruleset)))}"
        )
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def names(ruleset: str) -> frozenset[str]:
    """The names of a ruleset's files, e.g. {"common", "closed/resnet", ...}."""
    root = _DIRECTORY / ruleset
    return frozenset(path.relative_to(root).with_suffix("").as_posix() for path in root.glob("**/*.json"))


def benchmarks(ruleset: str) -> list[str]:
    """The benchmarks that a ruleset allows in `submission_benchmark`."""
    return list(load(ruleset, "common")["keys"]["submission_benchmark"]["value"]["in"])


def has_divisions(ruleset: str) -> bool:
    """Whether the benchmark's rules depend on the division (from v0.7 on)."""
    return not any(name.startswith("any/") for name in names(ruleset))


def benchmark_file(ruleset: str, division: str | None, benchmark: str) -> str:
    """The name of a benchmark's rule file; `load` raises when there is none."""
    return f"{division if has_divisions(ruleset) else 'any'}/{benchmark}"


def metric(ruleset: str, benchmark: str) -> dict:
    """A benchmark's rule file, for fields equal in all divisions (runs, samples, target); {} if it is unknown."""
    name = benchmark_file(ruleset, "closed", benchmark)
    return load(ruleset, name) if name in names(ruleset) else {}


class KeyRule:
    """The compiled rules of one key.

    `checks` holds (aspect, test, expected, say): `test(record, seen, state, first_times)` is true when the
    record may stand, `say` is the sentence for a record that may not, '' for the usual one. `seen` counts
    the keys before this record, `state` is the small state of v0.6, `first_times` maps keys to the earliest
    time at which they were logged.
    """

    def __init__(self, key: str, spec: dict):
        self.key = key
        self.spec = spec
        self.occurs = spec.get("occurs", "optional")
        self.once = self.occurs == "exactly_one"
        self.sets = tuple(spec.get("sets", {}).items())
        self.target = spec.get("target")
        self.selects = spec.get("selects")
        self.allowed = spec.get("value", {}).get("in")
        self.checks = tuple(self._compile(spec))

    @staticmethod
    def _compile(spec: dict):
        if "value" in spec:
            test = compile_predicate(spec["value"])
            yield "value", _on_value(test), describe(spec["value"]), ""
        for name, predicate in spec.get("metadata", {}).items():
            expected = f"metadata {name}" + (f": {describe(predicate)}" if predicate else "")
            yield "metadata", _on_metadata(name, compile_predicate(predicate)), expected, ""
        for other in spec.get("after", ()):
            yield "order", _after(other), f"after {other}", ""
        for other in spec.get("not_after", ()):
            yield "order", _not_after(other), f"before {other}", ""
        if "within" in spec:
            other, minutes = spec["within"]["key"], spec["within"]["minutes"]
            expected = f"less than {minutes} minutes after the first {other}"
            yield (
                "order",
                _within(other, minutes * 60_000),
                expected,
                f"initialisation takes {minutes} minutes or more",
            )
        for condition in spec.get("when", ()):
            yield "order", compile_condition(condition), "the order of events of the rules", condition["say"]


def _on_value(test: Test):
    return lambda record, seen, state, times: test(record.value)


def _on_metadata(name: str, test: Test):
    def holds(record, seen, state, times) -> bool:
        value = record.metadata.get(name, _UNSET)
        return value is not _UNSET and test(value)

    return holds


def _after(other: str):
    return lambda record, seen, state, times: other in seen


def _not_after(other: str):
    return lambda record, seen, state, times: other not in seen


def _within(other: str, limit_ms: float):
    def holds(record, seen, state, times) -> bool:
        return other not in times or record.time_ms - times[other] < limit_ms

    return holds


def compile_condition(condition: dict) -> Callable[..., bool]:
    """A test of the v0.6 state: `{"state", "is"}`, `{"metadata", <comparison>: {"state", "plus"}}` or
    `{"any": [[...]]}`.

    Raises:
      UserError: the condition is none of these.
    """
    if "any" in condition:
        groups = [[compile_condition(part) for part in group] for group in condition["any"]]
        return lambda *facts: any(all(test(*facts) for test in group) for group in groups)
    if "state" in condition:
        name, wanted = condition["state"], condition["is"]
        return lambda record, seen, state, times: state[name] is wanted
    compare = [word for word in condition if word in _COMPARE]
    if "metadata" not in condition or len(compare) != 1:
        raise UserError(f"a rule file has a condition outside the vocabulary: {json.dumps(condition)}")
    field, against = condition["metadata"], condition[compare[0]]
    test, name, plus = _COMPARE[compare[0]], against["state"], against.get("plus", 0)

    def holds(record, seen, state, times) -> bool:
        try:
            return bool(test(record.metadata[field], state[name] + plus if plus else state[name]))
        except (TypeError, LookupError):
            return False

    return holds


@cache
def compiled(ruleset: str, name: str) -> dict[str, KeyRule]:
    """The compiled rules of one file, by key."""
    return {key: KeyRule(key, spec) for key, spec in load(ruleset, name)["keys"].items()}
