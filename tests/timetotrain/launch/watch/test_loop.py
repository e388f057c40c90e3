"""Tests how the launcher watches processes, with small ones that need no TensorFlow."""

import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types

import pytest

from compliance.api import check
from tests.benchmarks import wait_for
from timetotrain.launch import procfs
from timetotrain.launch.watch import progress
from timetotrain.launch.watch.worker import Lines

ROOT = pathlib.Path(__file__).resolve().parents[4]
FULL = "error: the disk is full; free some space"
# Long enough for a busy machine; a test that waits for a limit makes that one shorter.
LIMITS = {"settle": 0.3, "failure": 30, "grace": 30, "stopped": 1, "silent": 60, "starting": 60}


def arguments(orders, processes=2, limits=(), restarts=0, command=()):
    """The launcher's command line for fake workers with `orders`, or for another `command`."""
    seconds = [f"--{name}_seconds={value}" for name, value in {**LIMITS, **dict(limits)}.items()]
    worker = [sys.executable, "-m", "tests.timetotrain.launch.watch.fake_worker", json.dumps(orders)]
    launcher = [
        sys.executable, "-m", "timetotrain", "launch", "--replicas=multiworker", f"--processes={processes}",
    ]  # fmt: skip
    line = [*launcher, *seconds, f"--max_restarts={restarts}", "--", *(command or worker)]
    return [*line, "--checkpoint_dir=unused"] if restarts else line


def launch(orders, processes=2, **limits):
    """The launcher's result and the workers that still run."""
    mark = f"{time.time_ns()}-{os.getpid()}"
    result = subprocess.run(
        arguments({**orders, "mark": mark}, processes, limits.items()), cwd=ROOT, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    return result, left_over(mark)


def left_over(mark):
    actual = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                actual.append(path.parent.name)
        except OSError:
            continue
    return actual


def catching(mark):
    """How many processes with the mark, the launcher among them, catch SIGTERM: their heartbeats have begun."""
    texts = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in left_over(mark)]
    masks = [int(re.search(r"^SigCgt:\s*(\w+)", text, re.M)[1], 16) for text in texts]
    return sum(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def errors(result):
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def test_an_announced_status_is_a_result_and_lines_of_other_ranks_than_0_carry_their_rank():
    result, processes = launch({"result": 1, "steps": 5})
    assert (result.returncode, processes) == (1, [])
    assert result.stdout == "rank 0 done\n"
    assert result.stderr == "rank 1: rank 1 done\n"


@pytest.mark.parametrize(
    "rank, fault, text, code",
    [
        (0, "kill", "rank {} was killed by SIGKILL", 137),
        (1, "abort", "rank {} was killed by SIGABRT", 134),
        (0, "stop", "rank {} is frozen: a signal stopped it N s ago", 3),
        (1, "raise", "rank {} ended with exit status 1", 1),
        (0, "exit 0", "rank {} ended with exit status 0, before the run did", 1),
        (1, FULL, "rank {} failed: the disk is full; free some space", 2),
        (0, "term", "rank {} received SIGTERM: the run stopped", 143),
        (1, "aborted error: bad data", "rank {} failed: bad data", 2),
    ],
)
def test_a_fault_ends_every_process_with_one_message_naming_the_rank(rank, fault, text, code):
    result, processes = launch({str(rank): fault, "steps": 10000})
    assert (result.returncode, processes) == (code, [])
    # The number of seconds depends on the machine.
    lines = [re.sub(r" \d+ s ago", " N s ago", line) for line in errors(result)]
    assert lines == [f"error: {text.format(rank)}; all 2 processes have ended"]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_launcher_asked_for_is_not_the_reason(rank):
    """The other process reports the launcher's own SIGTERM as an error during its initialization."""
    result, processes = launch({f"{rank} begins": "exit 7", "initializes": True, "steps": 10000})
    assert (result.returncode, processes) == (7, [])
    assert errors(result) == [f"error: rank {rank} ended with exit status 7; all 2 processes have ended"]


def test_a_hang_up_that_was_ignored_stays_ignored():
    """nohup ignores SIGHUP before it starts the launcher."""
    line = arguments({"steps": 25})
    process = subprocess.Popen(
        ["nohup", *line], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: process.poll() is not None or "fake_worker" in _children_of(process.pid))
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "rank 0 done" in output


def _children_of(pid: int) -> str:
    return " ".join(pathlib.Path(f"/proc/{child}/cmdline").read_text() for child in procfs.children_of(pid))


@pytest.mark.parametrize("stream", ["0", "1", "2"])
def test_a_closed_standard_stream_is_the_null_device(stream):
    line = ["sh", "-c", f'exec "$@" {stream}>&-', "sh", *arguments({"steps": 5})]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("place", [">/dev/full", "2>/dev/full", "2>&1 | true; exit ${PIPESTATUS[0]}"])
def test_output_that_nobody_takes_changes_no_status(place):
    line = ["bash", "-c", f'"$@" {place}', "bash", *arguments({"steps": 5})]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "status, text",
    [
        (255, "ended with exit status 255"),  # `sys.exit(-1)`, ssh: 127 is no signal.
        (137, "was killed by SIGKILL"),
    ],
)
def test_only_a_status_that_stands_for_a_signal_is_one(status, text):
    command = arguments({}, limits=[("settle", 0)], command=["sh", "-c", f"exit {status}"])
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == status and len(errors(result)) == 1
    assert text in errors(result)[0] and errors(result)[0].startswith("error: rank ")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "fault, code, text",
    [("exit 0", 1, "ended with exit status 0, before"), ("sleep", 3, "is frozen: no sign of life")],
)
def test_a_process_that_never_begins_is_named_once_another_has(rank, fault, code, text):
    limits = {"silent": 5, "starting": 5} if fault == "sleep" else {}
    result, processes = launch({f"{rank} imports": fault, "steps": 10000}, **limits)
    assert (result.returncode, processes) == (code, [])
    assert len(errors(result)) == 1 and errors(result)[0].startswith(f"error: rank {rank} {text}")


