"""Gives new ranks to the remaining processes when a run loses one: the launcher's side of elastic runs.

With HOROVOD_ELASTIC=1, Horovod's processes ask the rendezvous server for a new rank when they reinitialise
(horovod/common/gloo/gloo_context.cc). The server answers once all remaining processes have asked.
TensorFlow-free. The process side is timetotrain/run/elastic.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from timetotrain.launch import plan

SCOPE = "rank_and_size"  # HOROVOD_GLOO_GET_RANK_AND_SIZE in horovod/common/gloo/gloo_context.h


_LOST = b"-1,-1,-1,-1,-1,-1"  # Tells a process that it counts as lost; Horovod then ends it.


class Membership:
    """The remaining processes of a run on one host, by their initial rank."""

    def __init__(self, ranks: Sequence[plan.Rank], least: int, reset: Callable[[Sequence[plan.Rank]], None]):
        """`reset` clears the rendezvous server for a new set of ranks; a run needs at least `least` processes."""
        self._least, self._reset = least, reset
        self._now = {rank.rank: rank for rank in ranks}
        self._asked: set[int] = set()
        self._generation = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._now)

    def lose(self, rank: int) -> bool:
        """If the run can continue without `rank`, removes it and returns True; rank 0 keeps log and checkpoints."""
        with self._changed:
            if rank == 0 or rank not in self._now or len(self._now) <= self._least:
                return False
            del self._now[rank]
            self._asked.discard(rank)
            self._settle()
            return True

    def rejoin(self, key: str) -> bytes:
        """Returns the new place of process `key` ("host:local rank") in Horovod's form, once all others have asked."""
        with self._changed:
            matching = [r for r, place in self._now.items() if f"{place.host}:{place.local_rank}" == key]
            if not matching:
                return _LOST
            generation = self._generation
            self._asked.add(matching[0])
            self._settle()
            self._changed.wait_for(lambda: self._generation > generation)
            place = self._now.get(matching[0])
            if place is None:  # It was lost while it waited.
                return _LOST
        sizes = (
            place.rank,
            place.size,
            place.local_rank,
            place.local_size,
            place.cross_rank,
            place.cross_size,
        )
        return ",".join(map(str, sizes)).encode()

    def _settle(self) -> None:
        """Assigns new ranks, in the old order, once all remaining processes have asked."""
        if not self._asked or self._asked != self._now.keys():
            return
        places = plan.ranks([plan.Host(place.host, 1) for place in self._now.values()])
        self._now = dict(zip(self._now, places))
        self._asked.clear()
        self._reset(places)
        self._generation += 1
        self._changed.notify_all()
