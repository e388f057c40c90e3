"""Lists the accelerators that the model knows, and recognises one by the name that a description gives it.

data/accelerators.json holds an entry per accelerator: peaks in FLOP/s (dense), bytes/s of memory and of links, the
board's limit in watts, patterns of its names from the special to the general, and the source of its figures. `from`
is "vendor" if the source is the vendor's own page, "third party" if it is a page that quotes the vendor, "memory" if
nothing was found; `date` is the look-up's. A source says which of its figures are from memory.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError

_DATA = Path(__file__).parent / "data/accelerators.json"
# Names that say nothing of the accelerator: submitters who leave the field to the system's name, and hosts without one.
_VAGUE = ("", "tpu", "none", "n a", "null")
# FLOP/s of one multiprocessor of an H100 (989.4 TFLOP/s on 132): how many units an unknown accelerator has.
_UNIT = 989.4e12 / 132


@dataclasses.dataclass(frozen=True)
class Given:
    """What the user says of an accelerator; None takes the known one's.

    Attributes:
      peak: TFLOP/s of dense 16-bit products.
      bandwidth: GB/s of its memory.
      link: GB/s that it sends to others of its host.
    """

    peak: float | None = None
    bandwidth: float | None = None
    link: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not 0 < value < 1e9:
                raise UserError(f"--{name}={value:g}: must be a positive number below 1e9")

    @property
    def flags(self) -> dict[str, float]:
        """The flags that have a value."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@functools.cache
def chips() -> dict[str, dict[str, Any]]:
    """The known accelerators, by name."""
    return json.loads(_DATA.read_text(encoding="utf-8"))


def recognise(description: Mapping[str, Any]) -> str:
    """The accelerator's name in `chips` for a description; "" if none fits.

    A vague model name, as "TPU", gives way to the system's name; a host without accelerators to its processor's.
    """
    model, system, host = (
        str(description.get(field) or "")
        for field in ("accelerator_model_name", "system_name", "host_processor_model_name")
    )
    plain = re.sub(r"[^a-z0-9]+", " ", model.lower()).strip()
    if plain not in _VAGUE:
        return named(model)
    found = named(system)
    if found and not chips()[found].get("host"):
        return found
    bare = str(description.get("accelerators_per_node") or "0").strip() in ("0", "N/A")
    return named(host) if bare else ""


@functools.cache
def named(text: str) -> str:
    """The accelerator whose name stands in a text; "" if none does. The first pattern of the list that fits counts."""
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower())
    for name, entry in chips().items():
        if any(re.search(rf"(?<![a-z0-9]){pattern}(?![0-9])", plain) for pattern in entry["names"]):
            return name
    return ""


def chip(
    name: str, description: Mapping[str, Any], given: Given, notes: list[str], assume: bool = False
) -> dict[str, Any]:
    """The entry of a description's accelerator, with the user's figures in place of its own.

    Raises:
      UserError: the accelerator is unknown, and `given` lacks a figure.
    """
    model = str(description.get("accelerator_model_name") or "")
    known = recognise(description)
    if not known and not model and assume:
        known = "V100-SXM2"
        notes.append(f"{name}: accelerator_model_name is empty: V100-SXM2")
    if known:
        entry = dict(chips()[known]) | {"name": known}
        if re.sub(r"\W", "", known.lower()) not in re.sub(r"\W", "", model.lower()):
            notes.append(f"{name}: {model or str(description.get('system_name'))!r} is taken for {known}")
    else:
        entry = _unknown(name, model, given)
    if given.peak:
        before = entry["peak"]["bf16"]
        entry["peak"] = {k: v * given.peak * 1e12 / before for k, v in entry["peak"].items()}
    if given.bandwidth:
        entry["memory_bandwidth"] = given.bandwidth * 1e9
    if given.link:
        entry["link_bandwidth"] = given.link * 1e9
    if given.flags:
        entry["given"] = True
        notes.append("given: " + ", ".join(f"--{flag}={value:g}" for flag, value in given.flags.items()))
    return entry


def _unknown(name: str, model: str, given: Given) -> dict[str, Any]:
    """An accelerator of which only the user's figures are known: a GPU without a peer."""
    missing = [flag for flag in ("peak", "bandwidth", "link") if flag not in given.flags]
    if missing:
        units = {"peak": "TFLOPS", "bandwidth": "GB/S", "link": "GB/S"}
        flags = " ".join(f"--{flag}={units[flag]}" for flag in missing)
        what = f"{model!r} is none the model knows" if model else "empty, and the model needs it"
        raise UserError(
            f"{name}: accelerator_model_name: {what}; give {flags} of the accelerator, or a name of "
            "docs/prediction-method.md" + ("" if model else ", or --assume for V100-SXM2")
        )
    peak = given.peak * 1e12
    return dict(chips()["H200-SXM"]) | {
        "name": model or "accelerator",
        "peak": {"fp16": peak, "bf16": peak, "fp32": peak / 16},
        "multiprocessors": max(1, round(peak / _UNIT)),
        "source": "given",
        "watts": None,
    }
