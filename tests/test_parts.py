"""Tests how the tests are divided: the parts of `make test`, and what `make quick` leaves out."""

import pathlib
import signal
import subprocess
import sys

import pytest

from tests.benchmarks import wait_for
from timetotrain.launch import procfs
from tools import deadline, journal, run_tests, slow_tests

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_every_folder_of_a_part_exists_and_the_last_part_is_the_rest():
    *parts, rest = run_tests.parts()
    folders = [name for part in parts for name in part]
    assert all((ROOT / name).is_dir() for name in folders) and len(set(folders)) == len(folders)
    assert rest == ["tests", *(f"--ignore={name}" for name in folders)]


def test_make_quick_leaves_out_files_that_exist():
    head, *names = (ROOT / "tests/slow.txt").read_text().splitlines()
    assert head == slow_tests.HEAD.format(limit=slow_tests.LIMIT)
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_make_test_runs_slow_files_that_exist_each_with_a_reason():
    slow = (ROOT / "tests/slow.txt").read_text().splitlines()
    lines = (ROOT / "tests/headline.txt").read_text().splitlines()
    assert [name for name in lines if not name.startswith("#") and name not in slow] == []
    assert lines[0].startswith("#") and lines[-1] in slow


@pytest.mark.parametrize("flags", [["--headline"], ["--rest"]])
def test_make_test_and_make_test_all_divide_the_files(flags):
    """A slow file that is no headline is left to `make test-all`; a quick one and a headline are not."""
    files = [f"tests/resnet/test_{name}.py" for name in ("alexnet", "presets", "task")]
    assert all((ROOT / name).is_file() for name in files)
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-q", *flags, "tests/resnet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    selected = [name for name in files if name in done.stdout]
    assert selected == (files[1:] if flags == ["--headline"] else files[:1]), done.stdout


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("tests/test_parts.py", True),
        ("tests/common", True),
        ("tests/test_parts.py::test_x[1]", True),
        ("-x", False),
        ("not study", False),
        ("resnet", False),  # A folder of the project, and what -k may name.
    ],
)
def test_arguments_that_name_tests_run_these_alone(argument, names):
    assert run_tests.names_tests(argument) == names


PASSES = "def test_{name}(): assert not __import__('os').path.exists({stop!r})\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of two test files, of which the second fails as long as the file `stop` is there."""
    (tmp_path / "tests").mkdir()
    stop = tmp_path / "stop"
    stop.touch()
    for name, reason in (("first", "never"), ("second", str(stop))):
        (tmp_path / "tests" / f"test_{name}.py").write_text(PASSES.format(name=name, stop=reason))
    conftest = """
import os, pathlib, sys
sys.path.insert(0, {root!r})
from tools.deadline import END, Deadline
from tools.journal import SOURCES, Journal
def pytest_addoption(parser):
    parser.addoption("--journal")
def pytest_configure(config):
    if END in os.environ:
        config.pluginmanager.register(Deadline())
    if config.getoption("--journal"):
        config.pluginmanager.register(Journal(pathlib.Path(config.getoption("--journal")), os.environ[SOURCES]))
"""
    (tmp_path / "conftest.py").write_text(conftest.format(root=str(ROOT)))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -q --import-mode=importlib -p no:cacheprovider\n"
    )
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setenv(journal.SOURCES, "here")
    monkeypatch.delenv(deadline.END, raising=False)  # That of the run which has this test.
    return tmp_path


def test_by_file_each_file_has_a_process_and_the_journal_says_what_is_left(project, capfd):
    command = ["--by_file", "-n0", "--journal=journal.txt"]
    assert run_tests.main(command) == 1
    text = capfd.readouterr().err
    assert "part 2 of 2: tests/test_second.py" in text and "failed: tests/test_second.py (status 1)" in text
    (project / "stop").unlink()
    assert run_tests.main(["-vv", *command, "tests/test_second.py"]) == 0
    assert run_tests.main(command[:2]) == 0, "without a journal all are run"
    text = capfd.readouterr().err
    assert "part 1 of 1: tests/test_second.py" in text and "part 2 of 2: tests/test_second.py" in text
    assert len((project / "journal.txt").read_text().splitlines()) == 3
    with pytest.raises(SystemExit) as ended:
        run_tests.main(command)
    assert ended.value.code == 0 and "2 tests have passed before" in capfd.readouterr().out


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("minutes", [0, 10])
def test_what_the_minutes_do_not_reach_is_named(project, monkeypatch, capfd, minutes, processes):
    monkeypatch.setattr(run_tests, "number_of", lambda _: 1)
    monkeypatch.setenv(deadline.END, "")  # So that what `main` sets ends with the test.
    assert run_tests.main([f"-n{processes}", f"--minutes={minutes}", "tests/test_first.py"]) == 0
    text = capfd.readouterr().out
    assert ("not run for want of time: 1 tests of tests/test_first.py" in text) == (minutes == 0)
    assert ("1 passed" in text) == (minutes == 10)


def test_with_minutes_another_part_comes_first(monkeypatch):
    ran = []
    monkeypatch.setattr(run_tests, "number_of", lambda _: 12)
    monkeypatch.setattr(run_tests.Runner, "run_all", lambda _, commands, slots: ran.extend(commands) or [0])
    monkeypatch.setenv(deadline.END, "")
    assert run_tests.main(["--minutes=5"]) == 0
    parts = run_tests.parts()
    assert [command[3:] for command in ran] == parts[2:] + parts[:2]


