"""Tests the joint decisions of processes, which are threads that exchange integers here."""

import threading
import time

import pytest

from common.train.agreement import Agreement, Decision


class Peers:
    """Implements `agree` between several threads."""

    def __init__(self, number):
        self.number, self._values = number, [0] * number
        self._before, self._after = (
            threading.Barrier(number, timeout=30),
            threading.Barrier(number, timeout=30),
        )

    def agree(self, rank, value):
        self._values[rank] = value
        self._before.wait()
        most = max(self._values)
        self._after.wait()
        return most


class Replicas:
    def __init__(self, peers, rank):
        self._peers, self.process_index, self.num_processes = peers, rank, peers.number

    def agree(self, value):
        return self._peers.agree(self.process_index, value)


def decided(*told):
    """The common decision of processes, each of which was `told` (success, reason, since)."""
    peers, actual = Peers(len(told)), [None] * len(told)

    def decide(rank):
        actual[rank] = Agreement(Replicas(peers, rank)).decide(*told[rank])

    threads = [threading.Thread(target=decide, args=(rank,)) for rank in range(len(told))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert actual == [actual[0]] * len(told)
    return actual[0]


def test_processes_meet():
    """No process goes on before the last one has come."""
    peers, seen = Peers(3), []

    def meet(rank):
        if rank == 0:
            time.sleep(0.1)
            seen.append("last")
        Agreement(Replicas(peers, rank)).meet()
        seen.append(rank)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen[0] == "last" and sorted(seen[1:]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("told", "decision"),
    [
        ([(False, "", 0.0)] * 3, Decision()),
        ([(False, "SIGTERM", 5.0), (True, "", 0.0), (False, "", 0.0)], Decision(success=True)),
        # The step is longer than the launcher's wait, so that it passes rank 1's signal to the others.
        (
            [(False, "SIGTERM", 1e9 + 1.5), (False, "SIGTERM", 1e9), (False, "SIGTERM", 1e9 + 1.5)],
            Decision(reason="SIGTERM on rank 1"),
        ),
        (
            [(False, "SIGTERM", 1e9 + 2), (False, "", 0.0), (False, "SIGINT", 1e9)],
            Decision(reason="SIGINT on rank 2"),
        ),
        (
            [(False, "", 0.0), (False, "SIGTERM", 1e9), (False, "SIGTERM", 1e9)],
            Decision(reason="SIGTERM on rank 1"),
        ),
        ([(False, "", 0.0), (False, "a reason", 1e9)], Decision(reason="told to stop on rank 1")),
    ],
)
def test_the_first_process_with_a_reason_is_named(told, decision):
    assert decided(*told) == decision


def waited(*processes):
    """What each process learns of the wait; a process is (whether its evaluation has finished, its reason)."""
    peers, actual = Peers(len(processes)), [None] * len(processes)

    def wait(rank):
        done, reason = processes[rank]
        actual[rank] = Agreement(Replicas(peers, rank)).wait(lambda given_up: done, lambda: reason)

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in range(len(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return actual


@pytest.mark.parametrize(
    ("processes", "known"),
    [
        ([(True, ""), (True, "")], True),
        ([(True, "SIGTERM"), (True, "")], True),
        ([(True, "SIGTERM"), (False, "")], False),
        ([(False, "SIGTERM"), (True, "")], False),
    ],
)
def test_all_processes_learn_alike_whether_the_evaluations_have_finished(processes, known):
    assert waited(*processes) == [known, known]
