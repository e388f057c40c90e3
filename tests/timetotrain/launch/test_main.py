"""Tests that python -m timetotrain launch refuses bad arguments in one line each."""

import pathlib
import subprocess
import sys

import pytest

from tests.timetotrain.launch.test_plan import SRUN
from timetotrain.launch import local, plan
from timetotrain.launch.__main__ import main

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_a_command_that_does_not_exist_is_one_line():
    line = [
        sys.executable, "-m", "timetotrain", "launch", "--replicas=multiworker", "--processes=2", "--",
        "/no/where",
    ]  # fmt: skip
    result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == "error: /no/where: No such file or directory; is the command right?\n"


@pytest.mark.parametrize(
    "wrong, message",
    [
        (["--processes=2"], "no command; put it behind --"),
        (["--", "true"], "--processes: missing"),
        (["--processes=0", "--", "true"], "--processes=0: must be at least 1"),
        (["--hosts=a:8,b", "--", "true"], "'b' is not HOST:PROCESSES"),
        (["--hosts=@/no/where", "--", "true"], "--hosts=@/no/where: No such file"),
        (["--hosts=a:2", "--processes=3", "--", "true"], "--hosts=a:2 has 2"),
        (["--hosts=a:2,b:2", "--launcher=2", "--", "true"], "--launcher=2: there are 2 hosts"),
        (["--hosts=slurm", "--processes=2", "--", "true"], "--hosts=slurm: not started by srun"),
        (
            ["--processes=2", "--max_restarts=1", "--", "true", "--checkpoint_dir=D", "--run=3"],
            "leave --run out",
        ),
    ],
)
def test_wrong_arguments_are_one_line_with_the_fix(wrong, message, capsys):
    assert main(["--replicas=multiworker", *wrong]) == 2
    text = capsys.readouterr().err
    assert message in text and text.startswith("error: ") and text.count("\n") == 1


def test_srun_s_container_without_scontrol_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert main(["--replicas=multiworker", "--hosts=slurm", "--processes=4", "--", "true"]) == 2
    text = capsys.readouterr().err
    assert text.startswith(
        "error: --hosts=slurm: cannot run scontrol (No such file or directory); make SLURM's"
    )
    assert text.count("\n") == 1


@pytest.mark.parametrize("launcher", [0, 1])
@pytest.mark.parametrize("result", [0, 1, 75, 143])
def test_the_result_is_the_status_of_every_launcher(launcher, result):
    code = (
        f"from common.distributed import heartbeat as h; h.start(); h.tell(result={result}); exit({result})"
    )
    hosts = [plan.Host("localhost", 1)] * 2
    job = local.Job("multiworker", [sys.executable, "-c", code], hosts, launcher)
    assert local.launch(job) == result


def test_temporary_files_of_killed_launchers_go_and_those_in_use_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(local.tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "timetotrain-launch-999999999-1-x"
    left.mkdir()
    with local.temporary_folder() as used:
        # As a launcher in another container sees it.
        monkeypatch.setattr(local.procfs, "began", lambda number: "other")
        with local.temporary_folder() as other:
            assert sorted(map(str, tmp_path.iterdir())) == sorted([used, other])
    assert not list(tmp_path.iterdir())


def test_the_launcher_imports_no_tensorflow():
    code = (
        "import timetotrain.launch.local, timetotrain.run.command, sys; sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
