"""Tests the wheel: the checker, under the names that its modules have in a checkout, from any folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

import timetotrain

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = {"common", "compliance", "systems", "timetotrain"}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
# Files in the folder in which commands start; the commands must not import them.
STRANGERS = ("common/__init__.py", "compliance/__init__.py", "systems.py", "timetotrain/__init__.py")


def tracked():
    """Files of the checkout, with those not yet committed."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git checkout: what belongs to the project is not known")
    return sorted(name for name in done.stdout.split("\0") if (ROOT / name).is_file())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Calls setuptools as pip does, on a copy: it leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    cache = folder / "source/compliance/__pycache__"
    cache.mkdir()
    (cache / "api.cpython-311.pyc").write_text("")
    command = [sys.executable, "-c", BUILD, folder]
    done = subprocess.run(command, cwd=folder / "source", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder)
    return folder


@pytest.fixture
def call(installed, tmp_path):
    """Runs `timetotrain WORDS` with the installed wheel in a stranger's folder; returns its status and its output."""
    for name in STRANGERS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise RuntimeError('{name} of the current folder')\n")

    def run(*words):
        # A console script has no current folder on the path either.
        command = [sys.executable, "-P", "-m", "timetotrain", *words]
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


def packed(wheel):
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_checker(wheel):
    assert {name.partition("/")[0] for name in packed(wheel)} == PARTS
    assert {name for name in tracked() if name.startswith("compliance/")} <= packed(wheel)
    assert f"timetotrain-{timetotrain.__version__}.dist-info/entry_points.txt" in wheel.namelist()


def test_its_files_are_the_checkout_s(wheel):
    for name in packed(wheel):
        assert wheel.read(name) == (ROOT / name).read_bytes(), name


# Verbs of the checker, and a word of what each answers.
ANSWERS = {
    "--version": "timetotrain ", "--help": "usage: timetotrain ",
    "rules resnet closed": "run_start", "explain run_start": "run_start",
    "check /nowhere": "/nowhere", "scores /nowhere": "/nowhere", "accept /nowhere": "/nowhere",
    "report /nowhere": "/nowhere", "compare /one /other": "/one", "package --help": "--org",
}  # fmt: skip


@pytest.mark.parametrize("words", ANSWERS)
def test_the_checker_runs_from_any_folder(call, words):
    _, output = call(*words.split())
    assert ANSWERS[words] in output


@pytest.mark.parametrize("words", ["run mnist", "forecast resnet", "study", "report . --follow"])
def test_what_needs_a_checkout_says_so_in_a_line(call, words):
    status, output = call(*words.split())
    assert status == 2 and "is not part of this installation; it needs a checkout" in output
    assert len(output.splitlines()) == 1


INTERPRETERS = ("python3.11", "python3.12", "python3.13")


def interpreter(name):
    """The path of an interpreter that runs, on the path or among pyenv's; None without one."""
    version = "import sys; print('python%d.%d' % sys.version_info[:2])"
    pyenv = sorted(pathlib.Path.home().glob(f".pyenv/versions/*/bin/{name}"))
    for path in filter(None, [shutil.which(name), *pyenv]):
        done = subprocess.run([path, "-c", version], capture_output=True, text=True, check=False)
        if done.stdout.strip() == name:
            return path
    return None


@pytest.mark.e2e
@pytest.mark.parametrize("name", INTERPRETERS)
def test_every_command_answers_in_a_clean_environment(wheel, tmp_path, name):
    """Installs the wheel by pip, for every interpreter that is there."""
    path = interpreter(name)
    if path is None:
        pytest.skip(f"no {name} here")
    subprocess.run([path, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/pip", "install", "-q", "--disable-pip-version-check", wheel.filename]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    for command, answer in ANSWERS.items():
        words = [tmp_path / "venv/bin/timetotrain", *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer in done.stdout + done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr, (command, done.stderr)
