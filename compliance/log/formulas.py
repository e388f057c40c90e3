"""Compiles the formulas of the rule files: conditions that relate a value to what the log said earlier.

A formula is nested lists in prefix form, e.g. `["at_most", ["value"], ["times", ["remembered", "lr"], 2]]`;
strings and numbers stand for themselves. Text is never evaluated as code: a word outside `_WORDS` is an error in the
rule file.
"""

import contextlib
import math
import operator
from collections.abc import Callable

from common.errors import UserError
from compliance.log.predicates import is_whole

# (value, metadata, remembered values) -> number, text or boolean
Formula = Callable[[object, dict, dict], object]

# Raised by a comparison of wrong types, by a name that was not logged, and by a number out of range.
FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


def _number(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError("not a number")
    return value


def _numeric(function: Callable[..., object]) -> Callable[..., object]:
    return lambda *values: function(*map(_number, values))


_WORDS: dict[str, tuple[Callable[..., object], str]] = {
    "equal": (operator.eq, "{} = {}"), "not_equal": (operator.ne, "{} is not {}"),
    "less": (operator.lt, "{} < {}"), "at_most": (operator.le, "{} <= {}"),
    "greater": (operator.gt, "{} > {}"), "at_least": (operator.ge, "{} >= {}"),
    "plus": (_numeric(operator.add), "({} + {})"), "minus": (_numeric(operator.sub), "({} - {})"),
    "times": (_numeric(operator.mul), "{} x {}"), "over": (_numeric(operator.truediv), "{} / {}"),
    "remainder": (_numeric(operator.mod), "the remainder of {} / {}"),
    "power": (_numeric(math.pow), "{} ^ {}"), "larger": (_numeric(max), "the larger of {} and {}"),
    "ceil": (_numeric(math.ceil), "ceil({})"), "floor": (_numeric(math.floor), "floor({})"),
    "absolute": (_numeric(abs), "|{}|"), "truncated": (int, "{}"), "entry": (operator.getitem, "{1} of {0}"),
    "whole": (is_whole, "{} is a whole number"),
}  # fmt: skip
_JOINS = {"and": " and ", "or": " or "}


def compile_formula(formula: object) -> Formula:
    """Returns a function of a record's value, its metadata and the remembered values.

    The function raises one of `FAILURES` if the formula cannot be computed.

    Raises UserError: the formula has a word outside the vocabulary.
    """
    if not isinstance(formula, list):
        return lambda value, metadata, state: formula
    word, *rest = formula
    if word == "value":
        return lambda value, metadata, state: value
    if word in ("metadata", "remembered"):
        (name,) = rest
        return lambda value, metadata, state: (metadata if word == "metadata" else state)[name]
    functions = [compile_formula(part) for part in rest]
    if word == "and":
        return lambda *facts: all(part(*facts) for part in functions)
    if word == "or":
        return lambda *facts: any(part(*facts) for part in functions)
    if word == "if":
        test, then, otherwise = functions
        return lambda *facts: then(*facts) if test(*facts) else otherwise(*facts)
    if word not in _WORDS:
        raise UserError(f"a rule file uses the unknown word {word!r}; known: {', '.join(_WORDS)}")
    function = _WORDS[word][0]
    return lambda *facts: function(*(part(*facts) for part in functions))


def compile_condition(formula: object) -> Callable[[object, dict, dict], bool]:
    """Like `compile_formula`, for a condition. It never raises: a condition that cannot be computed is false."""
    test = compile_formula(formula)

    def holds(value: object, metadata: dict, state: dict) -> bool:
        try:
            return bool(test(value, metadata, state))
        except FAILURES:
            return False

    return holds


def inputs(formula: object) -> list[list[str]]:
    """Returns the values that a formula reads: ["remembered", name] and ["metadata", name], each once, in order."""
    if not isinstance(formula, list):
        return []
    if formula[0] in ("remembered", "metadata"):
        return [formula]
    found = [one for part in formula[1:] for one in inputs(part)]
    return [one for index, one in enumerate(found) if one not in found[:index]]


def wanted(formula: object) -> object:
    """Returns the formula of the value that a condition asks for; None if it allows more than one value.

    Understands `value = F`, `value x C = F` and `|value - F| < tolerance`.
    """
    if not isinstance(formula, list) or len(formula) != 3:
        return None
    word, left, right = formula
    if word == "less" and left[:1] == ["absolute"] and left[1][:2] == ["minus", ["value"]]:
        return left[1][2]
    if word != "equal":
        return None
    place = left[1] if left[0] == "truncated" else left
    if place[0] in ("value", "metadata"):
        return right
    if left[:2] == ["times", ["value"]]:
        return ["over", right, left[2]]
    return None


def explained(formula: object, metadata: dict, state: dict) -> str:
    """Returns a condition in words, with the value that it asks for and the values that it reads.

    For example "1,362,286: value = ceil(1382400000 / global_batch_size), where global_batch_size is 1,008".
    """
    text, asked = describe_formula(formula), wanted(formula)
    if asked is not None:
        with contextlib.suppress(*FAILURES):
            text = f"{plain(compile_formula(asked)(None, metadata, state))}: {text}"
    read = []
    for source, name in inputs(formula):
        values = state if source == "remembered" else metadata
        if not isinstance(values.get(name), dict):  # a table of many entries says nothing
            value = values.get(name)
            read.append(f"{name} is {plain(value)}" if value is not None else f"{name} is not logged before")
    return f"{text}, where {' and '.join(read)}" if read else text


def plain(value: object) -> str:
    """Formats a number for people: 1,362,286; 8e-07. Other values stay as they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)[:80]
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.10g}"
    return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:g}"


def uses_metadata(formula: object) -> bool:
    """Whether a formula reads the record's metadata."""
    return isinstance(formula, list) and (formula[0] == "metadata" or any(map(uses_metadata, formula[1:])))


def describe_formula(formula: object) -> str:
    """Returns the formula as a phrase for people: "value <= lr x 2"."""
    if not isinstance(formula, list):
        return str(formula)
    word, *rest = formula
    if word in ("value", "metadata", "remembered"):
        return formula[-1]
    phrases = [describe_formula(part) for part in rest]
    if word in _JOINS:
        return _JOINS[word].join(phrases)
    if word == "if":
        return f"{phrases[1]} if {phrases[0]}, else {phrases[2]}"
    return _WORDS[word][1].format(*phrases)
