"""Holds a bounded part of a log's evaluations and intervals, however many it has, in one pass."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

# More than any drawing shows, and than any published log has; below it nothing is thinned.
MOST = 10_000
_MAX_OPEN = 10_000  # intervals whose stop was not yet seen

T = TypeVar("T")


class Thinned(Generic[T]):
    """Every n-th of the items added, evenly, with the first and the last; n is 1 up to `most` items, then doubles."""

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
                self._last = [item] if self.count % self._every else []  # It may be among those.
        else:
            self._last = [item]
        self.count += 1

    @property
    def items(self) -> list[T]:
        """The items that were kept, in order."""
        return self._items + self._last


class Span(NamedTuple):
    """A piece of the run, in milliseconds since the epoch; `stop` is None when its end was never logged."""

    start: float
    stop: float | None
    epoch: float | None


class Spans:
    """Intervals from their starts and stops; a start belongs to the next stop of the same epoch.

    Asynchronous evaluation logs them out of order. Above `most` intervals the neighbours with the shortest gap between
    them become one, so that the time that the intervals cover grows by the shortest gaps only.
    """

    def __init__(self, most: int = MOST) -> None:
        self.count = 0
        self._most = most
        self._open: dict[float | None, float] = {}
        self._closed: list[Span] = []

    def start(self, epoch: float | None, time_ms: float) -> None:
        """An interval begins; a second start of an open epoch changes nothing."""
        if len(self._open) < _MAX_OPEN:
            self._open.setdefault(epoch, time_ms)

    def stop(self, epoch: float | None, time_ms: float) -> None:
        """An interval ends; a stop without a start is ignored."""
        if epoch not in self._open:
            return
        self._closed.append(Span(self._open.pop(epoch), time_ms, epoch))
        self.count += 1
        if len(self._closed) > 2 * self._most:
            self._merge()

    def spans(self) -> tuple[Span, ...]:
        """The intervals by their starts, those without a stop among them."""
        if len(self._closed) > self._most:
            self._merge()
        left = [Span(start, None, epoch) for epoch, start in self._open.items()]
        return tuple(sorted([*self._closed, *left], key=lambda span: span.start))

    def _merge(self) -> None:
        """Leaves `most` intervals."""
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
