"""Models the seconds of a compiled program's collectives on the torus of a TPU slice.

Replicas lie on the torus in the order in which the compiler's topology numbers its cores: both cores of a chip, the 2
x 2 chips of a host, hosts along the first side, then along the next. A group is assumed to consist of consecutive
replicas, as all the presets' groups do, so it fills a box of chips.

Links are full duplex, and a collective uses both directions of a side: around a ring, or from both ends of a line. A
side closes to a ring if it is one whole pod's side (32 chips of a v3; several pods in a row are a mesh: Kumar et al.,
Exploring the limits of concurrency in ML training on Google TPUs, 2020), or if it has 4 or more chips of a v4 (Jouppi
et al., TPU v4, 2023, section 2: blocks of 4 x 4 x 4 joined by optical switches); of a v5e and a v6e, the 16 chips of a
pod (their pages: a 2-D torus of 256 chips). Both cores of a chip are members of its ring, as the compiler's text shows
("phases:2 cores:{64 32}" on v3:32x32): bytes pass between them through the chip's memory while other bytes pass over
the links.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from systems.compile.targets import MEGACORE

# Bytes that a core reads and writes per byte of a sum. Within a chip: its own, the other core's and the result. In a
# ring: its own before they leave, and the result when it arrives.
_LOCAL, _RING = 3, 2
# {device kind: shortest and longest side that close to a ring}.
_RINGS = {
    "tpu-v2": (16, 16), "tpu-v3": (32, 32), "tpu-v5e": (16, 16), "tpu-v6e": (16, 16), "tpu-v4": (4, 64),
    MEGACORE: (4, 64),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Torus:
    """The links of a slice.

    Attributes:
      sides: chips along each side, as in the compiler's topology ("v3:32x32" has (32, 32)).
      rings: shortest and longest side that close to a ring.
      cores: cores per chip.
      link: bytes/s that collectives reach on a link, in one direction.
      hop: seconds from a chip to its neighbour.
      memory: bytes/s that collectives reach in a core's memory.
    """

    sides: tuple[int, ...]
    rings: tuple[int, int]
    cores: int
    link: float
    hop: float
    memory: float

    @classmethod
    def of(cls, topology: str, kind: str, chip: Mapping[str, Any], share: float) -> Torus:
        """Returns the torus of the compiler's topology, e.g. "v3:32x32", of a device kind, e.g. "tpu-v3".

        `chip` is its entry in data/accelerators.json; collectives reach `share` of the links' and memory's
        rate.
        """
        cores = 1 if kind == MEGACORE else chip["replicas"]
        return cls(
            sides=tuple(int(side) for side in topology.partition(":")[2].split("x")), rings=_RINGS[kind],
            cores=cores, link=chip["link_bandwidth"] * share, hop=chip["hop_seconds"],
            memory=chip["memory_bandwidth"] / cores * share,
        )  # fmt: skip

    def box(self, replicas: int) -> tuple[int, ...]:
        """Chips along each side of the box that `replicas` consecutive replicas fill."""
        left, sides = max(1, replicas // self.cores), [1] * len(self.sides)
        hosts = [(0, 2), (1, 2)] if len(self.sides) > 1 else []
        for side, most in (*hosts, *enumerate(self.sides)):
            while left > 1 and 2 * sides[side] <= min(most, self.sides[side]):
                sides[side], left = 2 * sides[side], left // 2
        return tuple(sides)

    def closes(self, side: int, length: int) -> bool:
        """Whether the chips along a whole side form a ring."""
        return length == self.sides[side] and self.rings[0] <= length <= self.rings[1]

    def seconds(self, row: Mapping[str, Any], replicas: int) -> float:
        """Seconds of the collectives in one row of a compiled program's report.

        Args:
          row: "operation", "group_size" (0: all), "strategy", "count", and "bytes" (sum over their results).
          replicas: number of replicas in the program.
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
        elif row["operation"] == "reduce-scatter":  # Its result is one member's part.
            one = self.both_ways(moved * size, size, row["strategy"]) / 2
        elif row["strategy"]:
            one = max(self.both_ways(moved, size, row["strategy"]), self.local(moved, size))
        else:
            one = max(self.single_phase(moved, size), self.local(moved, size))
        return row["count"] * one

    def local(self, moved: float, size: int) -> float:
        """Seconds for a core to read and write what it sums of `moved` bytes, within a chip or a ring."""
        return (_LOCAL if size <= self.cores else _RING) * moved / self.memory

    def both_ways(self, moved: float, size: int, strategy: str = "") -> float:
        """Seconds on the links to scatter the sums of `moved` bytes over a group and gather them again.

        The compiler names its strategy. StrategyND runs along one side after another, in as many simultaneous colors
        as there are sides. Each color has its part of the bytes and its own order of the sides (the compiler's text
        says "colors:2 phases:2 ... dim_used:{0 1},{1 0}"). UniDirectionNDRingStrategy, chosen for small even slices,
        has each of these colors twice, once per direction ("colors:4 phases:2 ... dim_used:{0 1},{1 0},{0 1},{1 0}" on
        v3:4x4). Otherwise one ring passes through all chips, in both directions.
        """
        box = self.box(size)
        long = [(length, self.closes(side, length)) for side, length in enumerate(box) if length > 1]
        if not long:
            return 0.0
        chips = math.prod(box)
        if strategy.startswith("UniDirection"):
            colors, along = 2 * len(long), self._one_way
        elif strategy.startswith("StrategyND"):
            colors, along = len(long), self._ring
        else:
            return self._ring(moved, chips, len(long) > 1 or long[0][1])
        orders = [long[turn:] + long[:turn] for turn in range(len(long))]
        return max(_phases(moved / colors, order, along) for order in orders)

    def single_phase(self, moved: float, size: int) -> float:
        """Seconds of a small sum: every member's data travel to all others, half each way, and each member sums them.

        The compiler names no strategy for it, only "SinglePhaseRingSumEmitter"; its buffer grows with the group.
        """
        box = self.box(size)
        chips, long = math.prod(box), [side for side, length in enumerate(box) if length > 1]
        if not long:
            return 0.0
        closed = len(long) > 1 or self.closes(long[0], box[long[0]])
        hops = math.ceil(chips / 2) if closed else chips - 1
        return moved * self.cores * hops / self.link + hops * self.hop

    def _one_way(self, moved: float, chips: int, closed: bool) -> float:
        """Seconds for one of the strategy's colors (its share of the bytes) to scatter and gather along a side.

        All members send in one direction.

        On a line, the last member's bytes return over all links. The other direction's color sends as much over the
        same links, so each link carries both.
        """
        carried = moved * (chips - 1) / chips * (1 if closed else 2)
        return 2 * (carried / self.link + (chips - 1) * self.hop)

    def _ring(self, moved: float, chips: int, closed: bool) -> float:
        """Seconds of a scatter and a gather around a ring, or along a line (half the bytes pass its middle link)."""
        hops = math.ceil(chips / 2) if closed else chips - 1
        part = (chips - 1) / chips if closed else 1.0
        return 2 * (moved * part / (2 * self.link) + hops * self.hop)

    def all_to_all(self, moved: float, size: int) -> float:
        """Seconds for each member of a group to send every other member its part of `moved` bytes.

        Split the longest side in half: half of each member's bytes cross to the other half, over one link per row of
        chips along that side, or two if it closes to a ring.
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
        """Seconds for each replica to send `moved` bytes to its neighbour: each has its own link, plus one hop."""
        return moved / self.link + self.hop


def _phases(moved: float, sides: list[tuple[int, bool]], along: Callable[[float, int, bool], float]) -> float:
    """Seconds of one color: all its bytes along the first side, then along each next side its line's share."""
    total = 0.0
    for length, closed in sides:
        total += along(moved, length, closed)
        moved /= length
    return total
