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


def _kind(phrase: str) -> Callable[[bool], str]:
    return lambda flag: phrase if flag else f"not {phrase}"


# Word -> (what makes the test of an argument, the phrase for people: a text, or a function of the argument).
_WORDS: dict[str, tuple[Callable[[object], Test], str | Callable[..., str]]] = {
    "equal": (lambda other: lambda value: value == other, "{}"),
    "not_equal": (lambda other: lambda value: value != other,
                  lambda other: "not empty" if other == "" else f"not {_plain(other)}"),
    "in": (lambda items: lambda value: value in items, lambda items: f"one of {', '.join(map(_plain, items))}"),
    "greater": (lambda bound: lambda value: value > bound, "> {}"),
    "at_least": (lambda bound: lambda value: value >= bound, ">= {}"),
    "less": (lambda bound: lambda value: value < bound, "< {}"),
    "at_most": (lambda bound: lambda value: value <= bound, "<= {}"),
    "multiple_of": (lambda unit: lambda value: is_whole(value / unit), "k x {}, k a whole number"),
    "power_of_two_times": (lambda unit: lambda value: is_whole(math.log2(value / unit)), "{} x 2^k, k a whole number"),
    "length": (lambda count: lambda value: len(value) == count, "a list of {} entries"),
    "longer_than": (lambda bound: lambda value: len(value) > bound, "a list of more than {} entries"),
    "whole": (lambda flag: lambda value: is_whole(value) == flag, _kind("a whole number")),
    "is_integer": (lambda flag: lambda value: isinstance(value, int) == flag, _kind("an integer")),
    "is_infinite": (lambda flag: lambda value: (value == math.inf) == flag, _kind("infinity")),
    "is_boolean": (lambda flag: lambda value: isinstance(value, bool) == flag, _kind("true or false")),
    "holds": (lambda names: lambda value: all(name in value for name in names),
              lambda names: f"an object with {' and '.join(names)}"),
    "first": (lambda spec: _item(0, spec), lambda spec: f"first entry {describe(spec)}"),
    "second": (lambda spec: _item(1, spec), lambda spec: f"second entry {describe(spec)}"),
    "fields": (_fields, lambda specs: " and ".join(f"{name} {describe(spec)}" for name, spec in specs.items())),
    "any_of": (_any_of, lambda specs: " or ".join(map(describe, specs))),
}  # fmt: skip


def compile_predicate(spec: dict) -> Test:
    """Returns a test of a value: true if every entry of `spec` holds. The test never raises.

    Raises UserError if `spec` has a word outside the vocabulary.
    """
    unknown = [word for word in spec if word not in _WORDS]
    if unknown:
        raise UserError(f"a rule file uses the unknown word {unknown[0]!r}; known: {', '.join(_WORDS)}")
    tests = [_WORDS[word][0](argument) for word, argument in spec.items()]

    def holds(value: object) -> bool:
        try:
            return all(test(value) for test in tests)
        except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
            return False

    return holds


def describe(spec: dict) -> str:
    """Returns the predicate as a phrase for people: ">= 0.759 and < 1", "one of sgd, lars"."""
    phrases = ((_WORDS[word][1], argument) for word, argument in spec.items())
    texts = (
        one.format(_plain(argument)) if isinstance(one, str) else one(argument) for one, argument in phrases
    )
    return " and ".join(texts) or "any value"


def _plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
