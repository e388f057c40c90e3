"""Compiles the formulas of the rule files: conditions that relate a value to what the log said earlier.

A formula is a Python expression, such as `value <= opt_base_learning_rate * 2`: `value` and `metadata.NAME` are the
record's, any other name is a value that an earlier record left. It may hold numbers, texts, arithmetic, comparisons,
`and`, `or`, `if`, entries and the functions in `_FUNCTIONS`; anything else is an error in the rule file. No text of a
log becomes code.
"""

import ast
import contextlib
import math
import re
from collections.abc import Callable
from functools import cache

from common.errors import UserError
from compliance.log.predicates import is_whole

# (value, metadata, remembered values) -> number, text or boolean
Formula = Callable[[object, dict, dict], object]

# Raised by a comparison of wrong types, by a name that was not logged, and by a number out of range.
FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)
_FUNCTIONS = {
    "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt, "abs": abs, "max": max, "int": int, "whole": is_whole,
}  # fmt: skip
_NODES = (
    ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.operator, ast.boolop, ast.cmpop, ast.Load,
)  # fmt: skip


def _number(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError("not a number")
    return value


class _FormulaReader(ast.NodeTransformer):
    """Turns names into entries of `metadata` and `state`, and lets arithmetic take numbers alone."""

    def __init__(self) -> None:
        self.inputs: dict[tuple[str, str], None] = {}

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, _NODES):
            return super().visit(node)
        match node:
            case ast.Name("value"):
                return node
            case ast.Name(name):
                return self._entry("state", name)
            case ast.Attribute(ast.Name("metadata"), name):
                return self._entry("metadata", name)
            case ast.Subscript():
                return self.generic_visit(node)
            case ast.Call(ast.Name(name), _, []) if name in _FUNCTIONS:
                node.args = [self.visit(part) for part in node.args]
                return node
        raise ValueError(ast.unparse(node)[:40])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node.left, node.right = (
            ast.Call(ast.Name("_number", ast.Load()), [self.visit(part)], [])
            for part in (node.left, node.right)
        )
        return node

    def _entry(self, table: str, name: str) -> ast.AST:
        self.inputs[table, name] = None
        return ast.Subscript(ast.Name(table, ast.Load()), ast.Constant(name), ast.Load())


@cache
def _compiled(formula: str) -> tuple[Formula, tuple[tuple[str, str], ...]]:
    reads = _FormulaReader()
    try:
        body = reads.visit(ast.parse(formula, mode="eval").body)
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"a rule file has the formula {formula!r}: {error} is not in its vocabulary"
        ) from None
    function = ast.parse("lambda value, metadata, state: 0", mode="eval")
    function.body.body = body
    code = compile(ast.fix_missing_locations(function), "<formula>", "eval")
    return eval(code, {"__builtins__": {}, "_number": _number, **_FUNCTIONS}), tuple(reads.inputs)


def compile_formula(formula: str | float) -> Formula:
    """Returns a function of a record's value, its metadata and the remembered values; a number stands for itself.

    The function raises one of `FAILURES` if the formula cannot be computed.

    Raises UserError if the formula has something outside the vocabulary.
    """
    return _compiled(formula)[0] if isinstance(formula, str) else lambda value, metadata, state: formula


def compile_condition(formula: str) -> Callable[[object, dict, dict], bool]:
    """Like `compile_formula`, for a condition. It never raises: a condition that cannot be computed is false."""
    test = compile_formula(formula)

    def holds(value: object, metadata: dict, state: dict) -> bool:
        try:
            return bool(test(value, metadata, state))
        except FAILURES:
            return False

    return holds


def formula_of_value(formula: str) -> str | None:
    """Returns the formula of the value that a condition asks for; None if it allows more than one value.

    Understands `value == F`, `value * C == F` and `abs(value - F) < tolerance`.
    """
    match ast.parse(formula, mode="eval").body:
        case ast.Compare(ast.Call(_, [ast.BinOp(ast.Name("value"), ast.Sub(), side)]), [ast.Lt()]):
            return ast.unparse(side)
        case ast.Compare(ast.BinOp(ast.Name("value"), ast.Mult(), factor), [ast.Eq()], [product]):
            return ast.unparse(ast.BinOp(product, ast.Div(), factor))
        case ast.Compare(ast.Name("value") | ast.Attribute() | ast.Call(ast.Name("int")), [ast.Eq()], [side]):
            return ast.unparse(side)
    return None


def bounds(formula: str) -> list[tuple[str, str]]:
    """Returns (smaller, larger) of the conditions `smaller <= larger` that a formula joins by `and`."""
    tree = ast.parse(formula, mode="eval").body
    sides = []
    for part in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
        match part:
            case ast.Compare(low, [ast.LtE()], [high]):
                sides.append((ast.unparse(low), ast.unparse(high)))
    return sides


def explain_condition(formula: str, metadata: dict, state: dict) -> str:
    """Returns a condition in words, with the value that it asks for and the values that it reads.

    For example "1,362,286: value = ceil(1382400000 / global_batch_size), where global_batch_size is 1,008".
    """
    text, value_formula = describe_formula(formula), formula_of_value(formula)
    if value_formula is not None:
        with contextlib.suppress(*FAILURES):
            value = compile_formula(value_formula)(None, metadata, state)
            exact = isinstance(value, float) and not compile_condition(formula)(
                float(f"{value:.10g}"), metadata, state
            )
            text = f"{value if exact else plain(value)}: {text}"
    read = []
    for source, name in _compiled(formula)[1]:
        value = (state if source == "state" else metadata).get(name)
        if not isinstance(value, dict):  # a table of many entries says nothing
            read.append(f"{name} is {plain(value)}" if value is not None else f"{name} is not logged before")
    return f"{text}, where {' and '.join(read)}" if read else text


def plain(value: object) -> str:
    """Formats a number for people: 1,362,286; 8e-07. Other values stay as they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)[:80]
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.10g}"
    return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:g}"


def uses_metadata(formula: str) -> bool:
    """Whether a formula reads the record's metadata."""
    return any(source == "metadata" for source, _ in _compiled(formula)[1])


_PHRASES = (
    (r"metadata\.", ""), (r"\bint\(([^()]*)\)", r"\1"), (r"\bwhole\(([^()]*)\)", r"\1 is a whole number"),
    (r"(\w+)\['(\w+)'\]", r"\2 of \1"), ("==", "="), ("!=", "is not"), (r" \* ", " x "),
)  # fmt: skip


def describe_formula(formula: str | float) -> str:
    """Returns the formula as a phrase for people: "value <= lr x 2"."""
    text = str(formula)
    for pattern, phrase in _PHRASES:
        text = re.sub(pattern, phrase, text)
    return text
