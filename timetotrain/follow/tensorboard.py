"""Converts the records of a history to TensorBoard's events: loss, learning rate, throughput and quality."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.errors import UserError
from common.files import write_fix
from timetotrain.follow.page import measure
from timetotrain.run.history import Record

# Fields of a `train` record -> their names in TensorBoard.
TRAIN_TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "examples_per_second": "train/examples_per_second",
}


class Writer:
    """Writes a history that grows into one file of events; call `write` with all of its records so far."""

    def __init__(self, folder: pathlib.Path):
        """The curves replace those that an earlier conversion left in `folder`.

        Raises UserError if the folder cannot be written.
        """
        self.folder = folder
        self._records: list[Record] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = EventFileWriter(str(folder))
        except OSError as error:
            raise self._error(error) from error
        self._drop(0)

    def write(self, records: Sequence[Record]) -> None:
        """Writes what is new in `records`. If a run that lost a process repeats steps, they replace the earlier ones.

        Raises UserError if the file cannot be written.
        """
        pairs = zip(records, self._records)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(records), len(self._records)))
        if same < len(self._records):
            self._drop(min(r["step"] for r in self._records[same:]))
        head = next((r for r in records if r["kind"] == "run"), None)
        for record in records[same:]:
            self._add(record, head)
        self._records = list(records)
        try:
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def _add(self, record: Record, head: Record | None) -> None:
        values: dict[str, float] = {}
        if record["kind"] == "train":
            values = {tag: record[field] for field, tag in TRAIN_TAGS.items() if field in record}
        elif record["kind"] == "evaluation" and head:
            values = {f"evaluation/{name}": v for name, v in measure(head).by_name(record["value"]).items()}
        summary = [Summary.Value(tag=t, simple_value=v) for t, v in values.items() if math.isfinite(v)]
        if summary:
            event = Event(wall_time=record["time"], step=record["step"], summary=Summary(value=summary))
            self._file.add_event(event)

    def _drop(self, step: int) -> None:
        """Tells TensorBoard to drop the folder's points from `step` on."""
        self._file.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        """Writes what is still pending."""
        try:
            self._file.close()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> UserError:
        return UserError(f"{self.folder}: cannot write: {error.strerror}; {write_fix(error)}")
