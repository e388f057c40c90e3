"""Writes a run's loss, learning rate, throughput and quality for TensorBoard; a resumed run continues the curves."""

from __future__ import annotations

import math
import pathlib

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.config.quality import Measure
from common.errors import UserError
from common.files import FIX
from timetotrain.run.history import Record

# Fields of a `train` record -> their names in TensorBoard.
TRAIN_TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "examples_per_second": "train/examples_per_second",
}


class Writer:
    """Turns a history's records into events; call it with each record, then `close`."""

    def __init__(self, folder: pathlib.Path, measure: Measure, start_step: int = 0):
        """`start_step`: an earlier run's events after this step will be repeated, so TensorBoard is told to drop them.

        Raises:
          UserError: the folder cannot be written.
        """
        self._folder, self._measure = folder, measure
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = EventFileWriter(str(folder))
        except OSError as error:
            raise self._error(error) from error
        if start_step:
            self._file.add_event(Event(step=start_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def __call__(self, record: Record) -> None:
        """Writes a record; ignores records without a scalar."""
        values: dict[str, float] = {}
        if record["kind"] == "train":
            values = {tag: record[field] for field, tag in TRAIN_TAGS.items() if field in record}
        elif record["kind"] == "evaluation":
            values = {f"evaluation/{name}": v for name, v in self._measure.named(record["value"]).items()}
        summary = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if math.isfinite(value)
        ]
        if summary:
            event = Event(wall_time=record["time"], step=record["step"], summary=Summary(value=summary))
            self._file.add_event(event)
        if record["kind"] in ("evaluation", "end"):
            self._flush()

    def close(self) -> None:
        """Writes what is still pending."""
        try:
            self._file.close()
        except OSError as error:
            raise self._error(error) from error

    def _flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> UserError:
        return UserError(f"--tensorboard_dir={self._folder}: cannot write: {error.strerror}; {FIX}")
