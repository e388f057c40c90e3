"""Tests traces of training steps: where blocks are cut, what is recorded, what the trace's line says."""

import functools

import numpy as np
import pytest

from common.distributed import replicas as backends
from common.errors import UserError
from common.train import events, trace
from common.train.loop import Loop
from common.train.profile import MARK, Profile, Span
from tests.common.distributed.replicas import processes
from tests.common.train import toy


def losses_of(loop):
    return [x for event in loop.run() if isinstance(event, events.Trained) for x in event.losses]


def loop_of(folder=None, span=None, **changes):
    config = toy.config(quality_target=2.0, train_epochs=3, **changes)  # Blocks of four steps.
    loop = Loop(toy.Task(config), backends.make(config))
    loop.profile = span and Profile(Span(*span), folder)
    return loop


@pytest.mark.parametrize(
    "span, done, steps, parts",
    [
        ((3, 5), 0, 8, [2, 3, 3]),
        ((1, 8), 0, 8, [8, 0]),
        ((1, 2), 0, 8, [2, 6]),
        ((7, 8), 0, 8, [6, 2, 0]),
        ((7, 9), 0, 8, [6, 2, 0]),
        ((7, 9), 8, 8, [1, 7]),
        ((5, 30), 8, 8, [8, 0]),
        ((9, 10), 0, 8, [8]),
        ((1, 2), 8, 8, [8]),
        ((1, 2), 0, 0, [0]),
    ],
)
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
    assert losses_of(loop) == losses_of(loop_of())
    assert loop.profile.steps == span[1] - span[0] + 1
    found = trace.read(tmp_path / "trace")
    assert found.device == "CPU" and 0 < found.seconds < 60
    assert 0 <= found.idle < 1 and 0 <= found.waiting < 1 and found.exchanging == 0
    assert len(found.largest) == trace.LARGEST and 0 < sum(part for _, part in found.largest) <= 1
    line = found.line(loop.profile.steps)
    assert line.startswith(f"{loop.profile.steps} steps of ") and "CPU idle" in line and "\n" not in line


def test_a_run_that_ends_early_leaves_what_was_recorded(tmp_path):
    loop = loop_of(tmp_path, (2, 9))
    for event in loop.run():
        if isinstance(event, events.Trained):
            loop.stop("test")
    loop.profile.close()
    assert loop.profile.steps == 3 and trace.read(tmp_path).seconds > 0


def recorded(folder, backend):
    """(losses, recorded steps, operations that exchange) of a process; the first one records."""
    loop = loop_of(replicas=backend, num_replicas=2)
    plain = losses_of(loop)
    loop = loop_of(replicas=backend, num_replicas=2)
    main = loop.replicas.main
    loop.profile = Profile(Span(3, 4), folder if main else None)
    assert losses_of(loop) == plain
    return loop.profile.steps, trace.read(folder).exchanging if main else None


@pytest.mark.parametrize("backend", ["horovod", "multiworker"])
def test_of_several_processes_the_first_records(tmp_path, backend):
    call = functools.partial(recorded, tmp_path, backend)
    (first, exchanging), (second, _) = processes.run(backend, 2, {"recorded": call})["recorded"]
    assert (first, second) == (2, 0) and 0 < exchanging < 1


def space(*planes):
    """An XSpace of planes (name, lines); a line is (name, [(event, begin, end in us, {stat: text})])."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    made = xplane_pb2.XSpace()
    for name, lines in planes:
        plane = made.planes.add(name=name)
        stat = "tf_op" if "GPU" in name else "hlo_op"
        plane.stat_metadata[1].id, plane.stat_metadata[1].name = 1, stat
        for line_name, found in lines:
            line = plane.lines.add(name=line_name, timestamp_ns=1000)
            for event_name, begin, end, tf_op in found:
                number = len(plane.event_metadata) + 1
                plane.event_metadata[number].id, plane.event_metadata[number].name = number, event_name
                event = line.events.add(metadata_id=number, offset_ps=begin * 10**6)
                event.duration_ps = (end - begin) * 10**6
                if tf_op:
                    event.stats.add(metadata_id=1, str_value=tf_op)
    return made


def test_a_trace_of_a_gpu_is_read_from_its_streams():
    """100 us: kernels cover 50 of them on two streams that overlap, an exchange 20, waiting for a batch 10."""
    host = [
        ("python", [(MARK, 0, 100, "")]),
        ("t1", [("IteratorGetNextOp::DoCompute", 0, 10, ""), ("while/body/_1/while/x:Mul", 0, 90, "")]),
    ]
    gpu = [
        ("Stream #1(Compute)", [
            ("sgemm", 10, 40, "while/body/_1/while/net/layer1.0/Conv2D:Conv2D"),
            ("sgemm", 110, 900, "after/the/steps:Conv2D"),
        ]),
        ("Stream #2", [("ncclDevKernel_AllReduce", 30, 50, ""), ("volta", 50, 60, "net/fc/MatMul:MatMul")]),
        ("XLA Modules", [("module", 0, 100, "")]),
    ]  # fmt: skip
    found = trace.found(space(("/host:CPU", host), ("/device:GPU:0", gpu)))
    assert found.device == "GPU:0" and found.seconds == pytest.approx(100e-6)
    np.testing.assert_allclose([found.idle, found.waiting, found.exchanging], [0.5, 0.1, 0.2])
    assert [name for name, _ in found.largest] == [
        "layer1.0 Conv2D",
        "ncclDevKernel_AllReduce",
        "fc MatMul",
    ]
    np.testing.assert_allclose([part for _, part in found.largest], [0.5, 1 / 3, 1 / 6])


def test_a_compiled_program_on_a_cpu_is_read_from_its_operations():
    """A call that holds the others is not counted twice, nor is the end of an operation."""
    found_here = [
        ("call.1", 0, 60, "call.1"),
        ("dot.12", 10, 40, "dot.12"),
        ("end: dot.12", 40, 41, ""),
        ("add_fusion.3.clone", 40, 50, "add_fusion.3.clone"),
    ]
    found = trace.found(space(("/host:CPU", [("python", [(MARK, 0, 100, "")]), ("t1", found_here)])))
    assert found.idle == pytest.approx(0.6) and found.largest == [("dot", 0.75), ("add_fusion", 0.25)]


def test_a_trace_without_recorded_steps_says_nothing(tmp_path):
    assert trace.read(tmp_path) is None
    assert trace.found(space(("/host:CPU", [("t", [("x:Mul", 0, 1, "")])]))) is None
