"""Tests the wheel: one import name, every file of the project's packages, and commands that run from any folder."""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import timetotrain
from common.config import benchmarks

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = ("common", "compliance", "systems", *benchmarks.NAMES)
BUILD = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"
# Files in the folder in which commands start; the commands must not import them.
STRANGERS = ("common/__init__.py", "compliance/__init__.py", "systems.py", "resnet.py")


def tracked():
    """Files of the checkout, with those not yet committed."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git checkout: what belongs to the project is not known")
    return sorted(name for name in done.stdout.split("\0") if (ROOT / name).is_file())


def build(folder, function):
    """Calls setuptools as pip does, on a copy: it leaves files beside the sources."""
    for name in tracked():
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    stale = folder / "source/build/lib/common"  # Left by an earlier layout.
    stale.mkdir(parents=True)
    (stale / "stale.py").write_text("")
    command = [sys.executable, "-c", BUILD.format(function), folder]
    return subprocess.run(command, cwd=folder / "source", capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = build(folder, "build_wheel")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder for PYTHONPATH; executable files stay executable, as with pip."""
    folder = tmp_path_factory.mktemp("installed")
    for member in wheel.infolist():
        path = pathlib.Path(wheel.extract(member, folder))
        if member.external_attr >> 16 & 0o111:
            path.chmod(0o755)
    return folder


@pytest.fixture
def elsewhere(tmp_path):
    for name in STRANGERS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise RuntimeError('{name} of the current folder')\n")
    return tmp_path


@pytest.fixture
def call(installed, elsewhere):
    """Runs a command outside the checkout with the installed wheel, and returns its output."""

    def run(*command, status=0, **variables):
        environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHON": sys.executable, **variables}
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def python(*arguments):
    return [sys.executable, "-m", *arguments]


def test_one_import_name(wheel):
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "timetotrain",
        f"timetotrain-{timetotrain.__version__}.dist-info",
    }


def test_every_file_of_the_packages_is_there(wheel):
    expected = {f"timetotrain/{name}" for name in tracked() if name.split("/")[0] in PARTS}
    expected |= {name for name in tracked() if name.startswith("timetotrain/")}
    expected -= {f"timetotrain/{name}/setup.sh" for name in PARTS}
    packed = {name for name in wheel.namelist() if not name.startswith("timetotrain-")}
    assert packed == expected


