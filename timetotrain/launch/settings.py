"""Reads a system's environment variables for NCCL, Horovod, TensorFlow and XLA, with sources. TensorFlow-free.

settings.json has a list of {"variable", "value", "why", "source"} for each system. Systems that differ only in size
share an entry: summit-128 uses "summit", dgx-2h-4 uses "dgx-2h-hosts", h100-1 uses "h100-8". XLA's flags stay at their
defaults.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from common.errors import UserError

FILE = Path(__file__).with_name("settings.json")


def name_of(hardware: str) -> str:
    """Returns the name of a system's settings in timetotrain/launch/settings.json; "" if it has none.

    Several hosts of a machine, such as dgx-2h-4, may have separate settings: dgx-2h-hosts.
    """
    family = re.sub(r"-\d+$", "", hardware)
    names, by_name = (hardware, f"{family}-hosts", family, f"{family}-8"), read()
    return next((name for name in names if name in by_name), "")


def read() -> dict[str, list[dict[str, str]]]:
    """Returns the settings of every system by name, in alphabetical order."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def load(name: str) -> list[dict[str, str]]:
    """Returns the settings `name`. Raises UserError if timetotrain/launch/settings.json has none of that name."""
    by_name = read()
    if name not in by_name:
        raise UserError(f"--settings={name}: timetotrain/launch/settings.json has {', '.join(by_name)}")
    return by_name[name]


def environment(name: str, present: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns a system's variables that are not already set; {} for the name ""."""
    entries = load(name) if name else []
    return {each["variable"]: each["value"] for each in entries if each["variable"] not in present}
