"""Reads the machine of a forecast: `8xH100-SXM5`, a described system, or a system's JSON file."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import systems
from common.errors import UserError, near
from systems.forecast import accelerators
from systems.forecast.accelerators import UserFigures

_SHORT, _ENDING = re.compile(r"(\d{1,6}) ?[x*] ?(.+)"), re.compile(r"(.+)-(\d{1,6})")


@dataclasses.dataclass(frozen=True)
class Machine:
    """Attributes:
    name: the system's name.
    accelerators: total number; a TPU's are chips, as in the results tables.
    per_node: accelerators of a host.
    chip: the accelerator's entry in data/accelerators.json, and its `name` there.
    """

    name: str
    accelerators: int
    per_node: int
    chip: Mapping[str, Any]


def machine(
    description: Mapping[str, Any],
    many: int | None,
    notes: list[str],
    figures: UserFigures | None = None,
) -> Machine:
    """The machine of a description, or one with `many` accelerators of its kind; assumptions are appended to `notes`.

    Raises UserError if the accelerator is unknown, a required field is missing, or the number makes no sense.
    """
    name = str(description.get("system_name") or "system")
    chip = accelerators.chip(name, description, figures or UserFigures(), notes)
    field = "host_processors_per_node" if chip.get("host") else "accelerators_per_node"
    per_node = _count(description, field, name)
    size = _count(description, "number_of_nodes", name) * per_node if many is None else many
    if not 1 <= size <= accelerators.MOST:
        raise UserError(f"--accelerators={size}: must be 1 to {accelerators.MOST:,}")
    if size > chip["largest"]:
        notes.append(f"{name}: {size} accelerators, where the largest of its kind has {chip['largest']}")
    return Machine(name, size, min(per_node, size), chip)


@functools.cache
def _instances() -> dict[str, tuple[int, str, str]]:
    """(accelerators, accelerator, source) of clouds' machines, by their plain names: data/instances.json."""
    rows = json.loads((Path(__file__).parent / "data/instances.json").read_text(encoding="utf-8"))
    return {_plain(name): tuple(row) for name, row in rows.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("standard"))


def load(name: str, figures: UserFigures | None = None) -> dict[str, Any]:
    """The description of a system by name, of COUNTxACCELERATOR or a cloud's machine, or from a JSON file's path.

    With a peak and a bandwidth in `figures`, the accelerator may be an unknown one.

    Raises UserError if there is no such system or accelerator, or the file is not a readable JSON object.
    """
    path = Path(name)
    if path.suffix == ".json":
        description = systems.read(path)
        if not isinstance(description, dict):
            raise UserError(f"{path}: not a JSON object; `timetotrain systems detect` writes a valid file")
        return description
    if name in systems.names():
        return systems.load(name)
    count, end = _SHORT.fullmatch(name), _ENDING.fullmatch(name)
    if instance := _instances().get(_plain(name)) or (count and _instances().get(_plain(count[2]))):
        nodes = 1 if _plain(name) in _instances() else int(count[1])
        return _described(name, instance[1], nodes * instance[0], instance[0])
    word = count[2] if count else end[1] if end else name
    # A TPU's name counts cores, not chips, so it must be one that is described.
    exact = count or (end and not name.startswith("tpu")) or word in accelerators.known_names()
    model = accelerators.name_in(word) if exact else ""
    if not model and not (count and figures and {*figures.flags} == {"peak", "bandwidth"}):
        names = [*systems.names(), *accelerators.known_names()]
        raise UserError(
            f"--system={name}: neither a system nor COUNTxACCELERATOR, as 8xH100-SXM5{near(name, names)}; another "
            f"accelerator takes --peak=TFLOPS and --bandwidth=GB/S, or a JSON file (`timetotrain systems detect`); "
            f"accelerators: {', '.join(accelerators.known_names())}"
        )
    total = int(count[1]) if count else int(end[2]) if end else 1
    return _described(name, word, total, accelerators.table()[model]["per_node"] if model else 8)


def _described(name: str, model: str, total: int, per_node: int) -> dict[str, str]:
    whole = total % per_node == 0
    return {
        "system_name": name,
        "accelerator_model_name": model,
        "number_of_nodes": str(total // per_node if whole else 1),
        "accelerators_per_node": str(per_node if whole else total),
    }


def _count(description: Mapping, field: str, name: str) -> int:
    text = str(description.get(field) or "").removesuffix(".0")
    if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0:
        return int(text)
    state = f"{text!r} is not a positive whole number" if text else "missing"
    raise UserError(f"{name}: {field}: {state}; the forecast needs it")
