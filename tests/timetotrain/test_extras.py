"""Tests the table of extras: it is pyproject.toml's, and a missing package is one line."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from timetotrain import extras

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXTRAS = ["", "train", "text", "xlsx", "export"]


def requirements():
    """{extra: names of its distributions}, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {"": project["dependencies"]} | {e: project["optional-dependencies"][e] for e in EXTRAS[1:]}
    found["train"] = [*found["train"], "tensorboard"]
    return {extra: {re.match(r"[\w.-]+", line)[0] for line in lines} for extra, lines in found.items()}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_table_has_the_packages_of_pyproject(extra):
    names = requirements()[extra]
    distributions = importlib.metadata.packages_distributions()
    provided = {
        module: {normal(d) for d in distributions.get(module, ())} & {normal(name) for name in names}
        for module in extras.EXTRAS[extra]
    }
    installed = {module for module in provided if module in distributions}
    assert {module for module in installed if not provided[module]} == set()
    there = {normal(d) for ds in distributions.values() for d in ds}
    assert {normal(name) for name in names} & there <= set().union(*provided.values())


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("tensorflow.keras", "comes with extra `train`: pip install 'timetotrain[train]'"),
        ("sacrebleu", "comes with extra `text`: pip install 'timetotrain[text]'"),
        ("openpyxl", "pip install 'timetotrain[xlsx]'"),
        ("yaml", "pip install --force-reinstall timetotrain"),
    ],
)
def test_the_line_names_the_extra(module, part):
    assert part in extras.line(ModuleNotFoundError(name=module), True)


def test_a_checkout_s_line_names_its_target():
    assert "make setup" in extras.line(ModuleNotFoundError(name="tensorflow"), False)
    assert "make text" in extras.line(ModuleNotFoundError(name="sacrebleu"), False)


def test_another_module_s_absence_stays_an_error():
    assert extras.line(ModuleNotFoundError(name="no_such"), True) is None
    assert extras.line(ModuleNotFoundError(), True) is None


def test_the_command_ends_with_the_line():
    code = "import sys; sys.modules['shtab'] = None; from timetotrain import cli; sys.exit(cli.main({}))"
    code = code.format(["completion", "zsh"])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: shtab is not installed; run `make setup`, and use .venv/bin/python\n",
    )
