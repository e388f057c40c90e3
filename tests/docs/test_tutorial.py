"""Follows docs/tutorial.md in a copy of the project: writes its files, runs its commands, checks the logs."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from compliance.submission import runs
from tests.benchmarks import missing
from tools.docs import markdown

PAGE = (markdown.ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n+```python\n(.*?)^```$", PAGE, re.M | re.S))
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
OUTPUT = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
NEEDED = ("common", "compliance", "systems", "timetotrain")
SECONDS = 180


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """Returns the copy after all commands of the page, and what these printed."""
    copy = tmp_path_factory.mktemp("tutorial")
    for name in markdown.tracked(*NEEDED):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(markdown.ROOT / name, copy / name)
    (copy / ".venv").symlink_to(sys.prefix)
    for name, text in FILES.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text, encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHON")}
    printed = ""
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=copy,
            env={**variables, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        printed += done.stdout
    return copy, printed


def accuracies(copy: pathlib.Path, folder: str) -> list[float]:
    """The logged accuracies of a run that ended in success."""
    log = copy / folder / "cpu-tiny/rings/result_0.txt"
    assert runs.read_run(log).status == "success"
    return [float(value) for value in re.findall(r'"eval_accuracy", "value": ([0-9.]+)', log.read_text())]


def test_the_page_names_every_file_once() -> None:
    assert {"rings/config.py", "rings/presets.py", "rings/input.py", "rings/task.py"} <= set(FILES)
    assert len(FILES) == PAGE.count("<!-- file: ") == PAGE.count("```python")


def test_the_run_prints_what_the_page_shows(followed) -> None:
    lines = [line for text in OUTPUT for line in missing(text, followed[1])]
    assert OUTPUT and not lines, f"{lines} are not in\n{followed[1]}"


def test_the_runs_reach_their_target_and_two_replicas_equal_one(followed) -> None:
    copy, _ = followed
    one = accuracies(copy, "results")
    assert one[-1] >= 0.95 and max(one[:-1]) < 0.95
    assert accuracies(copy, "mirrored") == pytest.approx(one, abs=0.02)
    assert accuracies(copy, "kept")[-1] >= 0.95


def test_bad_values_and_missing_data_are_one_line(followed) -> None:
    copy, _ = followed
    for flags, message in (
        (["--data_dir=data", "--config.units=0"], "config.units=0"),
        (["--data_dir=rings"], "train.npz: no such file; run python -m rings.tiny"),
    ):
        command = [".venv/bin/python", "-m", "rings", "--system=cpu-tiny", *flags]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert [message in line for line in done.stderr.splitlines() if "error:" in line] == [True]
