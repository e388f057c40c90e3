"""Tests what surrounds the code: citation, changelog, workflow, metadata, and extras, whose absence is one line."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

import timetotrain
from timetotrain import extras

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_citation_has_what_its_format_demands():
    """The required fields and types of Citation File Format 1.2.0."""
    actual = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert actual["cff-version"] == "1.2.0" and actual["type"] == "software"
    assert all(
        isinstance(actual[name], str) for name in ("message", "title", "abstract", "version", "license")
    )
    assert actual["authors"] and all(isinstance(author["name"], str) for author in actual["authors"])
    assert actual["version"] == timetotrain.__version__
    assert actual["license"] == re.search(r'^license = "(.*)"', PYPROJECT, re.M)[1]


def test_the_changelog_has_this_version_and_what_comes():
    heads = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[:2] == ["Unreleased", timetotrain.__version__]


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    ran = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert ran == [".ci/run"]
    script = (ROOT / ".ci/run").read_text()
    assert re.findall(r"^make [a-z0-9-]+", script, re.M) == ["make test", "make test-all"]


def test_the_classifiers_name_the_interpreters():
    low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', PYPROJECT).groups()
    versions = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PYPROJECT)
    assert versions == [str(minor) for minor in range(int(low), int(high))]


EXTRAS = ["", "train", "text", "export"]


def requirements():
    """{extra: names of its distributions}, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines_of = {"": project["dependencies"]} | {e: project["optional-dependencies"][e] for e in EXTRAS[1:]}
    lines_of["train"] = [*lines_of["train"], "tensorboard"]
    return {extra: {re.match(r"[\w.-]+", line)[0] for line in lines} for extra, lines in lines_of.items()}


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
    code = "import sys; sys.modules['jinja2'] = None; from timetotrain import cli; sys.exit(cli.main({}))"
    code = code.format(["report", "/nowhere"])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: jinja2 is not installed; run `make setup`, and use .venv/bin/python\n",
    )
