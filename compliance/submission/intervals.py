"""Builds the intervals of a run from the lines of its log, in bounded memory."""

from typing import NamedTuple

# Intervals, and evaluations: ten times what any published log has.
MOST = 10_000


class Span(NamedTuple):
    """An interval of the run, in milliseconds since the epoch; `stop` is None if its end was never logged."""

    start: float
    stop: float | None
    epoch: float | None


class Spans:
    """Builds intervals from starts and stops; a start matches the next stop of the same epoch.

    Many logs count the samples so far: a block that starts at 1,536 stops at 1,920. A stop without a start of its own
    count ends the latest interval that is open and began at a lower count. Asynchronous evaluation logs starts and
    stops out of order. What follows `MOST` intervals is one with the last of them.
    """

    def __init__(self) -> None:
        self._open: dict[float | None, float] = {}
        self._closed: list[Span] = []

    def start(self, epoch: float | None, time_ms: float) -> None:
        """Begins an interval; ignores a second start of an epoch that is already open."""
        if len(self._open) < MOST:
            self._open.setdefault(epoch, time_ms)

    def stop(self, epoch: float | None, time_ms: float) -> None:
        """Ends an interval; ignores a stop without a start."""
        if epoch not in self._open and epoch is not None:  # the latest open count below it
            lower = (one for one in self._open if one is not None and one < epoch)
            epoch = max(lower, key=lambda one: (self._open[one], one), default=None)
        if epoch not in self._open:
            return
        span = Span(self._open.pop(epoch), time_ms, epoch)
        if len(self._closed) < MOST:
            self._closed.append(span)
        else:
            self._closed[-1] = self._closed[-1]._replace(stop=max(self._closed[-1].stop, span.stop))

    def spans(self) -> tuple[Span, ...]:
        """Returns the intervals by start time, including those without a stop."""
        open_spans = [Span(start, None, epoch) for epoch, start in self._open.items()]
        return tuple(sorted([*self._closed, *open_spans], key=lambda span: span.start))
