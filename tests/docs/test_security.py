"""Tests that every promise of docs/security.md names a test that is there."""

import ast
import re

import pytest

from tools.docs import markdown

TEXT = (markdown.ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)


def test_every_promise_names_a_test() -> None:
    tables = re.findall(r"^\| what \| promise \| test \|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    rows = [line for table in tables for line in table.splitlines()[1:]]
    assert len(rows) == len(NAMED) > 20


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_test_is_there(file: str, name: str) -> None:
    tree = ast.parse((markdown.ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
