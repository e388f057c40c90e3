"""Reads the host's operations from TensorFlow's newest trace (`*.xplane.pb`), to measure what runs beside what.

A trace has a plane for the host with a line for each thread; each operation is an event `NAME:TYPE`. TensorBoard shows
the rest of a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_START, _DONE = (f"ExecutorState::ProcessAsync::{word}" for word in ("Start", "Done"))
_OPERATION = re.compile(r"[\w./>-]+:(?P<kind>_?[A-Z]\w*)(#.*)?$")
Spans = Iterable[tuple[int, int]]


class Operation(NamedTuple):
    """When an operation ran, in nanoseconds, and its type as TensorFlow writes it."""

    begin: int
    end: int
    kind: str


def operations(folder: Path) -> list[Operation]:
    """Returns the host's operations in the newest trace under `folder`, by start time."""
    # TensorFlow has no public name for the format, and the reader tensorboard-plugin-profile is not a dependency.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    space = xplane_pb2.XSpace.FromString(newest.read_bytes())
    return sorted(o for p in space.planes if p.name.startswith("/host:CPU") for o in _operations(p))


def _operations(plane: Any) -> Iterator[Operation]:
    """Yields a plane's operations; one that waits for others can start and end on different threads."""
    started: dict[int, tuple[int, str]] = {}
    ended: dict[int, int] = {}
    for line in plane.lines:
        for event in line.events:
            begin = (line.timestamp_ns * 1000 + event.offset_ps) // 1000
            name = plane.event_metadata[event.metadata_id].name
            if name == _START:
                about = _stats(plane, event)
                started[about["_p"]] = begin, about["kernel_type"]
            elif name == _DONE:
                ended[_stats(plane, event)["_c"]] = begin
            elif match := _OPERATION.match(name):
                yield Operation(begin, begin + event.duration_ps // 1000, match["kind"])
    for number in started.keys() & ended.keys():
        begin, kind = started[number]
        yield Operation(begin, ended[number], kind)


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    """Returns an event's {name: number or text}."""
    found = {}
    for stat in event.stats:
        text = plane.stat_metadata[stat.ref_value].name if stat.ref_value else stat.str_value
        found[plane.stat_metadata[stat.metadata_id].name] = text or stat.uint64_value or stat.int64_value
    return found


def covered(spans: Spans, marks: Spans) -> int:
    """Returns the length of `marks`, which do not overlap, that at least one of `spans` covers."""
    parts = [(max(a, b), min(c, d)) for a, c in spans for b, d in marks if max(a, b) < min(c, d)]
    found = np.array(sorted(parts), np.int64).reshape(-1, 2)
    if not len(found):
        return 0
    reached = np.maximum.accumulate(found[:, 1])
    before = np.concatenate([found[:1, 0], reached[:-1]])
    return int(np.maximum(found[:, 1] - np.maximum(found[:, 0], before), 0).sum())
