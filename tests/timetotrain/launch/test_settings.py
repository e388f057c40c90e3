"""Tests the settings of systems: each has a source, and what a user has set stays."""

import json
import re

import pytest

import systems
from common.errors import UserError
from timetotrain.launch import settings
from timetotrain.launch.__main__ import job, main, parser

NAMES = sorted(path.stem for path in settings.FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_reason_and_a_public_source(name):
    found = settings.load(name)
    assert len({each.variable for each in found}) == len(found)
    for each in found:
        assert re.fullmatch(r"(NCCL|HOROVOD|TF|XLA)_[A-Z_]+", each.variable)
        assert each.source.startswith("mlcommons/training_results_v0.7 ") and each.why


def test_every_gpu_system_has_settings():
    gpus = [name for name in systems.names() if "NVIDIA" in systems.load(name)["accelerator_model_name"]]
    assert gpus and all(settings.name_of(name) for name in gpus if name != "local")
    assert {settings.name_of(name) for name in gpus} - {""} == set(NAMES)
    assert (settings.name_of("summit-128"), settings.name_of("tpu-v3-32")) == ("summit", "")
    assert settings.name_of("h100-1") == "h100-8"
    assert (settings.name_of("dgx-2h"), settings.name_of("dgx-2h-4")) == ("dgx-2h", "dgx-2h-hosts")


def test_values_that_are_set_already_stay():
    found = settings.environment("dgx-1", {"NCCL_DEBUG": "INFO"})
    assert "NCCL_DEBUG" not in found and found["HOROVOD_FUSION_THRESHOLD"] == "67108864"
    assert settings.environment("") == {}


def test_the_launcher_sets_them(monkeypatch, capsys):
    monkeypatch.setenv("TF_GPU_THREAD_COUNT", "4")
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    line = ["--replicas=multiworker", "--processes=1", "--settings=v100-8", "--", "true"]
    wanted = {"NCCL_DEBUG": "WARN", "TF_GPU_THREAD_MODE": "gpu_private"}
    assert job(parser().parse_args(line)).environment == wanted
    assert main(["--print_command", *line]) == 0
    assert capsys.readouterr().out == (
        "rank 0 on localhost: env NCCL_DEBUG=WARN TF_GPU_THREAD_MODE=gpu_private true\n"
    )


def test_an_unknown_name_is_one_line(capsys):
    assert main(["--replicas=multiworker", "--processes=1", "--settings=v100", "--", "true"]) == 2
    assert capsys.readouterr().err == (
        "error: --settings=v100: no systems/launch/v100.json; known: b200-8, dgx-1, dgx-2h, dgx-2h-hosts, h100-8, "
        "h200-8, summit, v100-8\n"
    )


def test_a_path_outside_is_one_line_too(capsys):
    assert main(["--replicas=multiworker", "--processes=1", "--settings=/tmp/x", "--", "true"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --settings=/tmp/x: no systems/launch//tmp/x.json; known: "
    )


@pytest.mark.parametrize("text", ["{", '[{"variable": "A"}]', '{"variable": 1}', "[3]"])
def test_a_damaged_file_is_one_line(text, tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text(text)
    monkeypatch.setattr(settings, "FOLDER", tmp_path)
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    with pytest.raises(UserError, match=r"^x\.json: "):
        settings.load("x")


def test_files_are_written_as_json_writes_them():
    for name in NAMES:
        text = (settings.FOLDER / f"{name}.json").read_text()
        assert text == json.dumps(json.loads(text), indent=2) + "\n"
