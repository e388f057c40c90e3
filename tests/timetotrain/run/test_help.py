"""Tests `python -m BENCHMARK --help`: every flag and field, the values of a preset, without TensorFlow."""

import dataclasses
import pathlib
import subprocess
import sys

import pytest

from common.config import benchmarks, fields
from common.config.schema import RunConfig
from timetotrain.run import help as helps
from timetotrain.run.options import BenchmarkFlags, RunFlags

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Fails where help imports TensorFlow.
CODE = "import sys; sys.modules['tensorflow'] = None; from timetotrain.run import cli; cli.main('{}')"


def ask(benchmark, *arguments):
    return subprocess.run(
        [sys.executable, "-c", CODE.format(benchmark), *arguments], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", benchmarks.NAMES)
def test_every_field_is_listed_with_its_value(name):
    done = ask(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.strip() for line in done.stdout.splitlines()}
    for field in fields.describe(benchmarks.module(name, "presets").Config(), RunConfig):
        assert f"--config.{field.path}={field.text}  ({field.kind})" in lines
    assert "--data_dir  (text)" in lines
    assert max(map(len, done.stdout.splitlines())) <= 240


def test_a_preset_s_values_and_source_are_shown():
    done = ask("resnet", "--system=cpu-tiny", "--help")
    assert "--config.num_classes=12 " in done.stdout
    assert "The values below are those of preset cpu-tiny: this repository" in done.stdout


def test_an_unknown_preset_gets_near_names():
    done = ask("resnet", "--help", "--system", "cpu-tin")
    assert done.returncode == 2 and "did you mean cpu-tiny" in done.stderr


def test_every_flag_is_listed_and_read_once(capsys):
    """Help names each flag of a table, and no text is written twice: it is the dataclass's."""
    meanings = fields.meanings(RunFlags)
    for table in (BenchmarkFlags, RunFlags):
        helps.print_help("mnist", table, "program", ["--help"])
        text = capsys.readouterr().out
        for field in dataclasses.fields(table):
            assert f"\n  --{field.name}  (" in text and meanings[field.name].split(";")[0][:40] in text
    assert "--guard_steps  (whole number, default 1000)" in text