def test_no_file_imports_a_package_of_the_checkout(wheel):
    for name in wheel.namelist():
        if name.endswith(".py"):
            for node in ast.walk(ast.parse(wheel.read(name))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                assert not [name_ for name_ in names if name_.split(".")[0] in PARTS], name


def test_lines_stay_where_they_are(wheel):
    """A traceback of the wheel leads to the line of the checkout."""
    for name in wheel.namelist():
        if name.startswith("timetotrain/") and name.endswith(".py"):
            source = ROOT / name if (ROOT / name).is_file() else ROOT / name.partition("/")[2]
            assert len(wheel.read(name).splitlines()) == len(source.read_bytes().splitlines()), name


def test_a_command_line_asks_for_the_module_s_name(wheel):
    """[..., "-m", "resnet"] would start a checkout's module; `__package__` and `__spec__.name` work in both.

    So do `_PACKAGE`, a module's own prefix, and the modules of `timetotrain`, whose names do not change.
    """
    actual = 0
    for name in wheel.namelist():
        if name.endswith(".py"):
            for node in ast.walk(ast.parse(wheel.read(name))):
                words = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
                for word, module in zip(words, words[1:]):
                    if isinstance(word, ast.Constant) and word.value == "-m":
                        text = ast.unparse(module)
                        prefixes = ("benchmarks.command(", "f'{_PACKAGE}", "'timetotrain")
                        is_ours = text.startswith(prefixes) or "__" in text
                        assert is_ours, f"{name}: {text}"
                        actual += 1
    assert actual


def test_an_editable_installation_is_refused(tmp_path):
    done = build(tmp_path, "build_editable")
    assert done.returncode
    assert "pip install -e: a checkout needs none" in done.stderr


def test_the_checker_runs_from_any_folder(call):
    assert "run_start" in call(*python("timetotrain", "rules", "resnet", "closed"))
    assert call(*python("timetotrain", "--help")).startswith("usage: timetotrain ")


def test_a_prediction_runs_from_any_folder(call):
    arguments = python("timetotrain", "forecast", "resnet", "--system=tpu-v3-2048")
    expected = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    assert call(*arguments) == expected.stdout


def test_a_benchmark_runs_from_any_folder(call):
    described = json.loads(
        call(*python("timetotrain.resnet", "--system=tpu-v3-2048", "--describe"), TF_CPP_MIN_LOG_LEVEL="3")
    )
    assert described


def test_scripts_name_the_wheel_s_modules(call, installed):
    """Scripts run in the caller's folder, where results go."""
    package = installed / "timetotrain"
    assert "error: DATA_DIR is not set" in call(package / "resnet/init_datasets.sh", status=2)
    line = call(package / "resnet/run_and_time.sh", "--print_command", SYSTEM="cpu-tiny")
    assert f"{sys.executable} -m timetotrain.resnet --system=cpu-tiny" in line
    line = call(package / "resnet/run_and_time.sh", "--print_command", SYSTEM="cpu-cluster-1024")
    script = next(pathlib.Path(word) for word in line.split() if word.endswith("slurm.sbatch"))
    assert script == package / "launch/slurm.sbatch"
    assert "-m timetotrain launch --hosts=slurm" in script.read_text()


def test_a_tiny_data_set_is_made_in_the_caller_s_folder(call, installed, elsewhere):
    call(installed / "timetotrain/ptb/init_datasets.sh", SYSTEM="cpu-tiny", DATA_DIR="data")
    assert list((elsewhere / "data").iterdir())


def test_a_checkout_knows_the_wheel_s_names_too():
    both = [
        subprocess.run(python(name, "--help"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in ("mnist", "timetotrain.mnist")
    ]
    assert both[0] == both[1]


@pytest.fixture
def without_extras(tmp_path_factory, installed):
    """A PYTHONPATH on which the packages of the extras are missing."""
    from timetotrain import extras

    folder = tmp_path_factory.mktemp("bare")
    names = [name for extra, names in extras.EXTRAS.items() if extra for name in names if name != "google"]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({names})\n")
    return f"{installed}{os.pathsep}{folder}"


@pytest.mark.parametrize(
    "words",
    [
        ["timetotrain.resnet.tiny", "data"],
        ["timetotrain.resnet", "--describe"],
        ["timetotrain", "run", "mnist"],
        ["timetotrain.search", "mnist", "--system=cpu-tiny"],
    ],
)
def test_a_missing_extra_is_one_line(call, without_extras, words):
    error = call(*python(*words), status=2, PYTHONPATH=without_extras)
    assert re.fullmatch(r"error: \w+ is not installed.* extra `train`.*\n", error), error


def test_help_and_the_tools_need_no_extra(call, without_extras):
    for words in (
        ["run", "resnet", "--help"],
        ["--version"],
        ["systems", "list"],
        ["rules", "resnet", "closed"],
    ):
        assert call(*python("timetotrain", *words), PYTHONPATH=without_extras)
    line = call(*python("timetotrain", "run", "resnet", "--print_command"), PYTHONPATH=without_extras)
    assert f"{sys.executable} -m timetotrain.resnet --system=cpu-tiny" in line


INTERPRETERS = ("python3.11", "python3.12", "python3.13")
# Every command, and what it answers without extras: a word of its output, or the extra that it names.
COMMANDS = {
    "--version": "timetotrain ",
    "run resnet --help": "--config.optimizer.momentum",
    "run resnet --print_command": "timetotrain.resnet",
    "run mnist": "extra `train`",
    "search mnist --system=cpu-tiny --data_dir=. --space optimizer.momentum=0.1,0.9": "extra `train`",
    "launch --help": "--processes",
    "study": "not part of this installation",
    "data resnet /nowhere out": "/nowhere",
    "predict /nowhere file": "extra `train`",
    "export /nowhere out": "extra `train`",
    "scores /nowhere": "/nowhere",
    "check /nowhere": "/nowhere",
    "explain run_start": "run_start",
    "rules resnet closed": "run_start",
    "report /nowhere": "/nowhere",
    "compare /one /other": "/one",
    "package --help": "--org",
    "systems list": "tpu-v3-2048",
    "forecast resnet --system=tpu-v3-2048": "tpu-v3-2048",
    "forecast bert --rent --most=8": "H100-SXM5",
}


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
    """Installs the wheel by pip, without extras, for every interpreter that is there."""
    path = interpreter(name)
    if path is None:
        pytest.skip(f"no {name} here")
    subprocess.run([path, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/pip", "install", "-q", "--disable-pip-version-check", wheel.filename]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    for command, answer in COMMANDS.items():
        words = [tmp_path / "venv/bin/timetotrain", *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer in done.stdout + done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr, (command, done.stderr)
