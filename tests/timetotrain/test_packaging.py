"""Tests what surrounds the code: citation, changelog, workflow and the metadata of the package."""

import pathlib
import re

import yaml

import timetotrain

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_citation_has_what_its_format_demands():
    """The required fields and types of Citation File Format 1.2.0."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert all(
        isinstance(found[name], str) for name in ("message", "title", "abstract", "version", "license")
    )
    assert found["authors"] and all(isinstance(author["name"], str) for author in found["authors"])
    assert found["version"] == timetotrain.__version__
    assert found["license"] == re.search(r'^license = "(.*)"', PYPROJECT, re.M)[1]


def test_the_changelog_has_this_version_and_what_comes():
    heads = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[:2] == ["Unreleased", timetotrain.__version__]


def test_the_workflow_runs_what_ci_runs():
    found = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    ran = [step["run"] for step in found["jobs"]["test"]["steps"] if "run" in step]
    assert (
        ran
        == re.findall(r"^make [a-z0-9-]+", (ROOT / ".ci/run").read_text(), re.M)
        == ["make test", "make test-all", "make e2e-slice"]
    )


def test_the_classifiers_name_the_interpreters():
    low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', PYPROJECT).groups()
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PYPROJECT)
    assert named == [str(minor) for minor in range(int(low), int(high))]
