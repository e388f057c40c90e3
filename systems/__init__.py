"""Loads system descriptions: the 33 fields that MLPerf requires for every machine, for the machines listed here.

NAME.json beside this module describes a machine. A machine of several sizes has one file, with the fields that differ
under "sizes": {name: fields}. `load("local")` describes the current machine. TensorFlow-free.
"""

from __future__ import annotations

import functools
import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from common.errors import UserError
from systems.hardware import detect, missing

__all__ = ["LOCAL", "detect", "load", "missing", "names", "read", "size"]

LOCAL = "local"  # the current machine: detected on request, never read from a file
_HERE = Path(__file__).parent


def names() -> list[str]:
    """Names of all described systems, by family and size, then `local`."""
    return [*sorted(_described(), key=_natural), LOCAL]


@functools.cache
def _described() -> dict[str, dict[str, str]]:
    """Returns {name: description} of the files beside this module."""
    descriptions: dict[str, dict[str, str]] = {}
    for path in _HERE.glob("*.json"):
        fields = read(path)
        sizes = fields.pop("sizes", {path.stem: {}})
        descriptions |= {name: fields | changes for name, changes in sizes.items()}
    return descriptions


def load(name: str) -> dict[str, str]:
    """Reads one system's description: exactly the 33 MLPerf fields, all strings, "" if unknown.

    Raises UserError if no system has that name.
    """
    if name == LOCAL:
        return detect()[0]
    if name not in _described():
        near = get_close_matches(name, names(), n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`timetotrain systems list` shows all names."
        raise UserError(f"No system is named {name!r}; {hint}")
    return dict(_described()[name])


def read(path: Path) -> Any:
    """Reads a description file, which may hold any JSON.

    Raises UserError if it is not a plain file (a pipe would block), cannot be read or is not JSON.
    """
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: cannot read (no plain file); name a system description file")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); name a system description file") from None
    except (ValueError, RecursionError) as error:  # bad JSON or UTF-8, or too deeply nested
        raise UserError(
            f"{path}: not JSON ({error}); `timetotrain systems detect` writes a valid file"
        ) from None


def size(description: dict[str, str]) -> tuple[int | None, int | None]:
    """A description's (nodes, total accelerators); None if a count is missing or has ten digits or more."""
    nodes, per_node = (
        _count(description.get(field)) for field in ("number_of_nodes", "accelerators_per_node")
    )
    return nodes, None if nodes is None or per_node is None else nodes * per_node


def _count(text: object) -> int | None:
    fine = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10
    return int(text) if fine else None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts tpu-v3-32 before tpu-v3-128."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
