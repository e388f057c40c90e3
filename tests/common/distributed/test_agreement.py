"""Tests what processes agree on, and what must be equal in all of them; threads stand in for processes."""

import concurrent.futures
import threading
import time
import types

import pytest

from common.distributed import agreement, alike
from common.distributed.agreement import Agreement, Decision
from common.errors import UserError


def together(*calls):
    """What each call returns, or the text of its UserError; a call gets its process's `Agreement`."""
    meets, values = threading.Barrier(len(calls), timeout=30), [0] * len(calls)

    def process(rank):
        def all_reduce_max(value):
            assert -(1 << 62) <= value <= 1 << 62
            values[rank] = value
            meets.wait()
            most = max(values)
            meets.wait()
            return most

        replicas = types.SimpleNamespace(
            all_reduce_max=all_reduce_max, process_index=rank, num_processes=len(calls)
        )
        try:
            return calls[rank](Agreement(replicas))
        except UserError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(process, range(len(calls))))


def compared(*facts):
    return together(*[lambda a, fact=fact: a.same(fact) for fact in facts])


def test_processes_meet():
    """No process goes on before the last one has come."""
    order = []

    def meet(agreement, late):
        time.sleep(late)
        order.append(f"comes {late}")
        agreement.meet()
        order.append("goes on")

    together(*[lambda a, late=late: meet(a, late) for late in (0.1, 0, 0)])
    assert order[2:] == ["comes 0.1"] + ["goes on"] * 3


@pytest.mark.parametrize(
    ("reasons", "decision"),
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
        ([(False, "", 0.0), (False, "a reason", 1e9)], Decision(reason="a reason on rank 1")),
    ],
)
def test_the_first_process_with_a_reason_is_named(reasons, decision):
    assert together(*[lambda a, reason=reason: a.decide(*reason) for reason in reasons]) == [decision] * len(
        reasons
    )


@pytest.mark.parametrize(
    ("processes", "finished"),
    [
        ([(True, ""), (True, "")], True),
        ([(True, "SIGTERM"), (True, "")], True),
        ([(True, "SIGTERM"), (False, "")], False),
        ([(False, "SIGTERM"), (True, "")], False),
    ],
)
def test_all_processes_learn_alike_whether_the_evaluations_have_finished(processes, finished):
    """A process is (whether its evaluation has finished, its reason to stop)."""
    waits = [lambda a, p=p: a.wait(lambda given_up: p[0], lambda: p[1]) for p in processes]
    assert together(*waits) == [finished, finished]


def test_equal_facts_pass_in_any_order():
    assert compared({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1", "b": "2"}) == [None] * 3


@pytest.mark.parametrize("differs", [1, 2])
def test_a_difference_is_named_in_every_process(differs):
    facts = [{"a": "1", "rate": "0.1"} for _ in range(3)]
    facts[differs]["rate"] = "0.2"
    line = f"rate differs: rank 0 has 0.1, rank {differs} has 0.2; give every process the same"
    assert compared(*facts) == [line] * 3


def test_a_name_that_only_one_process_has_and_further_ones_are_named():
    line = "a differs: rank 0 has 1, rank 1 has 2 (and 1 more: $XLA_FLAGS); give every process the same"
    assert compared({"a": "1"}, {"a": "2", "$XLA_FLAGS": "--x \u00e9"}) == [line] * 2


@pytest.mark.parametrize("refuses", [0, 2])
def test_a_process_that_does_not_start_says_why_in_every_process(refuses, monkeypatch):
    monkeypatch.setattr(agreement, "_LEAVE_SECONDS", 0)

    def start(own, rank):
        return (
            own.refuse("--batch: no such flag") if rank == refuses else own.same({"rate": "1", "seed": "2"})
        )

    lines = together(*[lambda own, rank=rank: start(own, rank) for rank in range(3)])
    assert lines == [f"rank {refuses} does not start: --batch: no such flag"] * 3


def test_files_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(bytes(range(256)) * 4096)
    (tmp_path / "y").write_bytes(b"small")
    (tmp_path / ".hidden").touch()
    before = alike.of_files(tmp_path, 4)
    assert before.startswith("2 files of 0.001 GB (")
    (tmp_path / "y").write_bytes(b"smaLl")
    assert alike.of_files(tmp_path, 4) != before
    (tmp_path / "y").write_bytes(b"small")
    assert alike.of_files(tmp_path, 4) == before
    (tmp_path / "y").rename(tmp_path / "z")
    assert alike.of_files(tmp_path, 4) != before
    with monkeypatch.context() as patch:  # Of many large files, it reads some.
        patch.setattr(alike, "_MOST_READ", 1 << 20)
        read = []
        patch.setattr(alike, "_sample", lambda path, *_: read.append(path.name))
        alike.of_files(tmp_path, 1000)
    assert read == ["x"]
    with pytest.raises(UserError, match=r"^--data_dir=.*: there is no such folder, or no file in it; give"):
        alike.of_files(tmp_path / "none", 4)


def test_sizes_of_the_data_s_files():
    sizes = alike.of_sizes({"a": 10, "b/": 2})
    assert sizes == alike.of_sizes({"b/": 2, "a": 10}) != alike.of_sizes({"a": 11, "b/": 2})


def test_a_configuration_has_a_fact_for_each_field():
    assert alike.of_config({"a": 1, "b": {"c": (2.0,)}}) == {"config.a": "1", "config.b.c": "(2.0,)"}


def test_the_code_counts(monkeypatch, tmp_path):
    for folder in ("common", "timetotrain", "mnist"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "task.py").write_text("a = 1\n")
    monkeypatch.setattr(alike, "ROOT", tmp_path)
    before = alike.code()
    (tmp_path / "mnist/task.py").write_text("a = 2\n")
    assert alike.code() != before
