"""Tests the images: linted, parsed, alike for Docker and Apptainer, from pinned bases and the locks."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.benchmarks import ROOT
from timetotrain.launch import __main__ as launch
from tools.packages import packages

FOLDER = ROOT / "tools/containers"
TARGETS = ("cpu", "gpu", "tpu")
LINTER = shutil.which("hadolint", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("hadolint")


def dockerfile(target: str) -> str:
    return (FOLDER / f"{target}.Dockerfile").read_text()


def definition(target: str) -> str:
    return (FOLDER / f"{target}.def").read_text()


@pytest.mark.skipif(LINTER is None, reason="hadolint is not installed (make test installs it)")
@pytest.mark.parametrize("target", TARGETS)
def test_the_linter_finds_nothing(target: str) -> None:
    done = subprocess.run(
        [LINTER, FOLDER / f"{target}.Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", TARGETS)
def test_a_definition_parses_to_the_stages_of_its_dockerfile(target: str) -> None:
    parsers = pytest.importorskip("spython.main.parse.parsers", reason="spython is not installed (make test)")
    stages = parsers.SingularityParser(str(FOLDER / f"{target}.def")).parse()
    bases = re.findall(r"^FROM (\S+)", dockerfile(target), re.M)
    assert [stage.fromHeader for stage in stages.values()] == bases
    assert f"/opt/timetotrain/tools/containers/install.sh {target}" in list(stages.values())[-1].install


@pytest.mark.parametrize("target", TARGETS)
def test_bases_are_pinned_and_the_same_in_both_forms(target: str) -> None:
    """A tag with a release or a date; `latest`, and tags like `12`, change what they name."""
    bases = re.findall(r"^FROM (\S+)", dockerfile(target), re.M)
    assert bases == re.findall(r"^From: (\S+)", definition(target), re.M)
    for base in bases:
        assert re.search(r":(\d+\.\d+\.\d+-\S+|bookworm-20\d{6}-slim)$", base), base


@pytest.mark.parametrize("target", TARGETS)
def test_each_image_is_made_by_the_one_script(target: str) -> None:
    assert len(re.findall(rf"tools/containers/install\.sh {target}$", dockerfile(target), re.M)) == 1
    assert len(re.findall(rf"tools/containers/install\.sh {target}$", definition(target), re.M)) == 1
    for text in (dockerfile(target), definition(target)):
        # Packages come by the script alone.
        assert not re.search(r"\b(pip|apt-get) ", text)
        assert "/opt/venv/bin:$PATH" in text


def test_the_script_installs_from_the_lock() -> None:
    text = (FOLDER / "install.sh").read_text()
    extras = [words.split() for words in re.findall(r"extras=\((.*?)\)", text)]
    assert extras == [["train", "text"], ["train", "text", "gpu-tf", "gpu-cuda12"]]
    assert all(packages(words) for words in extras)
    assert "install --use-pep517 -c tools/requirements/dev.lock $packages" in text


@pytest.mark.parametrize("name", ["install.sh", "in_debian.sh"])
def test_the_scripts_work_in_the_checkout(name: str) -> None:
    """The folder that a script changes to, or archives, is the one with the packages that it installs."""
    (up,) = re.findall(r'"\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)(/[./]+)"', (FOLDER / name).read_text())
    assert (pathlib.Path(f"{FOLDER}{up}") / "tools/packages.py").is_file()


def test_the_tpu_s_tensorflow_is_the_lock_s_release() -> None:
    pinned = re.search(r"^tensorflow==(\S+)", (ROOT / "tools/requirements/dev.lock").read_text(), re.M)
    assert f" tensorflow-tpu=={pinned[1]}\n" in (FOLDER / "install.sh").read_text()


def test_docker_is_sent_nothing_that_git_ignores() -> None:
    ignored = {line.strip("/\n") for line in (ROOT / ".gitignore").open() if line.strip()}
    left_out = {line.strip().removeprefix("**/") for line in (ROOT / ".dockerignore").open()}
    assert ignored <= left_out | {""} and ".git" in left_out


@pytest.mark.parametrize("name", ["install.sh", "in_debian.sh"])
def test_scripts_parse(name: str) -> None:
    subprocess.run(["bash", "-n", FOLDER / name], check=True)
    assert (FOLDER / name).stat().st_mode & 0o111


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["install.sh"], "tools/containers/install.sh: give one of cpu, gpu, tpu"),
        (["install.sh", "rocm"], "tools/containers/install.sh: give one of cpu, gpu, tpu"),
        (["in_debian.sh", "cpu"], "tools/containers/in_debian.sh: give cpu, gpu or tpu, and a new folder"),
        (
            ["in_debian.sh", "vax", "new"],
            "tools/containers/in_debian.sh: give cpu, gpu or tpu, and a new folder",
        ),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], message: str, tmp_path: pathlib.Path) -> None:
    name, *rest = arguments
    done = subprocess.run([FOLDER / name, *rest], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_kubernetes_job_starts_one_launcher_per_host_with_time_to_save():
    objects = {each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())}
    job, pod = objects["Job"]["spec"], objects["Job"]["spec"]["template"]
    assert objects["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    # Only the run's own pods reach its ports.
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    words = container["command"][container["command"].index("launch") + 1 :]
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in words]
    requested = launch.job(launch.parser().parse_args(words))
    assert len(requested.hosts) == job["completions"] == job["parallelism"] and requested.launcher == 1
    assert pod["spec"]["terminationGracePeriodSeconds"] > requested.limits.grace
    assert job["podReplacementPolicy"] == "Failed" and job["activeDeadlineSeconds"]
    assert requested.max_restarts == job["backoffLimit"] and container["resources"]["requests"]
    # An eviction costs no attempt; bad input is final, and a lost process (75) or a library's error (1) is not.
    ignored, final = job["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore" and pod["spec"]["restartPolicy"] == "Never"
    assert final["action"] == "FailJob" and final["onExitCodes"]["values"] == [2]
    assert final["onExitCodes"]["containerName"] == container["name"]


@pytest.mark.parametrize(
    "change, error", [({}, ""), ({"operator": None}, "operator"), ({"value": [1]}, "value")]
)
def test_the_kubernetes_files_fit_the_schema_of_kubernetes(change, error):
    """That of kubectl, strict: an unknown or a missing field is an error; `change` breaks podFailurePolicy."""
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate==1.37.0")
    for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()):
        if each["kind"] == "Job":
            codes = each["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]
            codes |= change
            for name in [name for name, value in codes.items() if value is None]:
                del codes[name]
        wrong = error and each["kind"] == "Job"
        with pytest.raises(validator.ValidationError, match=error) if wrong else contextlib.nullcontext():
            validator.validate(each, "1.31", strict=True)
