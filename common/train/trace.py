"""Summarizes a recorded trace: how long the device was idle, how long steps waited for input, what took longest.

The trace is TensorFlow's XSpace (`*.xplane.pb`). It has a plane for each device, with a line for each stream, and a
plane for the host, with a line for each thread. On the host, each operation is an event `NAME:TYPE`.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from common.train.profile import MARK

LARGEST = 3  # Number of operations that the line names.
INPUT = ("IteratorGetNext", "IteratorGetNextSync", "MultiDeviceIteratorGetNextFromShard", "OptionalGetValue")
_FETCH = "IteratorGetNextOp::DoCompute"  # The kernel waits here, on its own thread.
_START, _DONE = (f"ExecutorState::ProcessAsync::{word}" for word in ("Start", "Done"))
# They contain other operations or wait for other processes, so they keep no core busy by themselves.
_HOLDERS = (
    *("While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "Merge"),
    *(
        "Switch",
        "Enter",
        "Exit",
        "NextIteration",
        "LoopCond",
        "NoOp",
        "_Send",
        "_Recv",
        "_HostSend",
        "_HostRecv",
    ),
)
_HLO_HOLDERS = re.compile(r"(call|while|conditional)([._]|$)")
_EXCHANGES = re.compile(r"horovod|collective|nccl", re.IGNORECASE)
_OPERATION = re.compile(r"(?P<name>[\w./>-]+):(?P<kind>_?[A-Z]\w*)(#.*)?$")
# Parts of a graph's names that do not describe a layer.
_SCAFFOLD = re.compile(
    r"(Stateful)?PartitionedCall(_\d+)?|while(_\d+)?|body|cond|_\d+|gradient_tape|gradients?|train_step|replica_\d+"
)
_STREAM = re.compile(r"Stream|XLA Ops|tf_XLA")


@dataclasses.dataclass(frozen=True)
class Event:
    """An operation on a device or a thread: nanoseconds, and its name and type as TensorFlow writes them."""

    begin: int
    end: int
    name: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Found:
    """What a trace says about its recorded steps.

    Attributes:
      device: the plane whose operations were read.
      seconds: total time of all recorded steps.
      idle, waiting: fractions of that time during which no operation ran, or a step waited for its batch.
      exchanging: fraction of that time during which a collective operation ran.
      largest: [(layer and operation, fraction of the operations' summed time)], the largest first.
    """

    device: str
    seconds: float
    idle: float
    waiting: float
    exchanging: float
    largest: list[tuple[str, float]]

    def line(self, steps: int) -> str:
        """Returns the same facts as one line for people."""
        names = ", ".join(f"{name} {part:.0%}" for name, part in self.largest)
        exchange = f", exchanging {self.exchanging:.0%}" if self.exchanging else ""
        return (
            f"{steps} steps of {1000 * self.seconds / steps:.3g} ms; {self.device} idle {self.idle:.0%}, "
            f"waiting for input {self.waiting:.0%}{exchange}; largest: {names or 'none'}"
        )


def read(folder: pathlib.Path) -> Found | None:
    """Summarizes the newest trace under `folder`; None if there is no trace with recorded steps."""
    space = _space(folder)
    return None if space is None else found(space)


def operations(folder: pathlib.Path) -> list[Event]:
    """Returns the host's operations in the newest trace under `folder`, by start time."""
    space = _space(folder)
    planes = [] if space is None else [p for p in space.planes if p.name.startswith("/host:CPU")]
    return sorted(_operations(planes), key=lambda event: event.begin)


def _space(folder: pathlib.Path) -> Any:
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        return None
    # TensorFlow has no public name for the format, and the reader tensorboard-plugin-profile is not a dependency.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(files[-1].read_bytes())
    return space


def found(space: Any) -> Found | None:
    """As `read`, for an XSpace."""
    host = [plane for plane in space.planes if plane.name.startswith("/host:CPU")]
    marks = [(b, e) for plane in host for b, e, name, _ in _events(plane) if name == MARK]
    if not marks:
        return None
    on_host = list(_operations(host))
    devices = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    kernels = [e for plane in devices for e in _kernels(plane)]
    ran = kernels or [
        e for e in on_host if e.kind not in (*_HOLDERS, *INPUT) and not _EXCHANGES.search(e.kind)
    ]
    total = sum(e - b for b, e in marks)
    exchanges = [e for e in [*on_host, *kernels] if _EXCHANGES.search(f"{e.name} {e.kind}")]
    sums: collections.Counter[str] = collections.Counter()
    for event in _within(ran, marks):
        sums[_called(event)] += event.end - event.begin
    whole = sum(sums.values()) or 1
    return Found(
        device=devices[0].name.removeprefix("/device:") if kernels else "CPU",
        seconds=total / 1e9,
        idle=1 - covered(ran, marks) / total,
        waiting=covered([e for e in on_host if e.kind in INPUT], marks) / total,
        exchanging=covered(exchanges, marks) / total,
        largest=[(name, time / whole) for name, time in sums.most_common(LARGEST)],
    )


def _events(plane: Any) -> Iterator[tuple[int, int, str, Any]]:
    """Yields (begin, end in ns, name, event) for all lines of a plane."""
    for line in plane.lines:
        for event in line.events:
            begin = line.timestamp_ns * 1000 + event.offset_ps
            name = plane.event_metadata[event.metadata_id].name
            yield begin // 1000, (begin + event.duration_ps) // 1000, name, event


def _operations(planes: Iterable[Any]) -> Iterator[Event]:
    """Yields the host's operations; an operation that waits for others can start and end on different threads."""
    for plane in planes:
        started: dict[int, tuple[int, str, str]] = {}
        ended: dict[int, int] = {}
        for begin, end, name, event in _events(plane):
            if name == _FETCH:
                yield Event(begin, end, name, INPUT[0])
            elif name == _START:
                about = _stats(plane, event)
                started[about["_p"]] = begin, about["name"], about["kernel_type"]
            elif name == _DONE:
                ended[_stats(plane, event)["_c"]] = begin
            elif match := _OPERATION.match(name):
                yield Event(begin, end, match["name"], match["kind"])
            elif event.stats and "hlo_op" in _stats(plane, event) and not _HLO_HOLDERS.match(name):
                yield Event(begin, end, name, "")  # From a compiled program, whose layers have no names.
        for number in started.keys() & ended.keys():
            begin, name, kind = started[number]
            if kind not in INPUT:  # Already yielded, from its own event.
                yield Event(begin, ended[number], name, kind)


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    """Returns an event's {name: number or text}."""
    found = {}
    for stat in event.stats:
        text = plane.stat_metadata[stat.ref_value].name if stat.ref_value else stat.str_value
        found[plane.stat_metadata[stat.metadata_id].name] = text or stat.uint64_value or stat.int64_value
    return found


def _kernels(plane: Any) -> Iterator[Event]:
    """Yields the kernels of a GPU's streams; `tf_op`, if the trace has it, names the operation behind a kernel."""
    streams = [line for line in plane.lines if _STREAM.match(line.name)]
    for line in [line for line in streams if line.name.startswith("Stream")] or streams:
        for event in line.events:
            meta = plane.event_metadata[event.metadata_id]
            begin = line.timestamp_ns * 1000 + event.offset_ps
            started = {**_stats(plane, meta), **_stats(plane, event)}.get("tf_op", "")
            name, _, kind = started.partition(":")
            yield Event(begin // 1000, (begin + event.duration_ps) // 1000, name or meta.name, kind)


def _called(event: Event) -> str:
    """Returns an operation's layer and type, without the name parts that the loop adds."""
    parts = [part for part in event.name.split("/") if part and not _SCAFFOLD.fullmatch(part)]
    *layer, last = parts or [event.name]
    return " ".join([*layer[-1:], event.kind or re.sub(r"[._]\d+.*$", "", last)])


def _within(events: Iterable[Event], marks: list[tuple[int, int]]) -> Iterator[Event]:
    """Yields the parts of `events` that lie in `marks`."""
    for event in events:
        for begin, end in marks:
            first, last = max(begin, event.begin), min(end, event.end)
            if first < last:
                yield dataclasses.replace(event, begin=first, end=last)


def covered(events: Iterable[Event], marks: list[tuple[int, int]]) -> int:
    """Returns the nanoseconds of `marks`, which do not overlap, during which at least one of `events` ran."""
    spans = np.array(sorted((e.begin, e.end) for e in _within(events, marks)), np.int64).reshape(-1, 2)
    if not len(spans):
        return 0
    reached = np.maximum.accumulate(spans[:, 1])
    before = np.concatenate([[spans[0, 0]], reached[:-1]])
    return int(np.maximum(spans[:, 1] - np.maximum(spans[:, 0], before), 0).sum())
