"""Makes mechanical faults: changes a file's comparisons, arithmetic, constants, conditions and returned values."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.mutate.faults import ROOT, Fault

_SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may replace a node."""
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        yield ast.BinOp(node.left, _SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SWAPS:
        yield ast.Compare(node.left, [_SWAPS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(_SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _skipped(tree: ast.AST) -> set[int]:
    """Nodes in annotations, imports, texts and messages: changing them does not affect the computation."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [node.returns, *node.decorator_list, *(a.annotation for a in node.args.args)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
            parts = [node]
        for part in parts:
            if part is not None:
                found.update(id(inner) for inner in ast.walk(part))
    return found


def faults(path: str, tests: tuple[str, ...]) -> list[Fault]:
    """One file's mechanical faults.

    Args:
      path: path inside the project.
      tests: pytest arguments that select the tests that should notice.

    Returns:
      Faults whose `old` is the file's entire text.
    """
    text = Path(ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    tree = ast.parse(text)
    skipped = _skipped(tree)
    found: list[Fault] = []
    alike: Counter[str] = Counter()
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for other in _changed(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            source = data[begin:end].decode()
            new = f"({ast.unparse(ast.fix_missing_locations(other))})"
            change = f"{path} {source[:40]!r} -> {new[:40]!r}"
            alike[change] += 1  # Keeps names stable when lines move.
            name = f"{change} {alike[change]}"
            found.append(Fault(name, path, text, (data[:begin] + new.encode() + data[end:]).decode(), tests))
    return found
