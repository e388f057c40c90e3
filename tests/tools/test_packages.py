"""Tests what `make` installs: the packages of extras, each pinned by the one lock file."""

import re
import subprocess
import sys
import tomllib

import pytest

from tools import packages

LOCK = packages._PYPROJECT.parent / "tools/requirements/dev.lock"
# jax's runtime for TPUs wants another libtpu than the compilers of `aot`.
NOT_LOCKED = {"tpu", "export"}


def project():
    return tomllib.loads(packages._PYPROJECT.read_text())["project"]


def pinned():
    """{package: version} of the lock file, names as PyPI normalizes them."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", LOCK.read_text(), re.M))


def test_the_project_s_own_packages_come_first_and_each_once():
    actual = packages.packages(["train", "train"])
    ours = project()["dependencies"]
    assert actual[: len(ours)] == ours and len(set(actual)) == len(actual)
    assert packages.packages(["train"], alone=True) == actual[len(ours) :]
    assert any(one.startswith("jax==") for one in actual)


def test_the_lock_file_pins_every_extra_as_pyproject_does():
    locked = pinned()
    extras = set(project()["optional-dependencies"]) - NOT_LOCKED
    for package in packages.packages(sorted(extras)):
        name, _, version = package.partition("==")
        normal = re.sub(r"[-_.]+", "-", re.sub(r"\[.*\]", "", name)).lower()
        assert locked[normal] == version, package


def test_an_unknown_extra_is_one_line():
    command = [sys.executable, packages.__file__, "train", "no-such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(
        r"error: no-such: no such extra in \S+pyproject.toml; it has train, gpu, .*\n", done.stderr
    )


@pytest.mark.parametrize("extra", sorted(NOT_LOCKED))
def test_what_is_not_locked_is_pinned(extra):
    assert all("==" in package for package in project()["optional-dependencies"][extra])


@pytest.mark.parametrize("extra", ["text", "export"])
def test_an_extra_installed_later_does_not_move_a_shared_pin(extra):
    """pip obeys the pins of one command, and these extras' packages ask for numpy and protobuf of any version."""
    extras = project()["optional-dependencies"]
    shared = {"numpy", "protobuf"}
    pins = {name: {p for p in extras[name] if p.partition("==")[0] in shared} for name in (extra, "train")}
    assert len(pins[extra]) == 2 and pins[extra] == pins["train"]
