"""Reads the values that a submitter's configuration file assigns: shell exports, YAML, JSON, TOML and gin.

Nothing is executed and nothing is fetched: a shell file is searched for assignments, and a value that only a shell
could compute is left out.
"""

import ast
import json
import operator
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from compliance.submission.tree_files import read_small

MAX_BYTES = 1 << 20  # the largest published one has 30 kB
_MAX_VALUES = 20_000
_MAX_DEPTH = 40
_MAX_LENGTH = 10_000  # of a value, its references replaced, and of a shell's line
_MAX_TOTAL = 4 * MAX_BYTES  # of all values of a file, their references replaced
_MAX_ALIASES = 1000  # of a YAML file
SUFFIXES = {
    ".sh": "shell", ".env": "shell", ".sub": "shell", ".bash": "shell", ".yaml": "YAML", ".yml": "YAML",
    ".json": "JSON", ".toml": "TOML", ".gin": "gin",
}  # fmt: skip

# {name in lower case, without what precedes its last dot: the values that the file assigns to it, as text; "" for one
# that only a shell could compute}
Values = dict[str, list[str]]


def kind(path: Path) -> str:
    """Returns the kind of a configuration file by its name: "shell", "YAML", "JSON", "TOML", "gin", or ""."""
    return SUFFIXES.get(path.suffix.lower(), "")


def read(path: Path, known: Mapping[str, list[str]] | None = None) -> Values:
    """Reads one file.

    Args:
      path: the file; its suffix decides how it is read.
      known: values of names that `${NAME}` and `${NAME:default}` may refer to, as `read` returns them.

    Raises:
      ValueError: the file has no known suffix, is too large, is not of its kind, or is a link.
      OSError: it cannot be read.
    """
    text = read_small(path, MAX_BYTES).decode("utf-8-sig", "replace")
    kinds: dict[str, Callable[[str], Iterator[tuple[str, object]]]] = {
        "shell": _shell, "YAML": _yaml, "JSON": lambda text: _flat(json.loads(text)),
        "TOML": lambda text: _flat(tomllib.loads(text)), "gin": _gin,
    }  # fmt: skip
    if kind(path) not in kinds:
        raise ValueError(f"not one of {', '.join(SUFFIXES)}")
    try:
        return _assigned(kinds[kind(path)](text), known or {})
    except ValueError:
        raise
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None
    except Exception as error:  # whatever a parser raises, the file is not of its kind
        raise ValueError(f"no {kind(path)}: {type(error).__name__} {str(error)[:80]}".strip()) from None


def _assigned(pairs: Iterator[tuple[str, object]], known: Mapping[str, list[str]]) -> Values:
    assigned: Values = {name: list(values) for name, values in known.items()}
    own: Values = {}
    total = 0
    for name, value in pairs:
        plain = expanded(str(value), assigned)
        total += len(plain)
        if total > _MAX_TOTAL:
            raise ValueError(f"values of more than {_MAX_TOTAL} characters")
        # The last assignment of a name is what a later line refers to.
        assigned.setdefault(name, []).append(plain)
        own.setdefault(name, []).append(plain)
    return own


