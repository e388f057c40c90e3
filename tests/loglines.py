"""Lines of a log as a run writes them, for tests of what reads logs."""

from __future__ import annotations

import json
from typing import Any


def line(key: str, value: Any = None, time_ms: int = 0, **metadata: Any) -> str:
    """One line, its end included."""
    record = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**record, "metadata": {"file": "", "lineno": 1, **metadata}}) + "\n"
