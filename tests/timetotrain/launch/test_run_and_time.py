"""Tests run_and_time.sh: the command that it shows, the signals that it passes on, and the runs of a series."""

import os
import pathlib
import shlex
import signal
import subprocess
import sys

import pytest

from common.config.benchmarks import NAMES

ROOT = pathlib.Path(__file__).resolve().parents[3]


def script(benchmark, *flags, **environment):
    return subprocess.run(
        [str(ROOT / benchmark / "run_and_time.sh"), *flags], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("how", [{"PRINT_COMMAND": "1"}, {}])
def test_run_and_time_shows_its_command_and_runs_nothing(how, tmp_path):
    flags = () if how else ("--print_command",)
    result = script(
        "resnet", *flags, SYSTEM="v100-8", RESULT_DIR=str(tmp_path / "r"), PYTHON="python3", **how
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        "python3 -m timetotrain launch --replicas=horovod --processes=8 --settings=v100-8 -- python3 -m resnet "
        f"--system=v100-8 --data_dir=DATA_DIR --result_dir={tmp_path}/r\n"
    )
    assert not (tmp_path / "r").exists()


def test_run_and_time_starts_its_own_benchmark():
    result = script("ptb", "--print_command", PYTHON="python3")
    assert not result.stderr
    assert result.stdout.startswith("python3 -m ptb --system=cpu-tiny --data_dir=.cache/ptb-tiny ")
    for name in NAMES:
        path = ROOT / name / "run_and_time.sh"
        assert path.read_text() == (ROOT / "ptb/run_and_time.sh").read_text().replace("ptb", name)
        assert os.access(path, os.X_OK)


def fake(path, code):
    """A `python` that runs the program itself, and `code` in the place of a run."""
    path.write_text(
        f'#!/usr/bin/env bash\n[[ "$2 $3" != "timetotrain run" ]] || exec {sys.executable} "$@"\n'
        f"exec {sys.executable} -c {shlex.quote(code)}\n"
    )
    path.chmod(0o755)
    return {**os.environ, "PYTHON": str(path), "SYSTEM": "v100-8", "DATA_DIR": str(path.parent)}


# It writes without Python's buffers: a handler may not enter one that the interrupted program is in.
HANDLES = """import os, signal, sys, time
def stop(*_):
    time.sleep(0.3)
    os.write(1, b'saved\\n')
    sys.exit({})
for number in signal.SIGTERM, signal.SIGINT:
    signal.signal(number, stop)
os.write(1, b'runs\\n')
time.sleep(60)
"""


@pytest.mark.parametrize("number, runs", [(signal.SIGTERM, 3), (signal.SIGINT, 1)])
def test_run_and_time_passes_a_signal_on_and_ends_after_the_run(number, runs, tmp_path):
    process = subprocess.Popen(
        [ROOT / "resnet" / "run_and_time.sh"],
        env={**fake(tmp_path / "python", HANDLES.format(143)), "NEXP": str(runs)},
        stdout=subprocess.PIPE,
        text=True,
        # A process keeps ignoring a signal that was ignored at its start, as in tests that run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == "runs\n"
    process.send_signal(number)
    # No further run follows the one that was stopped.
    assert process.communicate(timeout=30)[0] == "saved\n"
    assert process.returncode == 143


@pytest.mark.parametrize("code, runs", [(0, 3), (7, 1)])
def test_a_run_that_ends_at_once_on_a_signal_to_all_keeps_its_status(code, runs, tmp_path):
    environment = {**fake(tmp_path / "python", HANDLES.format(code)), "NEXP": str(runs)}
    process = subprocess.Popen(
        [ROOT / "resnet" / "run_and_time.sh"], env=environment, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "runs\n"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == code


@pytest.mark.parametrize(("codes", "status", "ran"), [("000", 0, 3), ("010", 1, 3), ("050", 5, 2)])
def test_a_missed_target_is_a_result_and_a_failure_ends_the_series(codes, status, ran, tmp_path):
    code = (
        "import pathlib, sys\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "number = len(seen.read_text()) if seen.exists() else 0\n"
        f"seen.write_text('x' * (number + 1)); sys.exit(int({codes!r}[number]))"
    )
    done = subprocess.run(
        [ROOT / "resnet" / "run_and_time.sh"],
        env={**fake(tmp_path / "python", code), "NEXP": "3"},
        timeout=60,
    )
    assert (done.returncode, len((tmp_path / "seen").read_text())) == (status, ran)


def test_caches_of_other_machines_are_not_cleared(tmp_path):
    done = script("resnet", SYSTEM="cpu-cluster-1024", DATA_DIR=str(tmp_path), CLEAR_CACHES="1")
    assert done.returncode == 2 and done.stderr.startswith(
        "error: --clear_caches: it clears the caches of this"
    )
