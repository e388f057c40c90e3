"""Tests that names say what a value is: a bare participle such as "found" says only what happened to it."""

import ast
import re
from collections.abc import Iterator

from tests.test_imports import LAYERS, ROOT, files

PARTICIPLE = re.compile(
    "asked|begun|chosen|drawn|found|given|gone|got|heard|held|here|kept|known|made|met|named|passed|put|said|seen|sent|"
    "shown|spent|stated|taken|told|wanted|written"
)
# Fields of the JSON that `check` writes.
FIELDS = {("compliance/findings.py", "found"), ("compliance/log/check_log.py", "met")}


def bindings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def test_no_name_is_a_bare_participle():
    names = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files(*LAYERS)
        for name in bindings(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {(file, name) for file, name in names if PARTICIPLE.fullmatch(name.strip("_"))} <= FIELDS
