"""Tests that benchmarks' processes end with the process that started them, however it ends."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from common.errors import UserError
from tests.benchmarks import wait_for
from timetotrain.launch import children, procfs

ROOT = pathlib.Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

BEATS = "from common.distributed import heartbeat as h; h.start(); import os, signal, sys, time; "
# A benchmark's process that starts a further one.
SLEEPS = (
    BEATS
    + "import subprocess; p = subprocess.Popen(['sleep', '120']); print(os.getpid(), p.pid, flush=True); "
)
PROGRAM = """
import concurrent.futures, os, sys
from timetotrain.launch import children
from common.errors import UserError
found = children.Children(grace=float(sys.argv[2]))
try:
    with found.signals, concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(found.run, [sys.executable, "-c", sys.argv[1]], os.environ, sys.stdout).result()
except UserError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def run(code: str, output: pathlib.Path) -> int:
    with open(output, "w") as file:
        return children.Children().run([sys.executable, "-c", BEATS + code], {**os.environ, "A": "1"}, file)


def program(code: str, grace: float = 30.0) -> tuple[subprocess.Popen, list[int]]:
    """Starts `PROGRAM`; returns it, and the processes that its benchmark names."""
    command = [sys.executable, "-c", PROGRAM, code, str(grace)]
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
        # A process keeps ignoring a signal that was ignored at its start, as in tests that run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    return started, [int(word) for word in started.stdout.readline().split()]


def has_ended(pid: int) -> bool:
    return procfs.state(pid) in ("", "Z")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_running(number: int) -> None:
    started, pids = program(SLEEPS + "time.sleep(120)")
    assert not any(map(has_ended, pids))
    started.send_signal(number)
    assert f"{signal.Signals(number).name}: what was running" in started.stdout.read()
    assert started.wait(60) == 128 + number
    wait_for(lambda: all(map(has_ended, pids)))


def test_a_process_ends_once_the_one_that_started_it_was_killed() -> None:
    started, (pid,) = program(BEATS + "print(os.getpid(), flush=True); time.sleep(120)")
    assert not has_ended(pid)
    started.kill()
    started.wait(60)
    wait_for(lambda: has_ended(pid))


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    started, pids = program(BEATS + deaf + SLEEPS.removeprefix(BEATS) + "time.sleep(120)", grace=0.5)
    started.terminate()
    assert started.wait(60) == 128 + signal.SIGTERM
    wait_for(lambda: all(map(has_ended, pids)))


def test_the_exit_status_is_the_commands(tmp_path) -> None:
    assert run("print(os.environ['A']); sys.exit(3)", tmp_path / "said") == 3
    assert (tmp_path / "said").read_text() == "1\n"
    assert run("os.kill(os.getpid(), 9)", tmp_path / "said") == 128 + 9


def test_a_crash_leaves_its_own_last_line(tmp_path) -> None:
    assert run("os.write(2, b'bad_alloc'); os.abort()", tmp_path / "said") == 128 + signal.SIGABRT
    assert (tmp_path / "said").read_text() == "bad_alloc"


def test_a_stopped_run_is_waited_for() -> None:
    watched = children.Children()._limits
    assert min(watched.stopped, watched.silent, watched.starting, watched.progress, watched.phase) > 1e9


def test_an_error_for_the_launcher_is_in_the_output(tmp_path) -> None:
    assert run("print('begun', flush=True); h.send(error='no data'); os._exit(2)", tmp_path / "said") == 2
    assert (tmp_path / "said").read_text() == "begun\nerror: no data\n"


def test_a_message_is_short_and_a_line_that_is_no_message_is_left_out(tmp_path) -> None:
    code = r"os.write(h._LINK._pipe, b'no JSON\n[]\n\xff\n'); h.send(error='\u00e9' * 5000); os._exit(2)"
    assert run(code, tmp_path / "said") == 2
    text = (tmp_path / "said").read_text()
    assert text.startswith("error: éé") and len(json.dumps(text)) < 2100


def test_what_a_process_leaves_behind_is_killed(tmp_path) -> None:
    assert run(SLEEPS.removeprefix(BEATS) + "h.send(result=0)", tmp_path / "said") == 0
    wait_for(lambda: has_ended(int((tmp_path / "said").read_text().split()[1])))


def test_a_command_that_cannot_start_is_one_line() -> None:
    with pytest.raises(UserError, match="^/no/where: No such file or directory; is the command right"):
        children.Children().run(["/no/where"], {}, sys.stdout)


def test_nothing_starts_after_the_signal(tmp_path) -> None:
    actual = children.Children(fix="try again")
    with actual.signals:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(
            children.EndedError, match="SIGTERM: what was running was ended; try again"
        ) as error:
            actual.run(["touch", tmp_path / "made"], {}, sys.stdout)
    assert error.value.exit_code == 128 + signal.SIGTERM and not (tmp_path / "made").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_session_is_killed_as_a_whole() -> None:
    script = "set -m; sleep 120 & echo $!; wait"  # The command has its own process group.
    leader = subprocess.Popen(
        ["bash", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    sleeper = int(leader.stdout.readline())
    assert len(procfs.session_members(leader.pid)) == 2 and procfs.children_of(leader.pid) == [sleeper]
    procfs.kill(procfs.session_members(leader.pid))
    assert leader.wait(30) == -signal.SIGKILL
    wait_for(lambda: has_ended(sleeper))


def test_the_work_of_a_process_is_counted():
    seconds, moved = procfs.work(os.getpid())
    began = time.process_time()
    while time.process_time() < began + 0.1:
        pass
    later = procfs.work(os.getpid())
    assert later[0] >= seconds + 0.05 and later[1] >= moved >= 0
    assert procfs.work(2**22 + 1) == (0.0, 0)  # Above the kernel's highest pid.


def test_a_process_whose_name_is_no_text_is_read():
    """The kernel cuts a name at 15 bytes, which may fall into a character."""
    code = (
        "open('/proc/self/comm', 'wb').write(b'\\xd0) \\xff'); print(flush=True); import time; time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.stdout.readline()
        assert procfs.state(process.pid) in ("R", "S")
        assert procfs.session_members(process.pid) == [process.pid]
    finally:
        process.kill()
        process.wait()