def sources(path: Path) -> list[str]:
    """Returns the names of the files that a shell file sources, and of the configurations that its values name."""
    try:
        text = read_small(path, MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    endings = "|".join(re.escape(suffix) for suffix in SUFFIXES)
    lines = "\n".join(line for line in _lines(text) if not line.lstrip().startswith("#"))
    return list(dict.fromkeys(re.findall(rf"(?<![\w.+-])([\w.+-]+(?:{endings}))(?![\w.])", lines)))


def _lines(text: str) -> Iterator[str]:
    """Yields the lines that a person may have written."""
    return (line for line in text.splitlines() if len(line) <= _MAX_LENGTH)


# The bounds on $((...)) and ${NAME:=...} keep the time linear where many of them begin and none ends.
_ASSIGNED = re.compile(
    r"""(?:^|[\s;&|(])(?P<name>[A-Za-z_]\w*+)=(?P<value>"(?:[^"\\]|\\.)*+"|'[^']*+'"""
    r"""|\$\(\([^)]{0,500}+\)\)|[^\s;&|()]*+)"""
    r"""|\$\{(?P<default>[A-Za-z_]\w*+):?=(?P<text>[^}]{0,500}+)\}"""
)


def _shell(text: str) -> Iterator[tuple[str, object]]:
    for line in _lines(text):
        plain = re.sub(r"(^|\s)#.*", "", line)
        for match in _ASSIGNED.finditer(plain):
            value = match["value"] if match["name"] else match["text"]
            yield _last(match["name"] or match["default"]), value.strip("\"'")


# yaml.org/type: the tags of the basic schema, and what YAML reads as no value.
_YAML_TAGS = frozenset(("str", "seq", "map", "int", "float", "bool", "null", "timestamp"))
_YAML_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


def _yaml(text: str) -> Iterator[tuple[str, object]]:
    import yaml  # needed only where there is such a file

    class Plain(yaml.BaseLoader):
        """Makes texts, lists and tables alone: it converts no value and merges no table."""

        aliases = 0

        def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                self.aliases += 1
                if self.aliases > _MAX_ALIASES:
                    raise ValueError(f"more than {_MAX_ALIASES} aliases")
            node = super().compose_node(parent, index)
            if node is not None and node.tag.removeprefix("tag:yaml.org,2002:") not in _YAML_TAGS:
                raise ValueError(f"no YAML: the tag {node.tag[:80]}")
            return node

        def construct_scalar(self, node: yaml.ScalarNode) -> str | None:
            plain = node.style is None
            return None if plain and node.value in _YAML_NULLS else super().construct_scalar(node)

    try:
        yield from _flat(yaml.load(text, Plain))
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {str(error).splitlines()[0]}") from None


def _gin(text: str) -> Iterator[tuple[str, object]]:
    for line in text.splitlines():
        match = re.match(r"\s*([\w./@-]+)\s*=\s*([^#]+)", line)
        if match:
            value = match[2].strip().strip("\"'")
            yield _last(match[1]), f"${{{value[1:]}}}" if value.startswith("%") else value


def _flat(content: object, depth: int = 0, left: list[int] | None = None) -> Iterator[tuple[str, object]]:
    """Yields (name, plain value) of nested tables; at most `_MAX_VALUES`, however often aliases repeat a part."""
    left = [_MAX_VALUES] if left is None else left
    content = dict(enumerate(content)) if isinstance(content, list) else content
    for name, value in content.items() if isinstance(content, dict) else ():
        left[0] -= 1
        if left[0] < 0 or depth > _MAX_DEPTH:
            return
        if isinstance(value, (dict, list)):
            yield from _flat(value, depth + 1, left)
        elif isinstance(name, str) and value is not None:
            yield _last(name), value


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


# ------------------------------------------------------------------------------------------- values of a shell


_REFERENCE = re.compile(
    r"\$\{(?P<name>[A-Za-z_]\w*+)(?::?[-=]?(?P<default>[^{}]*+))?\}|\$(?P<plain>[A-Za-z_]\w*+)"
)


def expanded(value: str, known: Mapping[str, list[str]]) -> str:
    """Returns a value with its `${NAME}`, `${NAME:-default}` and `$((...))` replaced; "" if only a shell could tell.

    A value of more than `_MAX_LENGTH` characters is "", too.
    """
    for _ in range(4):  # a default may hold another reference
        value, count = _replaced(value, known)
        if not count:
            break
    if len(value) > _MAX_LENGTH:
        return ""
    if value.startswith("$((") and value.endswith("))"):
        value = _computed(value[3:-2], known)
    return "" if "$" in value or "`" in value else value


def _replaced(value: str, known: Mapping[str, list[str]]) -> tuple[str, int]:
    """Returns a value with its references replaced once, and their number; no reference makes it too long."""
    pieces, place, length = [], 0, len(value)
    for match in _REFERENCE.finditer(value) if length <= _MAX_LENGTH else ():
        text = _referred(match, known)
        length += len(text)
        if length > 2 * _MAX_LENGTH:
            return "`unknown`", 0
        pieces += [value[place : match.start()], text]
        place = match.end()
    return "".join(pieces) + value[place:], len(pieces) // 2


def _referred(match: re.Match, known: Mapping[str, list[str]]) -> str:
    values = known.get((match["name"] or match["plain"]).lower())
    if values:
        return values[-1] or "`unknown`"
    return match["default"].strip("\"'") if match["default"] is not None else "`unknown`"


_OPERATIONS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_BIGGEST = 1 << 62  # a shell's integers


def _computed(text: str, known: Mapping[str, list[str]]) -> str:
    """Returns the whole number that a shell's arithmetic gives; "`unknown`" for anything that it could not compute."""
    try:
        return str(_number(ast.parse(text.strip()[:500], mode="eval").body, known))
    except (SyntaxError, ValueError, ArithmeticError, KeyError, IndexError, RecursionError, MemoryError):
        return "`unknown`"


def _number(node: ast.AST, known: Mapping[str, list[str]]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(known[node.id.lower()][-1])
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        result = _OPERATIONS[type(node.op)](_number(node.left, known), _number(node.right, known))
        if abs(result) < _BIGGEST:
            return result
    raise ValueError("not arithmetic")
