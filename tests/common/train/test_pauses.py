"""Tests what happens between two steps of a block: checkpoints by time, evaluations that a checkpoint carries over."""

import errno
import pathlib
import threading
import time

import numpy as np
import pytest

from common.config.optimizer import Lars
from common.distributed import replicas as backends
from common.errors import PeerLostError, UserError
from common.train import checkpoint, checkpoint_file, events, timing
from common.train.programs import Programs
from tests.benchmarks import wait_for
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import bits, losses, run, saves, stops

NEVER = 2.0


def make(replicas: str = "single", task: type = toy.Task, number: int = 1, **changes) -> Programs:
    processes.require(replicas)
    config = toy.config(replicas=replicas, num_replicas=number, quality_target=NEVER, **changes)
    return Programs(task(config), backends.make(config))


@pytest.mark.parametrize(
    "replicas, fields",
    [("single", {}), ("pjrt", {}), ("mirrored", {"number": 2})],
)
def test_checkpoints_within_a_block_change_nothing(tmp_path, replicas, fields):
    """Losses, evaluations and variables equal those of a run without them, and so does a run from one of them."""
    changes = {"steps_per_block": 20, "train_steps": 40, "batch_norm_span": 8, **fields}
    changes |= {"optimizer": Lars(base_learning_rate=1.0, weight_decay=1e-3)}
    whole, cut = (make(replicas, toy.Slow, **changes) for _ in range(2))
    expected = run(whole)
    history = run(cut, save=saves(tmp_path, 100), seconds=0.15)
    assert losses(history) == losses(expected) and values(history) == values(expected)
    assert bits(cut) == bits(whole)
    steps = [checkpoint_file.step_of(path) for path in checkpoint_file.checkpoints(tmp_path)]
    within = [step for step in steps if step % 20]
    assert len(within) >= 2 and {20, 40} <= set(steps)

    resumed = make(replicas, toy.Slow, **changes)
    for path in checkpoint_file.checkpoints(tmp_path):
        if checkpoint_file.step_of(path) > within[0]:
            path.unlink()
    assert checkpoint.restore_latest(resumed, tmp_path).step == within[0]
    again = run(resumed)
    assert losses(again) == losses(expected)[within[0] :]
    if fields.get("number", 1) == 1:
        assert bits(resumed) == bits(whole)


def values(history: list) -> list:
    return [(e.interval.end_step, e.value) for e in history if isinstance(e, events.Evaluated)]


class InWorker(toy.Task):
    """Its evaluations wait in a worker for the file `go` of a folder."""

    folder: pathlib.Path

    def __init__(self, config):
        super().__init__(config, True)
        self.folder = InWorker.folder

    def quality(self, sums, arrays):
        wait_for((self.folder / "go").exists)
        return super().quality(sums, arrays)


def test_a_stop_saves_while_earlier_evaluations_run_and_the_resumed_run_has_their_results(tmp_path):
    InWorker.folder = tmp_path
    changes = {"steps_per_block": 4, "train_steps": 16}
    first, saved = make(task=InWorker, **changes), tmp_path / "saved"
    third = stops(lambda e: isinstance(e, events.BlockStarted) and e.interval.index == 3)
    history = run(first, third, save=saves(saved))
    assert history[-1].reason == "SIGTERM" and values(history) == []
    step = checkpoint_file.step_of(checkpoint_file.checkpoints(saved)[-1])
    assert step == history[-1].step == 12

    (tmp_path / "go").touch()
    resumed, whole = (make(task=InWorker, **changes) for _ in range(2))
    restored = checkpoint.restore_latest(resumed, saved)
    assert restored.step == step
    history = run(resumed, pending=restored.pending)
    assert sorted(values(history)) == sorted(values(run(whole)))
    assert [end for end, _ in values(history)] == [4, 8, 12, 16]
    assert bits(resumed) == bits(whole)


@pytest.fixture
def slow_disk(monkeypatch) -> threading.Event:
    """Writing a checkpoint waits for this event."""
    ready, write = threading.Event(), checkpoint_file.write

    def wait(*arguments) -> None:
        assert ready.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoint_file, "write", wait)
    return ready


