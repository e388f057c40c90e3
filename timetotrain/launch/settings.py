"""Reads a system's environment variables for NCCL, Horovod, TensorFlow and XLA, with sources. TensorFlow-free.

systems/launch/NAME.json is a list of {"variable", "value", "why", "source"}. Systems that differ only in size share a
file: summit-128 uses summit.json, dgx-2h-4 uses dgx-2h-hosts.json, h100-1 uses h100-8.json. XLA's flags stay at their
defaults.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from common.errors import UserError
from common.files import ROOT

FOLDER = ROOT / "systems" / "launch"


def name_of(hardware: str) -> str:
    """Returns the name of a system's settings (NAME of systems/launch/NAME.json); "" if it has none.

    Several hosts of a machine, such as dgx-2h-4, may have separate settings: dgx-2h-hosts.
    """
    family = re.sub(r"-\d+$", "", hardware)
    names = (hardware, f"{family}-hosts", family, f"{family}-8")
    return next((name for name in names if (FOLDER / f"{name}.json").is_file()), "")


def load(name: str) -> list[dict[str, str]]:
    """Reads systems/launch/<name>.json. Raises UserError: the file does not exist."""
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    if name not in known:
        raise UserError(f"--settings={name}: no systems/launch/{name}.json; known: {', '.join(known)}")
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def environment(name: str, present: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns a system's variables that are not already set; {} for the name ""."""
    entries = load(name) if name else []
    return {each["variable"]: each["value"] for each in entries if each["variable"] not in present}
