"""Tests timetotrain systems: output, exit statuses, and no traceback for bad input."""

import json
import os
import subprocess
import sys

import pytest

import systems
import timetotrain.cli
from compliance.log import rules
from systems import schema
from timetotrain.machines.command import main


def test_list_names_every_system(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == systems.names()


def test_show(capsys):
    assert main(["show", "tpu-v3-32"]) == 0
    assert "accelerator_model_name" in capsys.readouterr().out
    assert main(["show", "tpu-v3-32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == systems.load("tpu-v3-32")


def test_detect_writes_a_draft_that_validates(tmp_path, capsys):
    path = tmp_path / "here.json"
    assert main(["detect", "-o", str(path)]) == 0
    text = capsys.readouterr().err
    assert "submitter" in text and "framework " in text and json.loads(path.read_text())["framework"] == ""
    assert main(["detect", "--framework=numpy", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["framework"].startswith("numpy ")
    assert "framework " not in capsys.readouterr().err
    assert main(["validate", "--draft", str(path)]) == 0
    assert main(["validate", str(path)]) == 1
    assert "submitter: empty" in capsys.readouterr().out


def test_validate_takes_the_newest_round(tmp_path, capsys):
    """Its words for `status` are not those of 0.7.0."""
    assert rules.RULESETS[-1] == schema.NEWEST
    path = tmp_path / "box.json"
    path.write_text(json.dumps(systems.load("dgx-1") | {"submitter": "x", "division": "closed"}))
    assert main(["validate", "--ruleset", "v0.7", str(path)]) == 0
    capsys.readouterr()
    assert main(["validate", str(path)]) == 1
    assert "Available on-premise" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\0", b"[" * 100_000, b'{"submitter": NaN', b"9" * 5000]
)
def test_validate_answers_bad_files_with_one_line(tmp_path, capsys, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert main(["validate", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: not JSON") and error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nothing-like-it"],
        ["validate", "/nonexistent.json"],
        ["validate", "/"],
        ["detect", "-o", "/"],
        ["detect", "--framework=no-such-package"],
        ["validate", "--ruleset", "zero", "x.json"],
        ["validate", "--ruleset", "²", "x.json"],
    ],
)
def test_bad_arguments_are_one_line_and_status_2(arguments, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error


def test_nothing_imports_tensorflow_and_a_closed_pipe_is_no_error():
    code = (
        "import sys; from timetotrain.machines.command import main; main(['list']); main(['detect']); "
        "sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "timetotrain", "systems", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.wait()


def test_a_pipe_is_refused_at_once(tmp_path, capsys):
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    for command in (["systems", "validate", str(path)], ["forecast", "resnet", f"--system={path}"]):
        assert timetotrain.cli.main(command) == 2
        assert capsys.readouterr().err.startswith(f"error: {path}: cannot read (no plain file)")


def test_a_name_that_is_not_utf8_is_shown_as_an_escape(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.json"
    with open(path, "w") as file:
        json.dump(systems.load("dgx-1"), file)
    done = subprocess.run(
        [sys.executable, "-m", "timetotrain", "systems", "validate", "--ruleset", "0.7.0", "--draft", path],
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
    )
    assert done.returncode == 0 and done.stdout.endswith(b"\\udcff.json: good\n") and not done.stderr


def test_a_full_disk_and_ctrl_c_are_one_line(monkeypatch, capsys):
    command = f"{sys.executable} -m timetotrain systems list > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: standard output: No space left on device; make it writable or free some space\n"
    )

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(systems, "names", interrupt)
    assert main(["list"]) == 130 and capsys.readouterr().err == "error: interrupted\n"