def test_a_checkpoint_is_written_from_a_copy_while_training_goes_on(tmp_path, slow_disk):
    loop, other = make(train_epochs=1), make(train_epochs=1)
    saver, before = checkpoint.Saver(tmp_path), bits(loop)
    saver.save(loop)
    run(loop)  # Does not wait for the disk.
    assert bits(loop) != before and not checkpoint_file.checkpoints(tmp_path)
    slow_disk.set()
    saver.finish(loop.replicas)
    assert checkpoint.restore_latest(other, tmp_path).step == 0 and bits(other) == before


@pytest.mark.parametrize("main", [True, False])
def test_a_checkpoint_that_cannot_be_written_is_told_by_process_0_alone(tmp_path, monkeypatch, main):
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_file, "write", full)
    loop = make(train_epochs=1)
    monkeypatch.setattr(loop.replicas, "process_index", 1 - int(main))
    monkeypatch.setattr(loop.replicas, "all_reduce_max", lambda value: max(value, 1 - int(main)))
    saver = checkpoint.Saver(tmp_path)
    saver.save(loop) if main else None
    match = "cannot write a checkpoint: No space left on device; free" if main else "its own message says why"
    with pytest.raises(UserError if main else PeerLostError, match=match):
        saver.finish(loop.replicas)
    if main:  # Also before the next save.
        saver.save(loop)
        saver._writing.exception(60)
        with pytest.raises(UserError, match=match):
            saver.check()


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path):
    loop, messages = make(train_epochs=1), []
    for step in (3, 7):
        loop.state.step.assign(step)
        path = checkpoint.save(loop, tmp_path)
    data = bytearray(path.read_bytes())
    place = data.index(b"weights/") + 200  # A bit of the first weight.
    data[place] ^= 1
    path.write_bytes(data)
    assert checkpoint.restore_latest(loop, tmp_path, messages.append).step == 3
    assert len(messages) == 1 and f"{path} is damaged" in messages[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint_00000003.npz", f"{path.name}.damaged"]


@pytest.mark.parametrize(
    "changed, message",
    [
        ("train-1", r"train-1 was 10 bytes, is 11 bytes \(1 of 3 files differ\)"),
        ("train-2", r"train-2 was absent, is 11 bytes \(1 of 4 files differ\)"),
        ("class/b", r"class/ was 1 files, is 2 files \(1 of 3 files differ\)"),
        ("README.md", ""),
    ],
)
def test_a_run_does_not_go_on_with_other_data(tmp_path, changed, message):
    folder, loop = tmp_path / "data", make(train_epochs=1)
    (folder / "class").mkdir(parents=True)
    (folder / "class/a").write_bytes(b"1")
    for name in ("train-0", "train-1"):
        (folder / name).write_bytes(b"1" * 10)
    loop.task.data_dir = folder
    checkpoint.save(loop, tmp_path / "saved")
    (folder / "records.json").write_text("a note that a run adds")
    assert checkpoint.restore_latest(loop, tmp_path / "saved").step == 0
    (folder / changed).write_bytes(b"1" * 11)
    if not message:
        assert checkpoint.restore_latest(loop, tmp_path / "saved").step == 0
        return
    with pytest.raises(UserError, match=f"trained on other data than --data_dir=.*: {message}"):
        checkpoint.restore_latest(loop, tmp_path / "saved")


def test_a_step_of_the_wall_clock_moves_no_time(monkeypatch):
    clock, shift = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + shift[0])
    times = []

    def each(event, _):
        if isinstance(event, events.BlockStopped):
            shift[0] -= 60.0
        # Progress is told after the step.
        if not isinstance(event, events.Progress | events.EvalRan):
            times.extend(event.times if isinstance(event, events.Trained) else [event.time])

    run(make(train_epochs=3), each)
    assert times == sorted(times) and times[-1] - times[0] < 60
    assert -181 < timing.jump() < -179


def test_readings_of_a_wall_clock_that_was_set_stay_within_their_bounds():
    readings = np.array([100.0, 101.0, 42.0, 43.0])  # Set back by 60 after the second.
    assert timing.mapped(readings, 1060.0, 1100.0, 1103.5).tolist() == [1103.5] * 4
    assert timing.mapped(readings[:2], 1000.0, 1099.0, 1102.0).tolist() == [1100.0, 1101.0]
    assert timing.mapped(readings[:0], 0.0, 1.0, 2.0).tolist() == []