def test_a_process_without_heartbeats_counts_as_frozen():
    result, processes = launch({"1": "deaf", "steps": 10000}, silent=5, starting=5)
    assert (result.returncode, processes) == (3, [])
    assert re.match(r"error: rank 1 is frozen: no sign of life for \d+ s", errors(result)[0])


def test_a_run_that_stands_still_ends_with_the_stacks_and_the_rank_that_the_others_wait_for():
    orders = {"0": "hang in sum", "1": "hang in input"}
    result, processes = launch({**orders, "steps": 10000}, progress=1, phase=2, failure=2)
    assert (result.returncode, processes) == (3, [])
    assert re.search(
        r"error: rank 1 makes no progress: it waits for its input for \d+ s, after step 6;", result.stderr
    )
    for rank, prefix in enumerate(("", "rank 1: ")):
        assert f"warning: stuck: rank {rank} " in result.stderr
        assert re.search(rf"^{prefix}  File .*fake_worker.py.* in fail$", result.stderr, re.M)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "guilty, other, does",
    [
        ({"part": "step"}, {"part": "sum"}, "computes"),
        ({"part": "input"}, {"part": "step"}, "waits for its input"),
        ({"phase": "ends a block"}, {"phase": "ends a block", "waits": True}, "ends a block"),
        ({"phase": "ends a block"}, {"phase": "evaluates"}, "ends a block"),
        ({"step": 5, "part": "sum"}, {"part": "input"}, "waits for the sums of all ranks"),
    ],
)
def test_the_rank_that_hangs_is_named_not_the_one_that_waits_for_it(rank, guilty, other, does):
    facts_of = [{"phase": "trains", "step": 6, **facts} for facts in (guilty, other)]
    workers = [types.SimpleNamespace(rank=abs(rank - i), facts=facts) for i, facts in enumerate(facts_of)]
    detector = progress.Detector(least=1, phase=2)
    assert not detector.stuck(workers, 0)
    worker, text = detector.stuck(workers, 20)[0]
    assert worker.rank == rank and text.startswith(f"{does} for 20 s, after step ")


