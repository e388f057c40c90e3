"""Reads the operations of TensorFlow's newest trace (`*.xplane.pb`): when each ran on the host.

Each operation is an event `NAME:TYPE`; those of a compiled program have a statistic `hlo_op`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HOST = "/host:CPU"
_START, _DONE = (f"ExecutorState::ProcessAsync::{word}" for word in ("Start", "Done"))
_FETCH = "IteratorGetNextOp::DoCompute"  # The kernel waits for a batch here, on its own thread.
_HLO_HOLDER = re.compile(r"(call|while|conditional)([._]|$)")
_OPERATION = re.compile(r"[\w./>-]+:(?P<kind>_?[A-Z]\w*)(#.*)?$")


class Operation(NamedTuple):
    """When an operation ran, in nanoseconds, and its type as TensorFlow writes it."""

    begin: int
    end: int
    kind: str


def operations(folder: Path) -> list[Operation]:
    """Returns the host's operations in the newest trace under `folder`, by start time."""
    return sorted(o for p in _space(folder).planes if p.name.startswith(_HOST) for o in _operations(p))


def _space(folder: Path) -> Any:
    # TensorFlow has no public name for the format, and the reader tensorboard-plugin-profile is not a dependency.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    return xplane_pb2.XSpace.FromString(newest.read_bytes())


def _events(plane: Any, line_name: str = "") -> Iterator[tuple[int, int, str, Any]]:
    """Yields (begin, end in nanoseconds, name, event) of the lines whose names begin with `line_name`."""
    for line in plane.lines:
        for event in line.events if line.name.startswith(line_name) else ():
            begin = (line.timestamp_ns * 1000 + event.offset_ps) // 1000
            yield (
                begin,
                begin + event.duration_ps // 1000,
                plane.event_metadata[event.metadata_id].name,
                event,
            )


def _operations(plane: Any) -> Iterator[Operation]:
    """Yields a plane's operations; one that waits for others can start and end on different threads."""
    started: dict[int, tuple[int, str]] = {}
    ended: dict[int, int] = {}
    for begin, end, name, event in _events(plane):
        if name == _START:
            about = _stats(plane, event)
            started[about["_p"]] = begin, about["kernel_type"]
        elif name == _DONE:
            ended[_stats(plane, event)["_c"]] = begin
        elif name == _FETCH:
            yield Operation(begin, end, "IteratorGetNext")
        elif match := _OPERATION.match(name):
            yield Operation(begin, end, match["kind"])
        elif event.stats and "hlo_op" in _stats(plane, event) and not _HLO_HOLDER.match(name):
            yield Operation(begin, end, name)
    for number in started.keys() & ended.keys():
        begin, kind = started[number]
        yield Operation(begin, ended[number], kind)


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    """Returns an event's {name: number or text}."""
    stats = {}
    for stat in event.stats:
        text = plane.stat_metadata[stat.ref_value].name if stat.ref_value else stat.str_value
        stats[plane.stat_metadata[stat.metadata_id].name] = text or stat.uint64_value or stat.int64_value
    return stats
