"""Reads TensorFlow's newest trace (`*.xplane.pb`): which operations ran when, and what a recorded step spends.

A trace has a plane for the host with a line for each thread, and one for each GPU with a line for each stream. On the
host each operation is an event `NAME:TYPE`; a compiled program's have a statistic `hlo_op`. TensorBoard shows the rest.
TensorFlow is imported when a trace is read.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.errors import UserError

_HOST = "/host:CPU"
_START, _DONE = (f"ExecutorState::ProcessAsync::{word}" for word in ("Start", "Done"))
_FETCH = "IteratorGetNextOp::DoCompute"  # The kernel waits for a batch here, on its own thread.
_INPUT = ("IteratorGetNext", "IteratorGetNextSync", "MultiDeviceIteratorGetNextFromShard", "OptionalGetValue")
# They hold other operations or wait for other processes, so they compute nothing themselves.
_HOLDERS = {
    *("While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "Merge"),
    *("Switch", "Enter", "Exit", "NextIteration", "LoopCond", "NoOp", "_Send", "_Recv"),
    *("_HostSend", "_HostRecv"),
}
_HLO_HOLDER = re.compile(r"(call|while|conditional)([._]|$)")
_EXCHANGE = re.compile(r"horovod|collective|nccl|all-reduce|all-gather|reduce-scatter", re.IGNORECASE)
_OPERATION = re.compile(r"[\w./>-]+:(?P<kind>_?[A-Z]\w*)(#.*)?$")
Spans = Iterable[tuple[int, int]]


class Operation(NamedTuple):
    """When an operation ran, in nanoseconds, and its type as TensorFlow writes it."""

    begin: int
    end: int
    kind: str


def operations(folder: Path) -> list[Operation]:
    """Returns the host's operations in the newest trace under `folder`, by start time."""
    return sorted(o for p in _space(folder).planes if p.name.startswith(_HOST) for o in _operations(p))


def shares(folder: Path) -> dict[str, float] | None:
    """The parts of the recorded steps by what they went to, "compute", "exchange" and "input"; they add up to 1.

    Exchange is the time in which a collective runs and nothing computes; input the time in which a step waits for its
    batch and neither does. The rest is compute: a device that waits for its host counts there.

    Args:
      folder: a trace's folder, of which the newest file counts, or one file.

    Returns:
      None if there is no trace under `folder`, or it has no recorded step.

    Raises:
      UserError: the file is not a trace.
      ImportError: TensorFlow is missing.
    """
    from common.train.profile import MARK

    if not folder.is_file() and not any(folder.rglob("*.xplane.pb")):
        return None
    host, kernels, marks = [], [], []
    for plane in _space(folder).planes:
        if plane.name.startswith(_HOST):
            marks += [(begin, end) for begin, end, name, _ in _events(plane) if name == MARK]
            host += _operations(plane)
        elif plane.name.startswith("/device:GPU"):
            kernels += [Operation(b, e, name) for b, e, name, _ in _events(plane, "Stream")]
    if not marks:
        return None
    exchanges = [(o.begin, o.end) for o in [*host, *kernels] if _EXCHANGE.search(o.kind)]
    input_ = [(o.begin, o.end) for o in host if o.kind in _INPUT]
    computes = kernels or [o for o in host if o.kind not in _HOLDERS and o.kind not in _INPUT]
    spans = [(o.begin, o.end) for o in computes if not _EXCHANGE.search(o.kind)]
    alone = covered(spans, marks)
    moved = covered([*spans, *exchanges], marks) - alone
    waited = covered([*spans, *exchanges, *input_], marks) - alone - moved
    whole = sum(end - begin for begin, end in marks)
    shares = {"exchange": moved / whole, "input": waited / whole}
    return {"compute": 1 - sum(shares.values())} | shares


def _space(folder: Path) -> Any:
    # TensorFlow has no public name for the format, and the reader tensorboard-plugin-profile is not a dependency.
    from google.protobuf.message import DecodeError
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = [folder] if folder.is_file() else folder.rglob("*.xplane.pb")
    newest = max(files, key=lambda path: path.stat().st_mtime)
    try:
        return xplane_pb2.XSpace.FromString(newest.read_bytes())
    except (OSError, DecodeError) as error:
        raise UserError(f"{newest}: not a trace that can be read ({error}); delete it") from None


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
            yield Operation(begin, end, _INPUT[0])
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


def covered(spans: Spans, marks: Spans) -> int:
    """Returns the length of `marks`, which do not overlap, that at least one of `spans` covers."""
    parts = [(max(a, b), min(c, d)) for a, c in spans for b, d in marks if max(a, b) < min(c, d)]
    overlaps = np.array(sorted(parts), np.int64).reshape(-1, 2)
    if not len(overlaps):
        return 0
    reached = np.maximum.accumulate(overlaps[:, 1])
    before = np.concatenate([overlaps[:1, 0], reached[:-1]])
    return int(np.maximum(overlaps[:, 1] - np.maximum(overlaps[:, 0], before), 0).sum())