# A worker's processor seconds and bytes after ten seconds of a phase whose bound is one second.
@pytest.mark.parametrize("work, stuck", [((9.9, 0), False), ((0, 20_000), False), ((0.4, 5_000), True)])
def test_a_long_phase_without_steps_goes_on_while_its_process_works(work, stuck, monkeypatch):
    """A compilation or a checkpoint of hours is no reason to end a run."""
    facts = {"phase": "evaluates", "step": 5, "pid": 1}
    workers, detector = [types.SimpleNamespace(rank=0, facts=facts)], progress.Detector(least=0.1, phase=1)
    monkeypatch.setattr(progress.procfs, "work", lambda pid: (0.0, 0))
    assert not detector.stuck(workers, 0)
    monkeypatch.setattr(progress.procfs, "work", lambda pid: work)
    assert bool(detector.stuck(workers, 9.5)) == stuck
    assert detector.stuck(workers, 11)  # Ten times the bound, whatever it does.


@pytest.mark.parametrize("waits, stuck", [(True, False), (False, True)])
def test_polls_in_an_exchange_are_no_work(waits, stuck, monkeypatch):
    """Rank 0 polls, as Horovod does, while rank 1 hangs; if both wait, the third may be on another host."""
    facts = [{"phase": "evaluates", "step": 9, "waits": True, "pid": 1}, {"phase": "trains", "waits": waits}]
    workers = [types.SimpleNamespace(rank=rank, facts=each) for rank, each in enumerate(facts)]
    detector, works = progress.Detector(least=1, phase=100), iter(range(9))
    monkeypatch.setattr(progress.procfs, "work", lambda pid: (next(works) * 1000.0, 0))
    for now, step in ((0, 4), (0.1, 5), (0.2, 6)):
        facts[1]["step"] = step
        assert not detector.stuck(workers, now)
    assert [worker.rank for worker, _ in detector.stuck(workers, 50)] == [1, 0] * stuck
    assert detector.stuck(workers, 101)


@pytest.mark.parametrize("settle, asks", [(20, False), (0.1, True)])
def test_a_process_that_failed_may_end_its_checkpoint(settle, asks):
    """The launcher hears of the error first, and ends the others; the one that saves has the grace, asked or not."""
    code = (
        "import signal, time; from common.distributed import heartbeat as h; h.start(); h.phase(h.SAVES); "
        "signal.signal(15, lambda *_: print('asked')); h._LINK._beat_once(); h.send(error='a fault'); "
        "end = time.monotonic() + 1.5\nwhile time.monotonic() < end: time.sleep(0.1)\n"
        "print('saved'); raise SystemExit(2)"
    )
    limits = [("settle", settle), ("failure", 0.7), ("grace", 20)]
    line = arguments({}, 1, limits, command=[sys.executable, "-uc", code])
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (2, "asked\n" * asks + "saved\n")
    assert "rank 0 failed: a fault" in ended.stderr


def test_one_process_that_works_holds_up_the_others_without_an_alarm():
    """The others wait for a rank that saves: a phase without steps has its own bound."""
    workers = [types.SimpleNamespace(rank=rank, facts={"phase": "trains", "step": 5}) for rank in range(2)]
    detector = progress.Detector(least=60, phase=1000)
    for now in range(3):
        workers[0].facts["step"] = workers[1].facts["step"] = now
        assert not detector.stuck(workers, now)
    workers[0].facts["phase"] = "saves a checkpoint"
    detector.stuck(workers, 3)
    assert not detector.stuck(workers, 900)
    assert [worker.rank for worker, _ in detector.stuck(workers, 1004)] == [0, 1]
    # A bound is 20 times the longest step.
    workers[0].facts.update(phase="trains", step=3)
    workers[1].facts["step"] = 3
    assert not detector.stuck(workers, 1005)
    assert not detector.stuck(workers, 1005 + 900)


@pytest.mark.parametrize(
    "orders, text",
    [
        ({"0": "lost", "1": "error: rank 1 computed wrong"}, "rank 1 failed: rank 1 computed wrong; all"),
        # As on a host without the faulty rank.
        ({"0": "lost"}, "rank 0 ended, because rank 1 computed wrong; all"),
        ({"1": "abort: std::bad_alloc"}, "rank 1 was killed by SIGABRT: out of memory; use a smaller"),
        (
            {"0": "abort: JAX distributed service: unhealthy tasks: /job:jax_worker/replica:0/task:1"},
            "rank 0 lost rank 1, which no longer answers",
        ),
    ],
)
def test_the_message_says_the_reason_of_the_rank_that_has_it(orders, text):
    result, _ = launch({**orders, "steps": 10000}, settle=20 if len(orders) == 2 else 0.3)
    assert errors(result)[0].startswith(f"error: {text}")
    if "no longer answers" in text:  # The library's SIGABRT is not the run's: start again.
        assert result.returncode == 75


