"""Tests that child processes, and all that they started, end with their parent, however it ends."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.benchmarks import wait_for
from timetotrain.launch import children, procfs

ROOT = pathlib.Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

# A program whose command starts a further process, as run_and_time.sh does.
PROGRAM = """
import concurrent.futures, sys
from timetotrain.launch.children import Children
from common.errors import UserError
found = Children()
try:
    with found.ended_by_signals(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(found.run, ["bash", "-c", "sleep 120 & echo $!; wait; exit 3"]).result()
except UserError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def gone(pid: int) -> bool:
    return procfs.state(pid) in ("", "Z")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_program_that_is_ended_leaves_nothing_running(number: int) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    sleeper = int(program.stdout.readline())
    assert not gone(sleeper)
    program.send_signal(number)
    said = program.stdout.read()
    status = program.wait(60)
    if number != signal.SIGKILL:
        assert status == 128 + number and said.startswith(signal.Signals(number).name)
    wait_for(lambda: gone(sleeper))


def test_the_exit_status_is_the_commands() -> None:
    found = children.Children()
    assert found.run(["bash", "-c", "exit 3"]) == 3
    assert found.run(["bash", "-c", "kill -9 $$"]) == 128 + 9
    assert found.run(["bash", "-c", "echo $A"], env={**os.environ, "A": "1"}, stdout=subprocess.DEVNULL) == 0


def test_the_command_runs_in_the_folder_that_is_asked_for(tmp_path, monkeypatch) -> None:
    """The default is this process's folder; the guard program is found from any folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for folder in (None, "other"):
        with open(tmp_path / "said", "w") as output:
            assert children.Children().run(["pwd"], cwd=folder, stdout=output) == 0
        assert (tmp_path / "said").read_text() == f"{tmp_path / (folder or '')}\n"


def test_a_command_that_cannot_start_is_one_line(tmp_path) -> None:
    with open(tmp_path / "said", "w") as output:
        assert children.Children().run(["/no/where"], stderr=output) == 2
    said = (tmp_path / "said").read_text()
    assert said == "error: /no/where: No such file or directory; is the command right?\n"


@pytest.mark.parametrize("deaf", ["command", "what it started"])
def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(deaf) -> None:
    ignore = "trap '' TERM; "
    inner = f'bash -c "{ignore}sleep 120" & echo $!; wait'
    command = ignore + inner if deaf == "command" else inner
    guard = children.start(["bash", "-c", command], grace_seconds=1, stdout=subprocess.PIPE, text=True)
    sleeper = int(guard.stdout.readline())
    time.sleep(0.2)  # Time for the inner shell to start ignoring the signal.
    began = time.monotonic()
    guard.terminate()
    assert children.exit_status(guard.wait(30)) == 128 + signal.SIGKILL
    assert time.monotonic() - began > 0.9
    wait_for(lambda: gone(sleeper))


def test_a_process_that_ends_within_the_grace_period_keeps_its_status() -> None:
    script = "trap 'sleep 0.5; echo saved; exit 7' TERM; echo runs; while :; do sleep 0.01; done"
    guard = children.start(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert guard.stdout.readline() == "runs\n"
    guard.terminate()
    assert guard.stdout.read() == "saved\n" and guard.wait(30) == 7


def test_nothing_starts_after_the_signal(tmp_path) -> None:
    actual = children.Children(fix="try again")
    with actual.ended_by_signals():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(
            children.EndedError, match="SIGTERM: what was running was ended; try again"
        ) as error:
            actual.run(["touch", tmp_path / "made"])
    assert error.value.exit_code == 128 + signal.SIGTERM and not (tmp_path / "made").exists()
    assert signal.getsignal(signal.SIGTERM) != actual._on_signal


def test_a_session_is_killed_as_a_whole() -> None:
    script = "set -m; sleep 120 & echo $!; wait"  # The command has its own process group.
    leader = subprocess.Popen(
        ["bash", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    sleeper = int(leader.stdout.readline())
    assert procfs.session_members(leader.pid) and procfs.children_of(leader.pid) == [sleeper]
    assert children.kill_session(leader.pid) == 2
    assert children.exit_status(leader.wait(30)) == 128 + signal.SIGKILL
    wait_for(lambda: gone(sleeper))
    assert children.kill_session(leader.pid) == 0


# {Part of the checkout: its place in the parent}, as in the wheel.
MODULES = {
    "common/__init__.py": "common/__init__.py", "common/errors.py": "common/errors.py",
    "common/files.py": "common/files.py", "common/config": "common/config", "timetotrain/launch": "launch",
}  # fmt: skip
ELSEWHERE = """
import sys
from parent.common.config import benchmarks
from parent.launch.children import Children
print(benchmarks.command("resnet"), flush=True)
sys.exit(Children().run(["bash", "-c", "exit 5"]))
"""


def test_the_guard_is_found_under_another_parent(tmp_path) -> None:
    """The guard is found where the project is a part of another package."""
    for name, place in MODULES.items():
        target = tmp_path / "parent" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    for path in (tmp_path / "parent").rglob("*.py"):
        text = path.read_text().replace("from common", "from parent.common")
        path.write_text(text.replace("from timetotrain", "from parent"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, "parent.resnet\n"), done.stderr


def test_a_process_whose_name_is_no_text_is_read():
    """The kernel cuts a name at 15 bytes, which may fall into a character."""
    code = (
        "open('/proc/self/comm', 'wb').write(b'\\xd0) \\xff'); print(flush=True); import time; time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.stdout.readline()
        assert procfs.state(process.pid) in ("R", "S")
        assert procfs.session_members(process.pid) == [process.pid] and procfs.began(process.pid)
    finally:
        process.kill()
        process.wait()
