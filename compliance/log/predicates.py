"""Compiles the closed vocabulary of the rule files: each word becomes a Python function and a phrase.

A predicate is a JSON object; all its entries must hold, e.g. `{"at_least": 0.759, "less": 1}`. Comparisons are
Python's, as in the stock checker (`True` counts as 1, a string is not greater than 0, NaN fails); a comparison that
raises does not hold. There is no eval and no exec: a word outside `_WORDS` is an error in the rule file.
"""

import math
from collections.abc import Callable

from common.errors import UserError

Test = Callable[[object], object]

# Tolerance for "is a multiple of", as in mlperf_logging's compliance checker (is_integer).
_WHOLE = 1e-5


def is_whole(value: float) -> bool:
    """Whether a number is whole, within the stock checker's tolerance."""
    return abs(round(value) - value) < _WHOLE


def _item(index: int, spec: dict) -> Test:
    test = compile_predicate(spec)
    return lambda value: test(value[index])


def _fields(specs: dict[str, dict]) -> Test:
    tests = {name: compile_predicate(spec) for name, spec in specs.items()}
    return lambda value: all(test(value[name]) for name, test in tests.items())


def _any_of(specs: list[dict]) -> Test:
    tests = [compile_predicate(spec) for spec in specs]
    return lambda value: any(test(value) for test in tests)


_WORDS: dict[str, Callable[[object], Test]] = {
    "equal": lambda wanted: lambda value: value == wanted,
    "not_equal": lambda wanted: lambda value: value != wanted,
    "in": lambda wanted: lambda value: value in wanted,
    "greater": lambda bound: lambda value: value > bound,
    "at_least": lambda bound: lambda value: value >= bound,
    "less": lambda bound: lambda value: value < bound,
    "at_most": lambda bound: lambda value: value <= bound,
    "multiple_of": lambda unit: lambda value: is_whole(value / unit),
    "power_of_two_times": lambda unit: lambda value: is_whole(math.log2(value / unit)),
    "length": lambda wanted: lambda value: len(value) == wanted,
    "longer_than": lambda bound: lambda value: len(value) > bound,
    "whole": lambda wanted: lambda value: is_whole(value) == wanted,
    "is_integer": lambda wanted: lambda value: isinstance(value, int) == wanted,
    "is_infinite": lambda wanted: lambda value: (value == math.inf) == wanted,
    "is_boolean": lambda wanted: lambda value: isinstance(value, bool) == wanted,
    "holds": lambda names: lambda value: all(name in value for name in names),
    "first": lambda spec: _item(0, spec),
    "second": lambda spec: _item(1, spec),
    "fields": _fields,
    "any_of": _any_of,
}

_PHRASES: dict[str, str] = {
    "equal": "{}",
    "greater": "> {}",
    "at_least": ">= {}",
    "less": "< {}",
    "at_most": "<= {}",
    "multiple_of": "k x {}, k a whole number",
    "power_of_two_times": "{} x 2^k, k a whole number",
    "length": "a list of {} entries",
    "longer_than": "a list of more than {} entries",
}

_KINDS = {
    "whole": "a whole number",
    "is_integer": "an integer",
    "is_infinite": "infinity",
    "is_boolean": "true or false",
}


def compile_predicate(spec: dict) -> Test:
    """Returns a test of a value: true if every entry of `spec` holds. The test never raises.

    Raises:
      UserError: `spec` has a word outside the vocabulary.
    """
    unknown = [word for word in spec if word not in _WORDS]
    if unknown:
        raise UserError(f"a rule file uses the unknown word {unknown[0]!r}; known: {', '.join(_WORDS)}")
    tests = [_WORDS[word](argument) for word, argument in spec.items()]

    def holds(value: object) -> bool:
        try:
            return all(test(value) for test in tests)
        except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
            return False

    return holds


def describe(spec: dict) -> str:
    """Returns the predicate as a phrase for people: ">= 0.759 and < 1", "one of sgd, lars"."""
    return " and ".join(_phrase(word, argument) for word, argument in spec.items()) or "any value"


def _phrase(word: str, argument: object) -> str:
    if word == "in":
        return "one of " + ", ".join(_plain(value) for value in argument)
    if word == "not_equal":
        return "not empty" if argument == "" else f"not {_plain(argument)}"
    if word in _KINDS:
        return _KINDS[word] if argument else f"not {_KINDS[word]}"
    if word == "any_of":
        return " or ".join(describe(spec) for spec in argument)
    if word == "holds":
        return "an object with " + " and ".join(argument)
    if word in ("first", "second"):
        return f"{word} entry {describe(argument)}"
    if word == "fields":
        return " and ".join(f"{name} {describe(spec)}" for name, spec in argument.items())
    return _PHRASES[word].format(_plain(argument))


def _plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
