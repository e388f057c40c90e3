"""Keeps the program's own output beside the records of a log: the configuration, then what people read.

Result files hold the framework's whole output from round 6.1 on (training_rules.adoc, "Result files").
"""

from collections.abc import Callable

from common.config import fields
from common.config.schema import RunConfig
from common.errors import printable
from common.train import events
from timetotrain.run.progress import Reporter


class Output:
    """Writes lines that are not records by `write`, which takes a line."""

    def __init__(self, config: RunConfig, write: Callable[[str], None]):
        self._config, self._write, self._rest = config, write, ""
        self._reporter = Reporter(config, self)  # type: ignore[arg-type]

    def header(self) -> None:
        """Writes every field of the configuration."""
        for field in fields.describe(self._config):
            self._line(f"config.{field.path}={field.value}")

    def record(self, event: events.Event) -> None:
        """Writes what a run without a terminal shows of an event."""
        self._reporter.record(event)

    def _line(self, text: str) -> None:
        # No such line may look like a record.
        self._write(printable(text).replace(":::", ": : :"))

    # -- the part of a text stream that `print` and `Reporter` use

    def write(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line)

    def flush(self) -> None:
        """Does nothing: each line is written at once."""

    def isatty(self) -> bool:
        return False
