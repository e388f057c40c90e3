"""Tests, one by one, the defects that earlier versions of the checker had, through its command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compliance import llama_logs
from timetotrain.cli import main

ROOT = Path(__file__).parents[2]
BENCHMARK = "llama2_70b_lora"


def submission(folder):
    """A submitter's folder of round 5.0 whose ten logs obey all rules."""
    org = llama_logs.tree(folder / "training_results_v5.0" / "Other_Lab", code="box")
    (org / "benchmarks" / BENCHMARK / "box" / "box_torch.json").write_text("{}")
    return org


def commands(org, folder):
    """What reads a submission, as words of the command line."""
    return {
        "check": ["check", str(org)],
        "scores": ["scores", str(org)],
        "report": ["report", str(org), "-o", str(folder / "page.html")],
    }


def run(words, seconds=60):
    """(exit status, what was printed) of a command in a process of its own, which must end in time."""
    command = [sys.executable, "-m", "timetotrain", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_submission_of_these_tests_has_no_fault(tmp_path, capsys):
    org = submission(tmp_path)
    assert main(["check", str(org)]) == 0 and "0 errors, 0 pieces" in capsys.readouterr().out
    assert main(["scores", str(org)]) == 0


# ------------------------------------------------------------------------------------- no plain files


@pytest.mark.parametrize("kind", ["pipe", "endless", "link", "folder"])
@pytest.mark.parametrize("file", ["description", "log", "flags", "scaling"])
def test_what_is_no_plain_file_is_neither_waited_for_nor_followed(tmp_path, kind, file):
    org = submission(tmp_path)
    folder = org / "results" / "box" / BENCHMARK
    path = {
        "description": org / "systems" / "box.json",
        "log": folder / "result_0.txt",
        "flags": org / "package_checker_params",
        "scaling": folder / "scaling.json",
    }[file]
    aside = tmp_path / "aside"
    if path.exists():
        path.rename(aside)
    else:
        aside.write_text("rcp_bypass\n" if file == "flags" else '{"scaling_factor": 0.01}')
    makers = {
        "pipe": os.mkfifo,
        "endless": lambda path: path.symlink_to("/dev/zero"),
        "link": lambda path: path.symlink_to(aside),
        "folder": lambda path: path.mkdir(),
    }
    makers[kind](path)
    answers = {name: run(words) for name, words in commands(org, tmp_path).items()}
    status, text = answers["check"]
    if file in ("description", "log"):
        assert status == 1 and text.splitlines()[-1].startswith("no-go")
        assert path.name in text or (file, kind) == ("log", "folder")
    assert "0.0" not in answers["scores"][1].split("box", 1)[-1][:60]  # no score by the linked factor
    if file == "log":
        assert answers["scores"][0] == 1 and "takes 10 runs, here are 9" in answers["scores"][1]


# ------------------------------------------------------------------------------------------- memory

_PEAK = """
import sys
from timetotrain.cli import main
status = main(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(status, int(peak.split()[1]) // 1024)
"""


# At this many evaluations, what is kept of a long log is full (intervals.py, whole_run.py); more add nothing.
_RISE_MB = 40


def peak(words):
    """(exit status, the most memory that a command had, in MB) in a process of its own."""
    command = [sys.executable, "-c", _PEAK, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    status, megabytes = map(int, done.stdout.splitlines()[-1].split())
    return status, megabytes


def long_log(path, text, evaluations):
    """A log with additional evaluations, each at its own place, before those that it has."""
    lines = text.splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if '"eval_accuracy"' in line)
    record = json.loads(lines[at].removeprefix(":::MLLOG "))
    bad = record["value"] > 0.9
    with path.open("w") as file:
        file.writelines(lines[:at])
        for number in range(evaluations):
            for key in ("eval_start", "eval_accuracy", "eval_stop"):
                record["key"], record["value"] = key, number / 2e6 + bad
                record["metadata"]["epoch_num"] = record["metadata"]["samples_count"] = number
                file.write(f":::MLLOG {json.dumps(record)}\n")
        file.writelines(lines[at:])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "evaluations", [30_000, pytest.param(1_000_000, marks=pytest.mark.e2e)], ids=["30000", "million"]
)
def test_a_submission_with_a_log_of_very_many_evaluations_takes_little_memory(tmp_path, evaluations):
    org = submission(tmp_path)
    path = org / "results" / "box" / BENCHMARK / "result_0.txt"
    text, short, count_before = path.read_text(), {}, path.read_text().count('"eval_accuracy"')
    for count in (10, evaluations):
        long_log(path, text, count)
        for name, words in commands(org, tmp_path).items():
            _, megabytes = peak(words)
            rise = megabytes - short.setdefault(name, megabytes)
            assert rise < _RISE_MB and megabytes < 200, (name, megabytes, short)
    assert f"{evaluations + count_before} evaluations" in (tmp_path / "page.html").read_text()
