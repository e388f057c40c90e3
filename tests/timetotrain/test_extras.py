"""Tests the table of extras: it is pyproject.toml's, and a missing package is one line."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import pytest

from timetotrain import extras

ROOT = pathlib.Path(__file__).resolve().parents[2]


def requirements():
    """{extra: names of its distributions}, from pyproject.toml, which Python 3.10 cannot parse by itself."""
    text = (ROOT / "pyproject.toml").read_text()
    found = {"": re.search(r"^dependencies = \[$(.*?)^\]$", text, re.M | re.S)[1]}
    for extra in ("train", "text", "export"):
        found[extra] = re.search(rf"^{extra} = \[$(.*?)^\]$", text, re.M | re.S)[1]
    return {extra: set(re.findall(r'^\s*"([\w.-]+)', lines, re.M)) for extra, lines in found.items()}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("extra", ["", "train", "text", "export"])
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
    ("module", "version", "part"),
    [
        ("tensorflow.keras", (3, 11), "comes with extra `train`: pip install 'timetotrain[train]'"),
        ("sacrebleu", (3, 12), "comes with extra `text`: pip install 'timetotrain[text]'"),
        ("yaml", (3, 13), "pip install --force-reinstall timetotrain"),
        ("numpy", (3, 13), "needs Python 3.12 or older"),
    ],
)
def test_the_line_names_the_extra(monkeypatch, module, version, part):
    monkeypatch.setattr(extras.sys, "version_info", version)
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
