"""Tests `timetotrain run`: the command that it starts is that of run_and_time.sh, bad words are one line."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from common.data import tiny_data
from common.errors import UserError
from timetotrain import flags
from timetotrain.run import cli, command
from timetotrain.run.options import BenchmarkFlags, RunFlags

FIELDS = dataclasses.fields(BenchmarkFlags)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*words, status=0, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "timetotrain", "run", *map(str, words)], cwd=ROOT,
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def script(benchmark, *words, **variables):
    done = subprocess.run(
        [ROOT / benchmark / "run_and_time.sh", "--print_command", *words], cwd=ROOT,
        env={**os.environ, **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
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
    expected = script("resnet", *flags, **variables, PYTHON=sys.executable)
    assert words_of(run("resnet", "--print_command", *words)) == words_of(expected)


def series(*words):
    options, overrides = flags.parse(RunFlags, words, "run")
    return command.Series("resnet", options, overrides)


def test_data_of_one_s_own_are_left_alone_under_the_tiny_preset(tmp_path):
    def generates(folder, *words):
        return series(f"--data_dir={folder}", "--system=cpu-tiny", *words).practice

    assert generates(tmp_path / "new") and generates(tmp_path) and not generates(tmp_path, "--nogenerate")
    (tmp_path / "train-00000-of-00001").write_bytes(b"")
    assert not generates(tmp_path) and generates(tmp_path, "--generate=1")
    (tmp_path / tiny_data.NOTE).write_text("{}")
    assert generates(tmp_path)


@pytest.mark.parametrize(("python", "expected"), [(sys.executable, "here"), ("/bin/true", "elsewhere")])
def test_a_run_without_a_launcher_needs_no_second_interpreter(tmp_path, monkeypatch, python, expected):
    def leave(where):
        def end(*_):
            raise SystemExit(where)

        return end

    monkeypatch.setattr(cli, "main", leave("here"))
    monkeypatch.setattr(os, "execvp", leave("elsewhere"))
    monkeypatch.setenv("PYTHON", python)
    with pytest.raises(SystemExit, match=expected):
        series(f"--data_dir={tmp_path}", "--system=cpu-tiny", "--nogenerate").execute()


def test_relative_paths_are_the_caller_s(tmp_path):
    words = ["DATA_DIR=d", "RESULT_DIR=r", "SYSTEM=cpu-tiny", ROOT / "mnist/run_and_time.sh"]
    done = subprocess.run(
        ["env", *words, "--print_command", "--checkpoint_dir=c", "--init=w.npz"], cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name, value in {
        "data_dir": "d",
        "result_dir": "r",
        "checkpoint_dir": "c",
        "config.init": "w.npz",
    }.items():
        assert f" --{name}={tmp_path / value}" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data_dir=a", "--seed=3"], {"data_dir": "a", "seed": 3}),
        (["--data_dir", "a", "--allow_cpu"], {"data_dir": "a", "allow_cpu": True}),
        (["-data_dir=a", "-seed", "3"], {"data_dir": "a", "seed": 3}),
        (["--noexport_values", "--allow_cpu=true"], {"export_values": False, "allow_cpu": True}),
        (["-noexport_values", "--allow_cpu=0"], {"export_values": False, "allow_cpu": False}),
    ],
)
def test_every_spelling_of_a_flag_is_read(words, expected):
    options, _ = flags.parse(BenchmarkFlags, words, "run")
    assert {name: getattr(options, name) for name in expected} == expected
    again, _ = flags.parse(BenchmarkFlags, flags.words(options, [f.name for f in FIELDS]), "run")
    assert again == options


def test_bad_words_are_one_line():
    assert "resnt: no benchmark (did you mean resnet?)" in run("resnt", status=2)
    assert "--data_dir: missing" in run("resnet", "--system=tpu-v3-32", status=2)
    assert "--data_dir=/none: no such folder" in run("resnet", "--data_dir=/none", status=2)


def test_the_data_choose_the_preset_where_nobody_does(tmp_path, capsys):
    def choice(*words):
        return series(f"--data_dir={tmp_path}", *words).options.system, capsys.readouterr().err

    with pytest.raises(
        UserError, match="--system: name a preset for the data in .*; known: here, cpu-tiny.*;"
    ) as no:
        choice()
    assert "of your own files, `timetotrain data resnet FILES OUT` makes" in str(no.value)
    assert choice("--generate=0") == ("cpu-tiny", "")  # As run_and_time.sh asks.
    (tmp_path / tiny_data.NOTE).write_text("{}")
    system, line = choice()
    assert system == "cpu-tiny" and "are generated; --system=NAME takes another preset\n" in line
    (tmp_path / "description.json").write_text("{}")
    system, line = choice()
    assert system == "here" and line.count("\n") == 1
    assert line.startswith(f"system   here, since the data in {tmp_path} are your own")
    assert choice("--system=cpu-photos") == ("cpu-photos", "")


def test_script_and_module_choose_it_too(tmp_path):
    (tmp_path / "description.json").write_text("{}")
    environment = {n: v for n, v in os.environ.items() if n != "SYSTEM"} | {"DATA_DIR": str(tmp_path)}
    for words in (
        [ROOT / "mnist" / "run_and_time.sh", "--print_command"],
        [sys.executable, "-m", "mnist", f"--data_dir={tmp_path}"],
    ):
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
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


@pytest.mark.parametrize("ignored", [True, False])
def test_a_series_leaves_a_hang_up_ignored_that_was(ignored):
    """nohup ignores it before the series starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        code, signalled = command._child(["sh", "-c", "kill -HUP $PPID; exec sleep 1"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (code, signalled) == ((0, False) if ignored else (143, True))