def test_killed_processes_leave_no_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    launch({"1": "leave a file, and be killed", "steps": 10000})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("saves, code, restarts", [(False, 137, 1), (True, 0, 2)])
def test_a_failed_run_starts_again(saves, code, restarts, tmp_path):
    """Restarts from one checkpoint have a limit; those from a newer one are counted anew."""
    orders = {"0": "kill", "attempts": str(tmp_path / "attempt"), "faulty": 2, "saves": saves, "steps": 8}
    line = arguments(orders, limits=[("settle", 0.1)], restarts=1)
    result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stderr
    assert ["restart 1 of 1: from the newest checkpoint, in 1 s"] * restarts == [
        line for line in result.stderr.splitlines() if line.startswith("restart ")
    ]
    assert f"restarted {restarts} times; " in result.stderr


@pytest.mark.parametrize("trained", [False, True])
def test_bad_input_is_no_reason_to_start_again(trained, tmp_path):
    """An error of status 2 after a trained step may be a full disk that somebody frees."""
    body = "from common.distributed import heartbeat as h; h.at_step(3 + %d); h.start(); h.send(start=3)"
    body += "; h._LINK._beat_once(); h.send(error='x'); raise SystemExit(2)"
    line = arguments({}, 1, [("settle", 0.1)], 1, [sys.executable, "-c", body % trained])
    result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and ("restart 1 of 1" in result.stderr) == trained


def test_a_run_that_is_stopped_while_it_starts_does_not_start_again():
    line = arguments({}, 2, [("settle", 0.1)], 1, ["sh", "-c", "kill -TERM $$"])
    result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 143 and "restart" not in result.stderr


def test_the_first_of_several_faults_is_named(tmp_path):
    orders = {"1": FULL, "0": FULL, "2": "kill", "meet": str(tmp_path)}
    result, processes = launch({**orders, "steps": 10000}, processes=3, settle=20)
    assert processes == [] and len(errors(result)) == 1
    assert "rank 2 was killed by SIGKILL" in result.stderr


def test_an_abort_is_not_the_cause_where_another_process_has_told_an_error(tmp_path):
    """jax aborts a process that has lost the one with its coordination service."""
    orders = {"0": FULL, "1": "abort late", "meet": str(tmp_path)}
    result, processes = launch({**orders, "steps": 10000}, settle=20)
    assert processes == [] and len(errors(result)) == 1
    assert "rank 0 failed: the disk is full" in result.stderr


def test_a_process_that_ignores_its_signal_is_killed_after_the_grace():
    result, processes = launch({"1": "term", "stubborn": True, "steps": 10000}, grace=1)
    assert (result.returncode, processes) == (143, [])
    assert "rank 1 received SIGTERM: the run stopped, but not all processes answered" in result.stderr


@pytest.mark.parametrize("rank", [0, 2])
def test_a_signal_in_a_long_step_is_that_of_the_rank_that_received_it(rank):
    """The launcher passes the signal to the others before the step ends, and all stop after that step."""
    result, processes = launch({str(rank): "term", "long": 1.5, "steps": 10000}, processes=3)
    assert (result.returncode, processes) == (143, [])
    assert errors(result) == [
        f"error: rank {rank} received SIGTERM: the run stopped; all 3 processes have ended"
    ]


def test_processes_left_by_a_process_are_ended_too():
    result, processes = launch({"1": "orphan", "steps": 10000})
    assert (result.returncode, processes) == (137, [])


