"""Tests that python -m timetotrain launch refuses bad arguments in one line each, and the settings of systems."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

import systems
from common.errors import UserError
from timetotrain.launch import local, plan, settings
from timetotrain.launch.__main__ import job, main, parser
from timetotrain.launch.watch.worker import Worker

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAMES = list(settings.read())


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
        (["--processes=2", "--port=65536", "--", "true"], "--port=65536: must be a number from 0 to 65535"),
        (["--processes=2", "--grace_seconds=nan", "--", "true"], "--grace_seconds=nan: must be a number"),
        (["--hosts=@/no/where", "--", "true"], "--hosts=@/no/where: No such file"),
        (["--hosts=a:2", "--processes=3", "--", "true"], "--hosts=a:2 has 2"),
        (["--hosts=a:2,b:2", "--launcher=2", "--", "true"], "--launcher=2: there are 2 hosts"),
        (["--hosts=slurm", "--processes=2", "--", "true"], "--hosts=slurm: not started by timetotrain"),
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


@pytest.mark.parametrize("launcher", [0, 1])
@pytest.mark.parametrize("result", [0, 1, 75, 143])
def test_the_result_is_the_status_of_every_launcher(launcher, result):
    code = (
        f"from common.distributed import heartbeat as h; h.start(); h.send(result={result}); exit({result})"
    )
    hosts = [plan.Host("localhost", 1)] * 2
    request = local.Job("multiworker", [sys.executable, "-c", code], hosts, launcher)
    assert local.launch(request) == result


def test_a_process_that_cannot_start_ends_those_that_have(monkeypatch):
    started = []

    def worker(rank, *arguments):
        if rank:
            raise UserError("sleep: Too many open files")
        started.append(Worker(rank, *arguments))
        return started[0]

    monkeypatch.setattr(local, "Worker", worker)
    with pytest.raises(UserError, match="Too many open files"):
        local.launch(local.Job("multiworker", ["sleep", "1000"], [plan.Host("localhost", 2)]))
    assert started[0].state() == ""


def test_the_launcher_imports_no_tensorflow():
    code = (
        "import timetotrain.launch.local, timetotrain.run.command, sys; sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_reason_and_a_public_source(name):
    entries = settings.load(name)
    assert len({each["variable"] for each in entries}) == len(entries)
    for each in entries:
        assert sorted(each) == ["source", "value", "variable", "why"] and all(each.values())
        assert re.fullmatch(r"(NCCL|HOROVOD|TF|XLA)_[A-Z_]+", each["variable"])
        assert each["source"].startswith("mlcommons/training_results_v0.7 ")


def test_every_gpu_system_has_settings():
    gpus = [name for name in systems.names() if "NVIDIA" in systems.load(name)["accelerator_model_name"]]
    assert gpus and all(settings.name_of(name) for name in gpus if name != "local")
    assert {settings.name_of(name) for name in gpus} - {""} == set(NAMES)
    assert (settings.name_of("summit-128"), settings.name_of("tpu-v3-32")) == ("summit", "")
    assert settings.name_of("h100-1") == "h100-8"
    assert (settings.name_of("dgx-2h"), settings.name_of("dgx-2h-4")) == ("dgx-2h", "dgx-2h-hosts")


def test_values_that_are_set_already_stay():
    variables = settings.environment("dgx-1", {"NCCL_DEBUG": "INFO"})
    assert "NCCL_DEBUG" not in variables and variables["HOROVOD_FUSION_THRESHOLD"] == "67108864"
    assert settings.environment("") == {}


def test_the_launcher_sets_them(monkeypatch):
    monkeypatch.setenv("TF_GPU_THREAD_COUNT", "4")
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    line = ["--replicas=multiworker", "--processes=1", "--settings=v100-8", "--", "true"]
    expected = {"NCCL_DEBUG": "WARN", "TF_GPU_THREAD_MODE": "gpu_private"}
    assert job(parser().parse_args(line)).environment == expected


@pytest.mark.parametrize("name", ["v100", "/tmp/x"])
def test_an_unknown_name_or_a_path_is_one_line(name, capsys):
    assert main(["--replicas=multiworker", "--processes=1", f"--settings={name}", "--", "true"]) == 2
    assert capsys.readouterr().err == (
        f"error: --settings={name}: timetotrain/launch/settings.json has b200-8, dgx-1, dgx-2h, dgx-2h-hosts, "
        "h100-8, h200-8, summit, v100-8\n"
    )


def test_the_file_is_written_as_json_writes_it():
    text = settings.FILE.read_text()
    assert text == json.dumps(json.loads(text), indent=2) + "\n"
