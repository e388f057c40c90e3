"""Tests that an elastic run reports each event once, over all loops that lost processes make it start."""

from __future__ import annotations

import types

import pytest

from common.config.clock import Block
from common.errors import UserError
from common.train import events
from timetotrain.run.elastic import Elastic


class LostError(Exception):
    """Stands in for the error of Horovod's operations when a process is gone."""


def block(index: int, steps: int = 4) -> Block:
    return Block(index, 4 * index + 4 - steps, steps, index + 1, index + 1)


def whole(index: int) -> list[events.Event]:
    one = block(index)
    return [
        events.BlockStarted(0.0, one),
        events.Progress(0.0, one.end_step, one),
        events.Trained(one, [1.0] * 4, [0.0] * 4),
        events.EvalRan(one, 0.0, 0.0),
        events.BlockStopped(0.0, one),
    ]


def again(index: int) -> list[events.Event]:
    """The events of a block whose checkpoint lacks only the result of the evaluation."""
    one = block(index, steps=0)
    return [
        events.BlockStarted(0.0, one),
        events.Trained(one, [], []),
        events.EvalRan(one, 0.0, 0.0),
        events.BlockStopped(0.0, one),
    ]


def evaluated(one: Block, value: float = 0.5) -> events.Evaluated:
    return events.Evaluated(one, 0.0, value, False, {})


START, STOP = events.RunStarted(0.0, 0), events.RunStopped(0.0, "aborted", 8, "")


def told(monkeypatch: pytest.MonkeyPatch, *loops: list[events.Event]) -> list[events.Event]:
    """The reported events of loops that lose a process at their end, except the last one."""
    left = list(loops)

    def run(_: object) -> object:
        yield from left.pop(0)
        if left:
            raise LostError

    replicas = types.SimpleNamespace(num_processes=3, peer_lost=lambda error: isinstance(error, LostError))
    config = types.SimpleNamespace(replicas="horovod")
    loop = types.SimpleNamespace(
        config=config, replicas=replicas, run=run, state=types.SimpleNamespace(step=0)
    )
    monkeypatch.setattr(Elastic, "_rejoin", lambda self: events.ReplicasChanged(0.0, 1, 4))
    found = list(Elastic(types.SimpleNamespace(loop=loop), lambda step: None).events())
    return [event for event in found if not isinstance(event, (events.Progress, events.ReplicasChanged))]


def lines(found: list[events.Event]) -> list[tuple[str, int | None]]:
    return [(type(e).__name__, e.block.index if hasattr(e, "block") else None) for e in found]


def logged(*found: events.Event) -> list[tuple[str, int | None]]:
    return lines([event for event in found if not isinstance(event, events.Progress)])


def test_a_block_whose_result_was_awaited_is_not_logged_again(monkeypatch) -> None:
    first = [START, *whole(0), events.BlockStarted(0.0, block(1))]
    second = [START, *again(0), evaluated(block(0, 0)), *whole(1), evaluated(block(1)), STOP]
    found = lines(told(monkeypatch, first, second))
    assert found == logged(*first, evaluated(block(0)), *whole(1)[1:], evaluated(block(1)), STOP)


def test_a_result_that_was_known_is_not_logged_again(monkeypatch) -> None:
    """The process is lost after the result, but before a checkpoint that contains it."""
    first = [START, *whole(0), evaluated(block(0))]
    second = [START, *again(0), evaluated(block(0, 0)), *whole(1), STOP]
    assert lines(told(monkeypatch, first, second)) == logged(*first, *whole(1), STOP)


def test_what_is_trained_again_is_logged_again_but_for_its_start(monkeypatch) -> None:
    first = [START, *whole(0), evaluated(block(0))]
    second = [START, *whole(0), evaluated(block(0), 0.6), STOP]
    found = told(monkeypatch, first, second)
    assert lines(found) == logged(*first, *whole(0)[1:], evaluated(block(0)), STOP)
    assert [e.value for e in found if isinstance(e, events.Evaluated)] == [0.5, 0.6]


def test_an_evaluation_that_was_cut_short_is_logged_when_it_ran(monkeypatch) -> None:
    """SIGKILL comes between the steps of a block and the end of its evaluation."""
    first = [START, *whole(0)[:3]]
    second = [START, *again(0), evaluated(block(0, 0)), STOP]
    assert lines(told(monkeypatch, first, second)) == logged(*first, *again(0)[1:], evaluated(block(0)), STOP)


class Left:
    """A run of three processes whose loop loses one; building the next loop loses as many more as `again` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, again: int, ended: bool = False):
        self._again, self._ended, self.rejoined = again, ended, 0
        self.replicas = types.SimpleNamespace(
            num_processes=3, peer_lost=lambda error: isinstance(error, LostError)
        )
        config = types.SimpleNamespace(replicas="horovod")
        self.loop = types.SimpleNamespace(
            config=config, replicas=self.replicas, run=self._run, state=types.SimpleNamespace(step=0)
        )
        monkeypatch.setattr(Elastic, "_rejoin", self._rejoin)

    def _run(self, _: object) -> object:
        yield STOP if self._ended or self.rejoined else START
        if not self.rejoined:
            raise LostError

    def _rejoin(self) -> events.ReplicasChanged:
        self.rejoined += 1
        if self.rejoined <= self._again:
            raise LostError
        return events.ReplicasChanged(0.0, 1, 4)

    def events(self) -> list[events.Event]:
        return list(Elastic(self, lambda step: None).events())


def test_a_process_that_is_lost_while_the_others_build_anew_is_one_more(monkeypatch) -> None:
    left = Left(monkeypatch, again=1)
    assert [type(e).__name__ for e in left.events()] == ["RunStarted", "ReplicasChanged", "RunStopped"]
    assert left.rejoined == 2


def test_no_more_losses_than_processes(monkeypatch) -> None:
    left = Left(monkeypatch, again=100)
    with pytest.raises(LostError):
        left.events()
    assert left.rejoined == 3


def test_a_process_that_is_lost_after_the_end_changes_nothing(monkeypatch) -> None:
    left = Left(monkeypatch, again=0, ended=True)
    with pytest.raises(LostError):
        left.events()
    assert left.rejoined == 0


def test_other_errors_end_the_run(monkeypatch) -> None:
    def run(_: object) -> object:
        yield START
        raise UserError("disk full")

    replicas = types.SimpleNamespace(num_processes=3, peer_lost=lambda error: True)
    config = types.SimpleNamespace(replicas="horovod")
    loop = types.SimpleNamespace(
        config=config, replicas=replicas, run=run, state=types.SimpleNamespace(step=0)
    )
    with pytest.raises(UserError, match="disk full"):
        list(Elastic(types.SimpleNamespace(loop=loop), lambda step: None).events())
    with pytest.raises(UserError, match="--checkpoint_dir"):
        Elastic(types.SimpleNamespace(loop=loop), None)
    config.replicas = "multiworker"
    with pytest.raises(UserError, match="need config.replicas=horovod"):
        Elastic(types.SimpleNamespace(loop=loop), lambda step: None)
