"""Formats MLPerf log lines for each ruleset. TensorFlow-free."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from mlperf_logging.mllog.mllog import MLLogger

from common.files import ROOT


class Format:
    """Formats log lines of one ruleset."""

    def __init__(self, ruleset: str, benchmark: str):
        self._old = ruleset == "0.6.0"
        self._lines: list[str] = []
        self._mllog = _mllogger(benchmark, self._lines)

    def line(self, key: str, value: Any, metadata: Mapping[str, Any], kind: str, at: float) -> str:
        """Returns one line; `kind` is the event type ("INTERVAL_START", ...), `at` is in seconds since 1970."""
        if self._old:
            return f":::MLL {at:.6f} {key}: {json.dumps({'value': value, 'metadata': metadata})}"
        write = {"INTERVAL_START": self._mllog.start, "INTERVAL_END": self._mllog.end}.get(
            kind, self._mllog.event
        )
        write(key, value, dict(metadata), time_ms=round(at * 1000), stack_offset=3)
        return self._lines.pop()


def _mllogger(namespace: str, lines: list[str]) -> MLLogger:
    """Returns an MLLogger that appends to `lines`. It swallows exceptions, so nothing that can fail runs inside it."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.Logger(f"mllog.{namespace}", logging.INFO)
    logger.addHandler(Lines())
    return MLLogger(logger, default_namespace=namespace, root_dir=str(ROOT))
