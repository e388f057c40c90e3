"""Tests traces of training steps: where blocks are cut, what is recorded."""

import functools

import pytest

from common.distributed import replicas as backends
from common.errors import UserError
from common.train import events
from common.train.loop import Loop
from common.train.profile import MARK, Profile, Span
from common.train.trace import shares
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import losses


def trace(folder):
    """The text of the only trace under a folder, which holds the names of its events."""
    (path,) = folder.rglob("*.xplane.pb")
    return path.read_bytes().decode("latin-1")


def loop_of(folder=None, span=None, **changes):
    config = toy.config(quality_target=2.0, train_epochs=3, **changes)  # Blocks of four steps.
    loop = Loop(toy.Task(config), backends.make(config))
    loop.profile = span and Profile(Span(*span), folder)
    return loop


@pytest.mark.parametrize(
    "span, done, steps, parts",
    [
        ((3, 5), 0, 8, [2, 3, 3]), ((1, 8), 0, 8, [8, 0]), ((1, 2), 0, 8, [2, 6]), ((7, 8), 0, 8, [6, 2, 0]),
        ((7, 9), 0, 8, [6, 2, 0]), ((7, 9), 8, 8, [1, 7]), ((5, 30), 8, 8, [8, 0]), ((9, 10), 0, 8, [8]),
        ((1, 2), 8, 8, [8]), ((1, 2), 0, 0, [0]),
    ],
)  # fmt: skip
def test_blocks_are_cut_where_recorded_steps_begin_and_end(span, done, steps, parts):
    assert Profile(Span(*span), None).parts(done, steps) == parts


@pytest.mark.parametrize(
    "text, message",
    [
        ("5", "give the first and the last step"),
        ("5:", "give the first and the last step"),
        ("a:b", "give the first and the last step"),
        ("-1:3", "give the first and the last step"),
        ("0:3", "this run has the steps 1:2000"),
        ("4:3", "this run has the steps 1:2000"),
        ("3:2001", "this run has the steps 1:2000"),
        ("1:1001", "1001 steps; a trace takes at most 1000"),
    ],
)
def test_bad_values_are_one_line(text, message):
    with pytest.raises(UserError, match=f"^--profile_steps={text}: {message}"):
        Span.parse(text, 2000)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/profile: cannot write"):
        Profile(Span(1, 2), tmp_path / "file/profile")


@pytest.mark.parametrize("span", [(2, 3), (3, 6)])
def test_a_recorded_run_computes_the_same_and_leaves_a_trace(tmp_path, span):
    """Within a block, and over two blocks with an evaluation between them."""
    loop = loop_of(tmp_path / "trace", span)
    assert losses(loop.run()) == losses(loop_of().run())
    assert loop.profile.steps == span[1] - span[0] + 1
    assert MARK in trace(tmp_path / "trace")
    parts = shares(tmp_path / "trace")
    assert sum(parts.values()) == pytest.approx(1) and all(0 <= part <= 1 for part in parts.values())
    assert parts["compute"] > 0 and not parts["exchange"]


def test_a_run_that_ends_early_leaves_what_was_recorded(tmp_path):
    loop = loop_of(tmp_path, (2, 9))
    for event in loop.run():
        if isinstance(event, events.Trained):
            loop.stop("test")
    loop.profile.close()
    assert loop.profile.steps == 3 and MARK in trace(tmp_path)


def recorded(folder, backend):
    """(recorded steps, trace) of a process; the first one records."""
    loop = loop_of(replicas=backend, num_replicas=2)
    plain = losses(loop.run())
    loop = loop_of(replicas=backend, num_replicas=2)
    main = loop.replicas.main
    loop.profile = Profile(Span(3, 4), folder if main else None)
    assert losses(loop.run()) == plain
    return loop.profile.steps, trace(folder) if main else None


@pytest.mark.parametrize("backend", ["horovod", "multiworker"])
def test_of_several_processes_the_first_records(tmp_path, backend):
    call = functools.partial(recorded, tmp_path, backend)
    (first, found), (second, _) = processes.run(backend, 2, {"recorded": call})["recorded"]
    assert (first, second) == (2, 0) and MARK in found
    assert {"horovod": "HorovodAllreduce", "multiworker": "CollectiveReduce"}[backend] in found
