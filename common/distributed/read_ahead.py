"""Runs an iterator in its own thread, a few items ahead of the reader. Imports no TensorFlow."""

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

# When the reader goes away, it waits at most this long for the item that the thread is making.
_LAST_SECONDS = 5.0


class ReadAhead(Iterator[Item], Generic[Item]):
    """The items of an iterator, in order. The thread starts at the first request and ends with this object."""

    def __init__(self, items: Iterator[Item], depth: int):
        """`depth`: number of items made ahead."""
        self._items, self._ready = items, queue.SimpleQueue()
        self._free, self._ended = threading.Semaphore(depth), threading.Event()
        self._thread: threading.Thread | None = None
        self._last: BaseException | None = None

    def __next__(self) -> Item:
        """Returns the next item, or raises the iterator's exception when it comes to it, and on every later call."""
        if self._last is not None:
            raise self._last
        if self._thread is None:
            self._start()
        item, self._last = self._ready.get()
        if self._last is not None:
            raise self._last
        self._free.release()
        return item

    def _start(self) -> None:
        # A function, not a method: a thread that held this object would keep it alive.
        arguments = self._items, self._ready, self._free, self._ended
        self._thread = threading.Thread(target=_make, args=arguments, name="read ahead", daemon=True)
        self._items = None
        self._thread.start()
        weakref.finalize(self, _end, self._thread, self._free, self._ended)


def _make(
    items: Iterator[Any], ready: queue.SimpleQueue, free: threading.Semaphore, ended: threading.Event
) -> None:
    try:
        while True:
            free.acquire()
            if ended.is_set():
                return
            ready.put((next(items), None))
    except BaseException as error:
        ready.put((None, error))


def _end(thread: threading.Thread, free: threading.Semaphore, ended: threading.Event) -> None:
    ended.set()
    free.release()
    if thread is not threading.current_thread():
        thread.join(_LAST_SECONDS)
