"""Tests `timetotrain run`: the command that it starts is that of run_and_time.sh, bad words are one line."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from common.data import tiny_data
from common.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*words, status=0, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "timetotrain", "run", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def script(benchmark, *words, **variables):
    done = subprocess.run(
        [ROOT / benchmark / "run_and_time.sh", "--print_command", *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def words_of(line):
    return line.replace(sys.executable, "PYTHON").replace(".venv/bin/python", "PYTHON")


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--config.train_epochs=3"], {}),
        (
            ["--system=cpu-cluster-1024", "--data_dir=/data", "--result_dir", "/out", "--seed=4", "--runs=2"],
            {
                "SYSTEM": "cpu-cluster-1024",
                "DATA_DIR": "/data",
                "RESULT_DIR": "/out",
                "SEED": "4",
                "NEXP": "2",
            },
        ),
        (["--launcher=none", "--system=tpu-v3-32"], {"SYSTEM": "tpu-v3-32", "LAUNCHER": "none"}),
    ],
)
def test_it_starts_what_the_script_starts(words, variables):
    flags = [word for word in words if word.startswith("--config.")]
    wanted = script("resnet", *flags, **variables, PYTHON=sys.executable)
    assert words_of(run("resnet", "--print_command", *words)) == words_of(wanted)


def test_data_of_one_s_own_are_left_alone_under_the_tiny_preset(tmp_path):
    from timetotrain.run import command as verb

    def generates(folder):
        options, flags = verb.parser().parse_known_args([f"--data_dir={folder}", "--system=cpu-tiny"])
        return verb.plan("resnet", options, flags)[1]["GENERATE"]

    assert generates(tmp_path / "new") == generates(tmp_path) == "1"
    (tmp_path / "train-00000-of-00001").write_bytes(b"")
    assert generates(tmp_path) == "0"
    (tmp_path / tiny_data.NOTE).write_text("{}")
    assert generates(tmp_path) == "1"


def test_bad_words_are_one_line():
    assert "resnt: no benchmark (did you mean resnet?)" in run("resnt", status=2)
    assert "--data_dir: missing" in run("resnet", "--system=tpu-v3-32", status=2)
    assert "--data_dir=/none: no such folder" in run(
        "resnet", "--system=tpu-v3-32", "--data_dir=/none", status=2
    )
    assert "--data_dir=/none: no such folder" in run("resnet", "--data_dir=/none", status=2)
    assert "expected one argument" in run("resnet", "--runs", status=2)
    assert "no field 'optimzer' (did you mean optimizer?)" in run(
        "resnet", "--config.optimzer.name=adam", status=2
    )


def test_the_data_choose_the_preset_where_nobody_does(tmp_path, capsys):
    from timetotrain.run import command as verb

    def chosen(*words):
        options, flags = verb.parser().parse_known_args([f"--data_dir={tmp_path}", *words])
        return verb.plan("resnet", options, flags)[1]["SYSTEM"], capsys.readouterr().err

    with pytest.raises(
        UserError, match="--system: name a preset for the data in .*; known: here, cpu-tiny.*;"
    ) as no:
        chosen()
    assert "of your own files, `timetotrain data resnet FILES OUT` makes" in str(no.value)
    (tmp_path / tiny_data.NOTE).write_text("{}")
    system, line = chosen()
    assert system == "cpu-tiny" and "are generated; --system=NAME takes another preset\n" in line
    (tmp_path / "description.json").write_text("{}")
    system, line = chosen()
    assert system == "here" and line.count("\n") == 1
    assert line.startswith(f"system   here, since the data in {tmp_path} are your own")
    assert chosen("--system=cpu-photos") == ("cpu-photos", "")


def test_script_and_module_choose_it_too(tmp_path):
    (tmp_path / "description.json").write_text("{}")
    environment = {n: v for n, v in os.environ.items() if n != "SYSTEM"} | {"DATA_DIR": str(tmp_path)}
    for command in (
        [ROOT / "mnist" / "run_and_time.sh", "--print_command"],
        [sys.executable, "-m", "mnist", f"--data_dir={tmp_path}"],
    ):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        line, error, _ = done.stderr.split("\n", 2)
        assert line.startswith(f"system   here, since the data in {tmp_path} are your own; "), done.stderr
        assert "description.json: format None" in error and done.returncode == 2


def test_help_and_description_start_no_run():
    assert "--config.optimizer.momentum=0.9  (number)" in run("ptb", "--help", "--system=cpu-tiny")
    assert "benchmarks: gnmt" in run("--help")
    assert json.loads(run("mnist", "--describe", "--system=cpu-tiny"))


@pytest.mark.e2e
def test_a_tiny_run_reaches_its_end(tmp_path):
    run("mnist", f"--data_dir={tmp_path / 'data'}", "--system=cpu-tiny", f"--result_dir={tmp_path}")
    assert list(tmp_path.glob("cpu-tiny/mnist/result_0.txt"))
