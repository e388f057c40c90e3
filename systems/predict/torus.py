"""Models the seconds of the collectives that a compiled program holds, on the torus of a TPU slice.

Replicas stand on the torus as the compiler's topology numbers its cores: both cores of a chip, the 2 x 2 chips of a
host, hosts along the first side, then along the next. A group is taken to be of consecutive replicas, as all groups of
the presets are, so that it fills a box of chips.

Links are full duplex and a collective uses both directions of a side: round a ring, or from both ends of a line. A
side closes to a ring where it is one whole pod's (32 chips of a v3; several pods in a row are a mesh: Kumar et al.,
Exploring the limits of concurrency in ML training on Google TPUs, 2020), or 4 and more chips of a v4's
(Jouppi et al., TPU v4, 2023, section 2: blocks of 4 x 4 x 4 joined by optical switches). Both cores of a chip are
members of its ring, as the compiler's text has them ("phases:2 cores:{64 32}" on v3:32x32): between them, bytes pass
the chip's memory while others pass the links.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from systems.compile.targets import MEGACORE

# Bytes that a core reads and writes per byte of a sum: within a chip its own, the other's and the result; in a ring its
# own, before they leave, and the result, when it comes.
_LOCAL, _RING = 3, 2
# {kind of device: the shortest and the longest side that close to a ring}.
_RINGS = {"tpu-v2": (16, 16), "tpu-v3": (32, 32), "tpu-v4": (4, 64), MEGACORE: (4, 64)}


@dataclasses.dataclass(frozen=True)
class Torus:
    """The links of a slice.

    Attributes:
      sides: chips along each side, as in the compiler's topology ("v3:32x32" has (32, 32)).
      rings: the shortest and the longest side that close to a ring.
      cores: of a chip.
      link: bytes/s of a link in one direction that collectives reach.
      hop: seconds from a chip to its neighbour.
      memory: bytes/s of a core's memory that collectives reach.
    """

    sides: tuple[int, ...]
    rings: tuple[int, int]
    cores: int
    link: float
    hop: float
    memory: float

    @classmethod
    def of(cls, topology: str, kind: str, chip: Mapping[str, Any], share: float) -> Torus:
        """The torus of a topology's name.

        Args:
          topology: the compiler's name, e.g. "v3:32x32".
          kind: the kind of device, e.g. "tpu-v3".
          chip: the accelerator's entry of data/accelerators.json.
          share: the part of links' and memory's rate that collectives reach.
        """
        cores = 1 if kind == MEGACORE else chip["replicas"]
        return cls(
            sides=tuple(int(side) for side in topology.partition(":")[2].split("x")),
            rings=_RINGS[kind],
            cores=cores,
            link=chip["link_bandwidth"] * share,
            hop=chip["hop_seconds"],
            memory=chip["memory_bandwidth"] / cores * share,
        )

    def box(self, replicas: int) -> tuple[int, ...]:
        """Chips along each side of the box that so many consecutive replicas fill."""
        left, sides = max(1, replicas // self.cores), [1] * len(self.sides)
        hosts = [(0, 2), (1, 2)] if len(self.sides) > 1 else []
        for side, most in (*hosts, *enumerate(self.sides)):
            while left > 1 and 2 * sides[side] <= min(most, self.sides[side]):
                sides[side], left = 2 * sides[side], left // 2
        return tuple(sides)

    def closes(self, side: int, length: int) -> bool:
        """Whether chips along a whole side form a ring."""
        return length == self.sides[side] and self.rings[0] <= length <= self.rings[1]

    def seconds(self, row: Mapping[str, Any], replicas: int) -> float:
        """Seconds of the collectives of one row of a compiled program's report.

        Args:
          row: "operation", "group_size" (0: all), "strategy", "count", and "bytes" of all their results.
          replicas: of the program.
        """
        if not row["count"]:
            return 0.0
        size = row["group_size"] or replicas
        moved = row["bytes"] / row["count"]
        if row["operation"] == "collective-permute":
            one = self.permute(moved)
        elif size == 1:
            one = 0.0
        elif row["operation"] == "all-to-all":
            one = self.all_to_all(moved, size)
        elif row["operation"] == "all-gather":
            one = self.both_ways(moved, size, row["strategy"]) / 2
        elif row["operation"] == "reduce-scatter":  # Its result is a member's part.
            one = self.both_ways(moved * size, size, row["strategy"]) / 2
        elif row["strategy"]:
            one = max(self.both_ways(moved, size, row["strategy"]), self.local(moved, size))
        else:
            one = max(self.single_phase(moved, size), self.local(moved, size))
        return row["count"] * one

    def local(self, moved: float, size: int) -> float:
        """Seconds in which a core reads and writes what it adds up of `moved` bytes, in a chip or a ring."""
        return (_LOCAL if size <= self.cores else _RING) * moved / self.memory

    def both_ways(self, moved: float, size: int, strategy: str = "") -> float:
        """Seconds on the links to scatter the sums of `moved` bytes over a group and to gather them again.

        The compiler names its strategy. StrategyND goes along one side after another, in as many colours at once as
        there are sides: each has its part of the bytes and another order of the sides (its text says "colors:2
        phases:2 ... dim_used:{0 1},{1 0}"). UniDirectionNDRingStrategy, which it takes on small even slices, has each
        of these colours twice, once a direction ("colors:4 phases:2 ... dim_used:{0 1},{1 0},{0 1},{1 0}" on v3:4x4).
        Else one ring passes all chips, in both.
        """
        box = self.box(size)
        long = [(length, self.closes(side, length)) for side, length in enumerate(box) if length > 1]
        if not long:
            return 0.0
        chips = math.prod(box)
        if strategy.startswith("UniDirection"):
            colours, along = 2 * len(long), self._one_way
        elif strategy.startswith("StrategyND"):
            colours, along = len(long), self._ring
        else:
            return self._ring(moved, chips, len(long) > 1 or long[0][1])
        orders = [long[turn:] + long[:turn] for turn in range(len(long))]
        return max(_phases(moved / colours, order, along) for order in orders)

    def single_phase(self, moved: float, size: int) -> float:
        """Seconds of a small sum: what every member has goes round to all others, half each way, and each adds up.

        The compiler names no strategy for it, but "SinglePhaseRingSumEmitter"; its buffer grows with the group.
        """
        box = self.box(size)
        chips, long = math.prod(box), [side for side, length in enumerate(box) if length > 1]
        if not long:
            return 0.0
        closed = len(long) > 1 or self.closes(long[0], box[long[0]])
        hops = math.ceil(chips / 2) if closed else chips - 1
        return moved * self.cores * hops / self.link + hops * self.hop

    def _one_way(self, moved: float, chips: int, closed: bool) -> float:
        """Seconds of a scatter and a gather of one colour whose members all send the same way.

        On a line the last member's bytes come back over all its links, on which the colour of the other direction
        sends as much: each link carries both.
        """
        carried = moved * (chips - 1) / chips * (1 if closed else 2)
        return 2 * (carried / self.link + (chips - 1) * self.hop)

    def _ring(self, moved: float, chips: int, closed: bool) -> float:
        """Seconds of a scatter and a gather round a ring, or along a line, whose middle link half of the bytes pass."""
        hops = math.ceil(chips / 2) if closed else chips - 1
        part = (chips - 1) / chips if closed else 1.0
        return 2 * (moved * part / (2 * self.link) + hops * self.hop)

    def all_to_all(self, moved: float, size: int) -> float:
        """Seconds in which each member of a group sends every other its part of `moved` bytes.

        Half of what the members of the longest side's one half have goes to the other half, over one link of that side
        a row of chips, two where it closes to a ring.
        """
        box = self.box(size)
        length = max(box)
        if length == 1:
            return moved / self.memory
        side = box.index(length)
        ways = 2 if self.closes(side, length) else 1
        crossing = moved * self.cores * length / 2 / 2
        return crossing / (ways * self.link) + length / 2 * self.hop

    def permute(self, moved: float) -> float:
        """Seconds in which each replica sends `moved` bytes to its neighbour: a link for itself, and a hop."""
        return moved / self.link + self.hop


def _phases(moved: float, sides: list[tuple[int, bool]], along: Callable[[float, int, bool], float]) -> float:
    """Seconds of one colour: along a side all its bytes, along the next the part that is its line's."""
    total = 0.0
    for length, closed in sides:
        total += along(moved, length, closed)
        moved /= length
    return total
