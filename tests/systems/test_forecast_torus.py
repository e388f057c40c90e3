"""Tests the model of the torus against cases worked out by hand."""

import dataclasses

import pytest

from systems.forecast import accelerators
from systems.forecast.torus import Torus

CHIP = accelerators.table()["TPU v3"]
LINK, HOP, MB = 100e9, 1e-6, 1e6


def torus(sides=(32, 32), rings=(32, 32), cores=2):
    return Torus(sides=sides, rings=rings, cores=cores, link=LINK, hop=HOP, memory=400e9)


def row(operation="all-reduce", size=0, moved=MB, count=1, strategy=""):
    return {"operation": operation, "group_size": size, "strategy": strategy, "count": count, "bytes": moved}


def test_a_torus_is_read_from_the_compilers_topology():
    found = Torus.of("v3:32x128", "tpu-v3", CHIP, 0.5)
    assert found.sides == (32, 128) and found.cores == 2
    assert found.link == CHIP["link_bandwidth"] / 2 and found.memory == CHIP["memory_bandwidth"] / 4


@pytest.mark.parametrize(
    "replicas, box",
    [(1, (1, 1)), (2, (1, 1)), (4, (2, 1)), (8, (2, 2)), (16, (4, 2)), (64, (16, 2)), (128, (32, 2)),
     (256, (32, 4)), (2048, (32, 32))],
)  # fmt: skip
def test_consecutive_replicas_fill_hosts_then_rows_of_hosts(replicas, box):
    """As libtpu numbers v3:32x32: eight cores are the 2 x 2 chips of a host."""
    assert torus().box(replicas) == box


def test_a_box_of_a_torus_of_three_sides():
    assert torus((4, 4, 8), (4, 64)).box(128) == (4, 4, 4)


def test_a_ring_scatters_and_gathers_in_both_directions():
    """Of n bytes 3/4 pass each chip of a ring of four, half of them each way; two hops reach the farthest, twice."""
    assert torus().both_ways(8 * MB, 8) == pytest.approx(2 * (6 * MB / (2 * LINK) + 2 * HOP))


def test_a_line_sends_half_of_the_bytes_over_its_middle_link():
    assert torus().both_ways(8 * MB, 4) == pytest.approx(2 * (4 * MB / LINK + HOP))


def test_only_a_whole_pods_side_closes():
    assert torus().closes(0, 32) and not torus().closes(0, 16) and not torus((16, 16)).closes(0, 16)
    assert not torus((32, 128)).closes(1, 128)
    assert torus((4, 4, 8), (4, 64)).closes(2, 8)


def test_rings_of_one_direction_are_two_for_each_order_of_the_sides():
    """Four colours on 4 x 4 chips. Of a colour's bytes 3/4 pass a chip, and on a line as much comes back."""
    found = torus((4, 4)).both_ways(16 * MB, 32, "UniDirectionNDRingStrategy")
    first = 2 * (2 * 4 * MB * 3 / 4 / LINK + 3 * HOP)
    second = 2 * (2 * MB * 3 / 4 / LINK + 3 * HOP)
    assert found == pytest.approx(first + second)


def test_rings_of_one_direction_on_closed_sides_move_what_rings_of_both_do():
    """4 x 4 x 4 chips of a TPU v4, whose sides close: the same bytes a link as StrategyND, more hops."""
    one = dataclasses.replace(torus((4, 4, 4), (4, 64)), hop=0.0)
    same = [one.both_ways(16 * MB, 128, name) for name in ("UniDirectionNDRingStrategy", "StrategyND")]
    assert same[0] == pytest.approx(same[1])


def test_two_colours_go_along_both_sides_at_once():
    """Each has half of the bytes: along 32 chips, then a thirty-second of it along 32 more."""
    first = 2 * (4 * MB * 31 / 32 / (2 * LINK) + 16 * HOP)
    second = 2 * (4 * MB / 32 * 31 / 32 / (2 * LINK) + 16 * HOP)
    assert torus().both_ways(8 * MB, 2048, "StrategyND") == pytest.approx(first + second)


def test_sides_of_unequal_length_wait_for_the_slower_colour():
    """Pods in a row: 32 chips closed to a ring, 128 in a line. The colour that takes the line first is the slower."""
    found = torus((32, 128)).both_ways(8 * MB, 8192, "StrategyND")
    line = 2 * (4 * MB / (2 * LINK) + 127 * HOP)
    ring = 2 * (4 * MB / 128 * 31 / 32 / (2 * LINK) + 16 * HOP)
    assert found == pytest.approx(line + ring)


def test_a_small_sum_goes_round_once():
    """Eight cores are a ring of four chips: two chips' vectors, of both cores, pass a link each way, over two hops."""
    assert torus().seconds(row(size=8), 2048) == pytest.approx(2 * 2 * MB / LINK + 2 * HOP)
    line = dataclasses.replace(torus(), memory=1e15)
    assert line.seconds(row(size=4), 2048) == pytest.approx(2 * MB / LINK + HOP)


def test_a_sum_takes_what_is_longer_the_links_or_the_memory():
    """Cores of a chip read two bytes and write one; a member of a ring reads and writes one, beside the links."""
    one = torus()
    assert one.seconds(row(size=2), 2048) == pytest.approx(3 * MB / 400e9)
    whole = one.seconds(row(strategy="StrategyND", moved=100 * MB), 2048)
    assert whole == pytest.approx(one.both_ways(100 * MB, 2048, "StrategyND"))
    slow = dataclasses.replace(one, memory=1e9)
    assert slow.seconds(row(strategy="StrategyND"), 2048) == pytest.approx(2 * MB / 1e9)


def test_a_gather_and_a_scatter_are_half_of_a_sum_each():
    one = torus()
    both = one.both_ways(MB, 2048, "StrategyND")
    gather = one.seconds(row("all-gather", strategy="StrategyND"), 2048)
    scatter = one.seconds(row("reduce-scatter", moved=MB / 2048, strategy="StrategyND"), 2048)
    assert gather == pytest.approx(both / 2) and scatter == pytest.approx(both / 2)


def test_a_permutation_is_a_link_and_a_hop():
    found = torus().seconds(row("collective-permute", 2, 6 * MB, count=3), 2048)
    assert found == pytest.approx(3 * (2 * MB / LINK + HOP))


def test_all_to_all_crosses_the_middle_of_the_longest_side():
    """Four chips of two cores in a line, as 16 replicas are 4 x 2: four cores send half of theirs over one link."""
    found = torus().all_to_all(MB, 16)
    assert found == pytest.approx(4 * MB / 2 / LINK + 2 * HOP)
    assert torus().all_to_all(MB, 2048) == pytest.approx(32 * MB / 2 / (2 * LINK) + 16 * HOP)


def test_a_group_of_one_and_no_collective_cost_nothing():
    assert torus().seconds(row(size=1), 2048) == 0 and torus().seconds(row(count=0), 2048) == 0


def test_more_collectives_of_the_same_bytes_cost_more_hops():
    one = torus()
    few, many = (one.seconds(row(size=8, count=n), 2048) for n in (1, 10))
    assert many - few == pytest.approx(9 * 2 * HOP)
