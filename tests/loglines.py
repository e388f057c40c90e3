"""Writes log lines like those of a run, for tests of log readers."""

from __future__ import annotations

import json
from typing import Any


def line(key: str, value: Any = None, time_ms: int = 0, **metadata: Any) -> str:
    """One line with its line end."""
    record = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**record, "metadata": {"file": "", "lineno": 1, **metadata}}) + "\n"
