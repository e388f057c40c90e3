"""Tests the membership of an elastic run and the ranks of the remaining processes, which are threads here."""

import concurrent.futures
import time

from timetotrain.launch.elastic import Membership
from timetotrain.launch.plan import Host, ranks


def membership(processes, least=1):
    plans = []
    return Membership(ranks([Host("localhost", processes)]), least, plans.append), plans


def places(members, keys):
    """The answers to `keys` when all processes ask at once."""
    with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
        return [f.result(timeout=20).decode() for f in [pool.submit(members.rejoin, key) for key in keys]]


def test_remaining_processes_get_ranks_in_the_old_order():
    members, plans = membership(3)
    assert members.lose(1)
    assert places(members, ["localhost:2", "localhost:0"]) == ["1,2,1,2,0,1", "0,2,0,2,0,1"]
    assert [[r.rank for r in p] for p in plans] == [[0, 1]]
    # The former rank 2 is rank 1 now; it is reported lost under its first number.
    assert members.lose(2) and len(members) == 1
    assert places(members, ["localhost:0"]) == ["0,1,0,1,0,1"]


def test_ranks_are_assigned_once_the_lost_process_is_known():
    members, _ = membership(3)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(members.rejoin, f"localhost:{i}") for i in (0, 1)]
        time.sleep(0.2)
        assert not any(f.done() for f in asked)
        members.lose(2)
        assert [f.result(timeout=20) for f in asked] == [b"0,2,0,2,0,1", b"1,2,1,2,0,1"]


def test_rank_0_and_the_last_few_cannot_be_spared():
    members, _ = membership(3, least=2)
    assert not members.lose(0)
    assert members.lose(2) and not members.lose(1) and len(members) == 2


def test_a_lost_process_that_comes_back_is_sent_away():
    members, _ = membership(2)
    members.lose(1)
    assert members.rejoin("localhost:1") == b"-1,-1,-1,-1,-1,-1"


def test_a_process_that_is_lost_while_it_waits_is_sent_away():
    members, _ = membership(3)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = pool.submit(members.rejoin, "localhost:1")
        time.sleep(0.2)
        members.lose(1)
        others = [pool.submit(members.rejoin, "localhost:0")]
        time.sleep(0.2)
        members.lose(2)
        assert asked.result(timeout=20) == b"-1,-1,-1,-1,-1,-1"
        assert others[0].result(timeout=20) == b"0,1,0,1,0,1"
