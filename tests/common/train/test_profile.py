"""Tests traces of training steps: where blocks are cut, what is recorded."""

import functools
import math

import pytest

from common.distributed import replicas as backends
from common.errors import UserError
from common.train import events
from common.train.profile import MARK, Profile, Span
from common.train.programs import Programs
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import losses, run, stops


def trace(folder):
    """The text of the only trace under a folder, which holds the names of its events."""
    (path,) = folder.rglob("*.xplane.pb")
    return path.read_bytes().decode("latin-1")


def programs_of(**changes):
    config = toy.config(quality_target=2.0, train_epochs=3, **changes)  # Intervals of four steps.
    return Programs(toy.Task(config), backends.make(config))


def nothing(*_):
    pass


@pytest.mark.parametrize(
    "span, step, pauses",
    [
        ((3, 5), 0, [2, 5]), ((1, 8), 0, [8]), ((1, 2), 0, [2]), ((7, 8), 0, [6, 8]), ((7, 9), 0, [6, 8]),
        ((7, 9), 8, [9]), ((5, 30), 8, [16]), ((9, 10), 0, []), ((1, 2), 8, []),
    ],
)  # fmt: skip
def test_calls_end_where_recorded_steps_begin_and_end(span, step, pauses):
    """A pause at the interval's end, 8 or 16, leaves the evaluation out of the trace."""
    profile, end, actual = Profile(Span(*span), None), step + 8, []
    while step < end and (step := profile.next_pause(step, end)) < math.inf:
        actual.append(step)
    assert actual == pauses


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
    profile = Profile(Span(*span), tmp_path / "trace")
    assert losses(run(programs_of(), nothing, profile)) == losses(run(programs_of()))
    assert profile.steps == span[1] - span[0] + 1
    assert MARK in trace(tmp_path / "trace")


def test_a_run_that_ends_early_leaves_what_was_recorded(tmp_path):
    profile = Profile(Span(2, 9), tmp_path)
    run(programs_of(), stops(lambda e: isinstance(e, events.Trained)), profile)
    assert profile.steps == 3 and MARK in trace(tmp_path)


def recorded(folder, backend):
    """(recorded steps, trace) of a process; the first one records."""
    plain = losses(run(programs_of(replicas=backend, num_replicas=2)))
    programs = programs_of(replicas=backend, num_replicas=2)
    main = programs.replicas.main
    profile = Profile(Span(3, 4), folder if main else None)
    assert losses(run(programs, nothing, profile)) == plain
    return profile.steps, trace(folder) if main else None


@pytest.mark.parametrize("backend", ["horovod", "multiworker"])
def test_of_several_processes_the_first_records(tmp_path, backend):
    call = functools.partial(recorded, tmp_path, backend)
    (first, trace), (second, _) = processes.run(backend, 2, {"recorded": call})["recorded"]
    assert (first, second) == (2, 0) and MARK in trace
    assert {"horovod": "HorovodAllreduce", "multiworker": "CollectiveReduce"}[backend] in trace
