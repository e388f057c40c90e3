"""Tests the command line: exit status, start-up, and modules that it must not import."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compliance import made_logs, result_logs
from timetotrain.cli import main

ROOT = Path(__file__).parents[2]

CLEAN = (
    "ruleset 0.7.0, 1 log: the keys for resnet fit it best\n"
    "go: 1 file checked, 0 errors, 0 pieces of advice\n"
)


@pytest.fixture
def log(tmp_path):
    return made_logs.write(tmp_path, result_logs.log("resnet"), "log.txt")


def shell(*arguments):
    command = [sys.executable, "-m", "timetotrain", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_exit_status(log, tmp_path, capsys):
    assert main(["check", str(log)]) == 0
    smoke = made_logs.write(tmp_path, result_logs.log("resnet", smoke=True), "smoke.txt")
    assert main(["check", str(smoke)]) == 0
    assert main(["check", str(smoke), "--strict"]) == 1
    assert main(["check", str(log), "--division", "open"]) == 1
    for wrong in (["check", str(tmp_path / "absent")], ["check", str(log), "--division", "ajar"]):
        assert main(wrong) == 2
    assert capsys.readouterr().err.count("\n") == 2
    for wrong in (
        ["check"],
        ["check", str(log), "--ruleset", "9"],
        ["nonsense"],
        ["check", str(log), "--color"],
        ["package"],
        ["accept"],
        ["scores", "none"],
    ):
        assert main(wrong) == 2
        text = capsys.readouterr().err
        assert text.startswith("error: ") and text.count("\n") == 1


def test_from_the_shell(log):
    done = shell("check", log)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == CLEAN
    done = shell("check", log.parent / "absent.txt")
    assert done.returncode == 2
    assert "no such file" in done.stderr and "Traceback" not in done.stderr
    assert shell("--help").returncode == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_forms_and_output_file(log, tmp_path, capsys, form):
    log.write_text(result_logs.log("resnet", status="aborted"))
    target = tmp_path / "out"
    assert main(["check", str(log), "--format", form, "-o", str(target)]) == 1
    assert "eval_accuracy.target" in target.read_text()
    assert capsys.readouterr().out == ""
    assert main(["check", str(log), "-o", str(tmp_path / "no" / "where")]) == 2


def test_an_output_file_is_whole_or_as_it_was(log, tmp_path, capsys):
    """A limit on the size of files simulates a full disk."""
    log.write_text(result_logs.log("resnet", status="aborted"))
    target, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    target.write_text("of yesterday")
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        status = main(["check", str(log), "-o", str(target)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and f"{target}: cannot write (File too large)" in error
    assert target.read_text() == "of yesterday" and len(list(tmp_path.iterdir())) == 2


def test_an_output_that_is_no_plain_file_stays_what_it_is(log, tmp_path, capsys):
    """Putting a file in its place would replace /dev/null, or a link."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["check", str(log), "-o", str(pipe)]) == main(["check", str(log), "-o", str(link)]) == 0
        assert os.read(reader, 1000).decode() == target.read_text() == CLEAN
    finally:
        os.close(reader)
    assert pipe.is_fifo() and link.is_symlink()
    assert main(["check", str(log), "-o", str(tmp_path)]) == 2
    assert "cannot write (Is a directory); name a file" in capsys.readouterr().err


def test_explain_and_rules(capsys):
    assert main(["explain", "run_stop.status"]) == 0
    assert main(["rules", "tsm_kinetics", "closed"]) == 0
    assert "0.74" in capsys.readouterr().out
    assert main(["explain", "all"]) == 0
    assert main(["rules", "resnet", "ajar"]) == 2
    assert main(["explain", "nothing-like-it"]) == 2


def test_rules_of_the_newest_round_and_of_every_round(capsys):
    for benchmark, ruleset in (("bert", "5.0.0"), ("resnet", "0.7.0"), ("qwen35_397b_grpo", "6.1.0")):
        assert main(["rules", benchmark]) == 0
        assert capsys.readouterr().out.startswith(f"{benchmark} closed, ruleset {ruleset} ")
    assert main(["rules"]) == 0
    text = capsys.readouterr().out
    last = text[text.index("\n6.1.0") :].splitlines()[1]
    assert {"gpt_oss_20b", "deepseekv3_671b", "dlrmv4"} <= {*last.replace(",", "").split()}
    assert "named, without rules: resnet, maskrcnn, rnnt, unet3d" in text and "HPC is not covered" in text
    assert main(["rules", "cosmoflow"]) == 2
    assert "cosmoflow is a benchmark of MLPerf HPC, which is not covered" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback(tmp_path):
    path = made_logs.write(tmp_path, ":::MLLOG x\n" * 10, "log.txt")
    command = f"{sys.executable} -m timetotrain check {path} --format json | head -c 1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_a_full_disk_is_one_line():
    command = f"{sys.executable} -m timetotrain rules > /dev/full"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "error: standard output: No space left on device; make it writable or free some space\n"
    )


def test_a_report_s_name_that_is_not_utf8_is_shown_as_an_escape(log):
    path = os.fsencode(log.parent) + b"/\xff.html"
    done = subprocess.run(
        [sys.executable, "-m", "timetotrain", "report", log, "-o", path], cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and b"\\udcff.html: 1 run" in done.stdout and not done.stderr


def test_a_check_imports_nothing_heavy(log):
    code = (
        "import sys, json\n"
        "from timetotrain.cli import main\n"
        f"main(['check', {str(log)!r}, '-o', '/dev/null'])\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = set(json.loads(done.stdout))
    heavy = {
        "tensorflow", "numpy", "pandas", "scipy", "yaml", "jinja2", "matplotlib", "mlperf_logging", "difflib",
    }  # fmt: skip
    assert not loaded & (heavy | {"concurrent", "multiprocessing", "subprocess"})
