"""Keeps a bounded sample of a log's evaluations and intervals, in one pass, however many there are."""

from typing import Generic, NamedTuple, TypeVar

# More than any drawing shows or any published log has; below this nothing is thinned.
MOST = 10_000
_MAX_OPEN = 10_000  # intervals whose stop has not come yet

T = TypeVar("T")


class Thinned(Generic[T]):
    """Keeps every n-th item, plus the first and the last. n starts at 1 and doubles when `most` items are exceeded."""

    def __init__(self, most: int = MOST) -> None:
        self.count = 0
        self._most, self._every = most, 1
        self._items: list[T] = []
        self._last: list[T] = []

    def add(self, item: T) -> None:
        """Adds the next item."""
        if self.count % self._every == 0:
            self._items.append(item)
            self._last = []
            if len(self._items) > self._most:
                del self._items[1::2]
                self._every *= 2
                self._last = [item] if self.count % self._every else []  # The deletion may have removed it.
        else:
            self._last = [item]
        self.count += 1

    @property
    def items(self) -> list[T]:
        """Returns the kept items, in order."""
        return self._items + self._last


class Span(NamedTuple):
    """An interval of the run, in milliseconds since the epoch; `stop` is None if its end was never logged."""

    start: float
    stop: float | None
    epoch: float | None


class Spans:
    """Builds intervals from starts and stops; a start matches the next stop of the same epoch.

    Many logs count the samples so far: a block that starts at 1,536 stops at 1,920. A stop without a start of its own
    count ends the latest interval that is open and began at a lower count. Asynchronous evaluation logs starts and
    stops out of order. Above `most` intervals, it merges the neighbors with the shortest gaps between them, so that the
    total time that the intervals cover grows as little as possible.
    """

    def __init__(self, most: int = MOST) -> None:
        self.count = 0
        self._most = most
        self._open: dict[float | None, float] = {}
        self._closed: list[Span] = []

    def start(self, epoch: float | None, time_ms: float) -> None:
        """Begins an interval; ignores a second start of an epoch that is already open."""
        if len(self._open) < _MAX_OPEN:
            self._open.setdefault(epoch, time_ms)

    def stop(self, epoch: float | None, time_ms: float) -> None:
        """Ends an interval; ignores a stop without a start."""
        if epoch not in self._open and epoch is not None:  # the latest open count below it
            lower = (one for one in self._open if one is not None and one < epoch)
            epoch = max(lower, key=lambda one: (self._open[one], one), default=None)
        if epoch not in self._open:
            return
        self._closed.append(Span(self._open.pop(epoch), time_ms, epoch))
        self.count += 1
        if len(self._closed) > 2 * self._most:
            self._merge()

    def spans(self) -> tuple[Span, ...]:
        """Returns the intervals by start time, including those without a stop."""
        if len(self._closed) > self._most:
            self._merge()
        left = [Span(start, None, epoch) for epoch, start in self._open.items()]
        return tuple(sorted([*self._closed, *left], key=lambda span: span.start))

    def _merge(self) -> None:
        """Merges intervals until `most` are left."""
        spans = sorted(self._closed, key=lambda span: span.start)
        gaps = sorted(range(1, len(spans)), key=lambda at: spans[at].start - spans[at - 1].stop)
        joined = set(gaps[: len(spans) - self._most])
        self._closed = []
        for at, span in enumerate(spans):
            if at in joined:
                before = self._closed[-1]
                self._closed[-1] = before._replace(stop=max(before.stop, span.stop))
            else:
                self._closed.append(span)
