"""Lists the accelerators that the law knows, and recognizes one by the name that a description gives it.

data/accelerators.json holds an entry per accelerator: peaks in FLOP/s (dense), bytes and bytes/s of its memory, the
board's limit in watts, accelerators of a host, patterns of its names from the special to the general, and the source of
its figures. A figure without a source is null. `from` is "vendor" if the source is the vendor's own page, "third party"
if it is a page that quotes the vendor; `date` is the look-up's.
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
MOST = 1 << 17  # Accelerators of the largest machine.
# Beginnings of accelerators' names by maker and family; runs on one maker's share software, a family's an architecture.
_FAMILIES = {
    "Google": {"TPU": ("TPU",)},
    "AMD": {"MI200": ("MI2",), "MI300": ("MI3",), "MI": ("MI",), "RX": ("RX",)},
    "Intel": {"Gaudi": ("Gaudi",)}, "Huawei": {"Ascend": ("Ascend",)}, "Graphcore": {"IPU": ("Bow", "IPU")},
    "NVIDIA": {
        "Volta": ("V100",), "Ampere": ("A100", "A10", "A30", "A40", "RTX A"), "Ada": ("RTX 40", "L4"),
        "Hopper": ("H100", "H200", "GH"), "Blackwell": ("GB", "B200", "B300", "RTX Pro", "RTX 50"), "RTX": ("RTX",),
    },
}  # fmt: skip
_SERIES = re.compile(r"\b(rtx|rx|tpu|gaudi|ipu|ascend)(v?\d)", re.I)
# Words that drivers write before a board's name: they are the maker's, or say nothing.
_BRANDS = re.compile(
    r"^(?:(?:nvidia|amd|intel(?:\(r\))?|google|huawei|graphcore|geforce|instinct|radeon|quadro|tesla|cloud)\W+)+",
    re.I,
)


@dataclasses.dataclass(frozen=True)
class UserFigures:
    """What the user says of an accelerator; None takes the known one's.

    Attributes:
      peak: TFLOP/s of dense 16-bit products.
      bandwidth: GB/s of its memory.
    """

    peak: float | None = None
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not 0 < value < 1e9:
                raise UserError(f"--{name}={value:g}: must be a positive number below 1e9")

    @property
    def flags(self) -> dict[str, float]:
        """The flags that have a value."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The known accelerators, by name."""
    return json.loads(_DATA.read_text(encoding="utf-8"))


def _kin(name: str) -> tuple[str, str]:
    bare = _SERIES.sub(r"\1 \2", _BRANDS.sub("", name))
    for maker_, families in _FAMILIES.items():
        for family_, starts in families.items():
            if bare.casefold().startswith(tuple(start.casefold() for start in starts)):
                return maker_, family_
    first = name.split()[0] if name.split() else ""
    return next((one for one in _FAMILIES if one.casefold() == first.casefold()), name), name


@functools.cache
def maker(name: str) -> str:
    """The maker of an accelerator; a processor, or an accelerator that nobody knows, is a maker of its own."""
    return _kin(name)[0]


@functools.cache
def family(name: str) -> str:
    """The family of an accelerator, whose members share an architecture; an unknown one is a family of its own."""
    return _kin(name)[1]


def recognize(description: Mapping[str, Any]) -> str:
    """The accelerator's name in `chips` for a description; "" if none fits.

    A vague model name, as "TPU", gives way to the system's name; a host without accelerators to its processor's.
    """
    model, system, host = (
        str(description.get(field) or "")
        for field in ("accelerator_model_name", "system_name", "host_processor_model_name")
    )
    plain = re.sub(r"[^a-z0-9]+", " ", model.lower()).strip()
    if plain not in _VAGUE:
        return name_in(model)
    match = name_in(system)
    if match and not table()[match].get("host"):
        return match
    bare = str(description.get("accelerators_per_node") or "0").strip() in ("0", "N/A")
    return name_in(host) if bare else ""


@functools.cache
def name_in(text: str) -> str:
    """The accelerator whose name stands in a text; "" if none does. The first pattern of the list that fits counts."""
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower())
    # People also write RTX4090 and TPUv6e.
    plain = _SERIES.sub(r"\1 \2", plain)
    for name, entry in table().items():
        if any(re.search(rf"(?<![a-z0-9]){pattern}(?![0-9])", plain) for pattern in entry["names"]):
            return name
    return ""


def chip(name: str, description: Mapping[str, Any], figures: UserFigures, notes: list[str]) -> dict[str, Any]:
    """The entry of a description's accelerator with its `name`, and the user's figures in place of its own.

    Raises UserError if the accelerator is unknown, and `figures` lack one.
    """
    model = str(description.get("accelerator_model_name") or "")
    match = recognize(description)
    if match:
        entry = dict(table()[match]) | {"name": match}
        if re.sub(r"\W", "", match.lower()) not in re.sub(r"\W", "", model.lower()):
            notes.append(
                f"{name}: {model or str(description.get('system_name'))!r} is taken for {match}{_others(match)}"
            )
    elif not model and str(description.get("accelerators_per_node")).strip() in ("0", "N/A"):
        raise UserError(f"{name}: accelerators_per_node is 0; a forecast needs accelerators")
    else:
        entry = _unknown(name, model, figures)
    if figures.peak:
        before = entry["peak"]["bf16"]
        entry["peak"] = {k: v * figures.peak * 1e12 / before for k, v in entry["peak"].items()}
    if figures.bandwidth:
        entry["memory_bandwidth"] = figures.bandwidth * 1e9
    if figures.flags:
        notes.append("given: " + ", ".join(f"--{flag}={value:g}" for flag, value in figures.flags.items()))
    return entry


def _others(full_name: str) -> str:
    """The boards of the same name that a short name may mean as well."""
    family = full_name.split("-")[0]
    others = [name for name in table() if name != full_name and name.split("-")[0] == family]
    return f"; {', '.join(others)} are others" if others else ""


def _unknown(name: str, model: str, figures: UserFigures) -> dict[str, Any]:
    """An accelerator of which only the user's figures are known."""
    missing = [flag for flag in ("peak", "bandwidth") if flag not in figures.flags]
    if missing:
        units = {"peak": "TFLOPS", "bandwidth": "GB/S"}
        flags = " ".join(f"--{flag}={units[flag]}" for flag in missing)
        text = f"{model!r} is unknown" if model else "empty"
        raise UserError(
            f"{name}: accelerator_model_name: {text}; give {flags} of the accelerator, or one of "
            f"{', '.join(known_names())}"
        )
    peak = figures.peak * 1e12
    return {
        "name": model or "accelerator", "peak": {"bf16": peak}, "memory_bandwidth": figures.bandwidth * 1e9,
        "memory": None, "watts": None, "per_node": 8, "largest": MOST, "source": "given",
    }  # fmt: skip


def known_names() -> list[str]:
    """The names of the accelerators in the table, without processors."""
    return [name for name, entry in table().items() if not entry.get("host")]
