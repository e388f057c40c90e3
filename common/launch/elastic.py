"""The launcher's side of a run that goes on without a process it lost: who is left, and which rank each has now.

Horovod's processes, initialised with HOROVOD_ELASTIC=1, ask the rendezvous server for their new rank when they
initialise anew (horovod/common/gloo/gloo_context.cc); the answer waits until all that are left have asked.
TensorFlow-free. The processes' side is common/run/elastic.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from common.launch import plan

SCOPE = "rank_and_size"  # HOROVOD_GLOO_GET_RANK_AND_SIZE in horovod/common/gloo/gloo_context.h


class Membership:
    """The processes of one host that are left of a run; ranks are those of the start."""

    def __init__(self, ranks: Sequence[plan.Rank], least: int, reset: Callable[[Sequence[plan.Rank]], None]):
        """`reset` empties the rendezvous server for a new set of ranks; fewer than `least` cannot go on."""
        self._least, self._reset = least, reset
        self._now = {rank.rank: rank for rank in ranks}
        self._asked: set[int] = set()
        self._generation = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._now)

    def lose(self, rank: int) -> bool:
        """Whether the run can go on without `rank`: not without rank 0, which keeps the log and the checkpoints."""
        with self._changed:
            if rank == 0 or rank not in self._now or len(self._now) <= self._least:
                return False
            del self._now[rank]
            self._asked.discard(rank)
            self._settle()
            return True

    def rejoin(self, key: str) -> bytes:
        """The new place of the process at `key`, "host:local rank", in Horovod's form; waits for the others."""
        with self._changed:
            mine = [r for r, place in self._now.items() if f"{place.host}:{place.local_rank}" == key]
            if not mine:
                return b"-1,-1,-1,-1,-1,-1"  # It was lost: Horovod then ends the process.
            generation = self._generation
            self._asked.add(mine[0])
            self._settle()
            self._changed.wait_for(lambda: self._generation > generation)
            place = self._now[mine[0]]
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
        """Once all that are left have asked: new ranks, in the old order."""
        if not self._asked or self._asked != self._now.keys():
            return
        places = plan.ranks([plan.Host(place.host, 1) for place in self._now.values()])
        self._now = dict(zip(self._now, places))
        self._asked.clear()
        self._reset(places)
        self._generation += 1
        self._changed.notify_all()