@pytest.mark.parametrize("processes", [0, 2])
def test_other_sources_begin_another_journal(project, monkeypatch, processes):
    command = ["-q", f"-n{processes}", "--journal=journal.txt", "tests/test_first.py"]
    test_id = "tests/test_first.py::test_first"
    assert [run_tests.main(command) for _ in range(2)] == [0, run_tests.NO_TESTS], "none is left"
    assert (project / "journal.txt").read_text().splitlines() == ["here", test_id]
    monkeypatch.setenv(journal.SOURCES, "there")
    assert run_tests.main(command) == 0
    assert (project / "journal.txt").read_text().splitlines() == ["there", test_id]


def test_each_test_of_a_large_file_is_a_part(project, monkeypatch):
    monkeypatch.setattr(run_tests, "EACH_TEST", ("tests/test_second.py",))
    text = "import pytest\n@pytest.mark.parametrize('n', ['a b', 'c'])\ndef test_second(n): pass\n"
    (project / "tests" / "test_second.py").write_text(text)
    assert run_tests.parts_by_file(["-n0", "-vv"]) == [
        ["tests/test_second.py::test_second[a b]"],
        ["tests/test_second.py::test_second[c]"],
        ["tests/test_first.py"],
    ]


def test_in_two_slots_parts_run_at_a_time_and_print_whole(project, capfd):
    there = project / "there"
    wait = "import pathlib, time\ndef test_{0}():\n    pathlib.Path({1!r} + '{0}').touch()\n"
    wait += "    while not pathlib.Path({1!r} + '{2}').exists():\n        time.sleep(0.05)\n    print('{0} ends')\n"
    for name, other in (("first", "second"), ("second", "first")):
        text = wait.format(name, str(there), other) + "def test_more(): pass\n" * (name == "second")
        (project / "tests" / f"test_{name}.py").write_text(text)
    assert run_tests.main(["--by_file", "--slots=2", "-n0", "-s", "--journal=journal.txt"]) == 0
    out, err = capfd.readouterr()
    assert (
        out.count("1 passed") == 1
        and out.count("2 passed") == 1
        and "first ends" in out
        and "second ends" in out
    )
    assert "part 1 of 2: tests/test_second.py\n" in err, "most tests first"
    assert "part 2 of 2: ended after 0." in err
    assert len((project / "journal.txt").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["-k", "first"], [["tests/test_first.py"]]),
        (["tests/test_second.py::test_second"], [["tests/test_second.py::test_second"]]),
        (["tests", "-vvv"], [["tests/test_first.py"], ["tests/test_second.py"]]),
        (["-k", "neither"], []),
    ],
)
def test_by_file_takes_the_tests_that_the_arguments_select(project, arguments, parts):
    assert run_tests.parts_by_file(["-n0", *arguments]) == parts


def test_a_file_that_cannot_be_imported_ends_the_run(project):
    (project / "tests" / "test_first.py").write_text("import nothing_like_this\n")
    with pytest.raises(SystemExit, match="pytest cannot collect the tests"):
        run_tests.main(["--by_file", "-n0"])


def test_parts_need_at_least_one_slot(capsys):
    with pytest.raises(SystemExit):
        run_tests.main(["--slots=0"])
    assert "--slots=0: must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_pytest_its_workers_and_what_a_test_started(project, number):
    text = """
import os, pathlib, subprocess, time
def test_first():
    child = subprocess.Popen(["sleep", "60"])
    pathlib.Path("pids.partial").write_text(f"{os.getppid()} {os.getpid()} {child.pid}")
    os.rename("pids.partial", "pids")
    time.sleep(60)
"""
    (project / "tests" / "test_first.py").write_text(text)
    program = (
        f"import pathlib, sys\nfrom tools import run_tests\nrun_tests.ROOT = pathlib.Path({str(project)!r})\n"
        "sys.exit(run_tests.main(['-n', '1', 'tests/test_first.py', '-k', 'first']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for((project / "pids").exists)
    pids = [int(pid) for pid in (project / "pids").read_text().split()]
    assert all(procfs.state(pid) for pid in pids)
    process.send_signal(number)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    wait_for(lambda: all(procfs.state(pid) in ("", "Z") for pid in pids))


def test_processes_of_a_test_that_is_killed_end_with_it(tmp_path):
    call = (
        f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(60)"
    )
    program = (
        "import functools\nfrom tests.common.distributed.replicas import processes\n"
        f"processes.run('multiworker', 2, {{'call': functools.partial(exec, {call!r})}})"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    killed.kill()
    killed.wait()
    pids = [int(path.name) for path in tmp_path.iterdir()]
    wait_for(lambda: all(procfs.state(pid) in ("", "Z") for pid in pids))


def test_a_shallow_clone_has_a_number_too(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True)

    git("init", "-q", "whole")
    for _ in range(2):
        git("-C", "whole", "commit", "-q", "--allow-empty", "-m", "a commit")
    git("clone", "-q", "--depth=1", (tmp_path / "whole").as_uri(), "shallow")
    assert run_tests.number_of(tmp_path / "whole") == 2
    assert run_tests.number_of(tmp_path / "shallow") > 10**9