@pytest.mark.parametrize(
    "number, stubborn",
    [(signal.SIGTERM, True), (signal.SIGINT, False), (signal.SIGQUIT, False), (signal.SIGUSR1, False)],
)
def test_a_signal_to_the_launcher_reaches_every_process(number, stubborn):
    mark = f"{time.time_ns()}-{number}"
    orders = {"steps": 10000, "mark": mark, "stubborn": stubborn}
    line = arguments(orders, limits=[("grace", 2)] if stubborn else [])
    launcher = subprocess.Popen(
        line, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # A process keeps ignoring a signal that was ignored at its start, as in tests that run in the background.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    wait_for(lambda: catching(mark) == 3)
    launcher.send_signal(number)
    _, text = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + number
    assert f"{number.name} to the launcher: the run stopped" in text
    assert left_over(mark) == []


def test_a_signal_that_comes_after_a_failure_is_not_the_reason_but_ends_the_restarts(tmp_path):
    orders = {"1": "kill", "attempts": str(tmp_path / "rank"), "steps": 10000}
    line = arguments(orders, limits={"settle": 5, "failure": 5}, restarts=9)
    process = subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    # The kernel lists a process until its parent, the launcher, has taken note of its end.
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: len(children.read_text().split()) == 1)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 137 and "restart" not in text
    assert "error: rank 1 was killed by SIGKILL; all 2 processes have ended" in text


def test_without_their_launcher_the_processes_stop():
    mark = f"{time.time_ns()}-gone"
    launcher = subprocess.Popen(arguments({"steps": 10000, "mark": mark}), cwd=ROOT, start_new_session=True)
    wait_for(lambda: catching(mark) == 3)
    launcher.kill()
    launcher.wait()
    wait_for(lambda: not left_over(mark))


def test_a_slow_process_is_named_and_not_ended():
    line = arguments({"input": {"2": 0.2}, "steps": 1000}, 3, limits={"slow": 0.6})
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True) as launcher:
        # Heartbeats come at different steps, so that the times are approximate.
        start = "warning: rank 2 is slow: it waits for its input for "
        assert any(line.startswith(start) for line in launcher.stderr)
        launcher.terminate()
        assert "error: SIGTERM to the launcher: the run stopped" in launcher.stderr.read()


def test_a_slow_process_is_named_once_a_minute():
    workers = [types.SimpleNamespace(rank=rank, facts={}) for rank in range(3)]
    detector, warnings = progress.SlowDetector(10), []
    for step in range(0, 90, 10):  # A step takes a second.
        for worker in workers:
            seconds = {"input": 0.01 * step, "step": (0.5 if worker.rank == 1 else 0.1) * step}
            worker.facts = {"step": step, "own_seconds": seconds}
        warnings += [(step, text) for text in detector.look(workers, step)]
    line = "warning: rank 1 is slow: it computes for 0.50 s a step, the others for 0.10 s"
    assert warnings == [(10, line), (70, line)]


def test_the_launcher_ends_the_log_of_a_killed_rank_0(tmp_path):
    path = tmp_path / "result_0.txt"
    result, _ = launch({"0": "kill", "log": str(path), "steps": 10000})
    assert result.returncode == 137
    assert f"{path} ends as aborted" in result.stderr
    last = json.loads(path.read_text().splitlines()[-1].partition(" ")[2])
    assert last["key"] == "run_stop" and last["metadata"]["status"] == "aborted"
    assert last["metadata"]["reason"] == "rank 0 was killed by SIGKILL"
    assert [p.name for p in tmp_path.iterdir()] == ["result_0.txt"]
    # The log is sound, but ends early: no evaluation, hence no quality and no block.
    assert not [f for f in check([path]).findings if f.rule.startswith("line")]


def test_a_signal_between_two_starts_ends_the_launcher():
    """Also as process 1 of a container, whose signals the kernel drops if nobody catches them."""
    line = arguments({"0 begins": "exit 7", "steps": 10000}, restarts=9)
    process = subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert any(
        text.startswith("restart 3 of 9: from the newest checkpoint, in 4 s") for text in process.stderr
    )
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 143 and "error: SIGTERM to the launcher: the run stopped" in text


@pytest.mark.parametrize("allowed", [True, False])
def test_a_process_may_print_a_megabyte_between_two_looks(allowed, monkeypatch):
    if not allowed:  # The user's pipes have taken what the system allows them.
        monkeypatch.setattr(fcntl, "fcntl", lambda *_: os.close(-1))
    begin, end = os.pipe()
    with open(end, "wb", buffering=0) as writes:
        lines = Lines(open(begin, "rb", buffering=0))  # noqa: SIM115
        os.set_blocking(end, False)
        text = b"a line of 16 b.\n" * 65536
        count = writes.write(text)
        assert count == (len(text) if allowed else 65536)
        assert len(list(lines.read())) == count / 16
        lines.close()
