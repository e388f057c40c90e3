"""Tests packages of logs that this repository did not write: rounds 0.7, 4.0 and 5.x, accepted by the stock tools."""

import json
import logging
import os
import re
import shutil
import subprocess

import pytest

from common.errors import UserError
from compliance import check
from compliance.packaging import other_logs, own_runs
from tests.compliance import llama_logs, result_logs
from tests.compliance.test_package import run


@pytest.fixture
def lab(tmp_path):
    """Returns make(round), which writes logs, a description and code, and returns the words of the command."""

    def make(ruleset, failed=(), nested=True, name="{}.log", **options):
        first = ruleset == "0.7.0"
        benchmark = "resnet" if first else "llama2_70b_lora"
        place = tmp_path / "runs" / ("box" if nested else "") / ("attempt" if nested else "")
        place.mkdir(parents=True)
        for index in range(result_logs.runs("resnet") if first else llama_logs.RUNS):
            status = "aborted" if index in failed else "success"
            text = (
                result_logs.log("resnet", index, org="Other Lab", system="box", status=status, **options)
                if first
                else llama_logs.log(index, status=status, **options)
            )
            (place / name.format(index)).write_text("noise of a framework\n" + text)
        words = {"status": "onprem"} if first else {}
        described = tmp_path / "box.json"
        described.write_text(json.dumps(llama_logs.description(**words)))
        code = llama_logs.write_code(tmp_path / "code" / benchmark)
        implementation = tmp_path / "implementation.json"
        implementation.write_text(json.dumps(dict.fromkeys(own_runs.IMPLEMENTATION, "none")))
        return [
            *(str(tmp_path / "runs"), "--org", "Other_Lab", "--system", "box", "--ruleset", ruleset),
            *("--description", str(described), "--code", str(code.parent)),
            *("--implementation", "torch", "--implementation_json", str(implementation)),
        ]

    return make


def call(words, output, *more):
    return run(*words, "-o", output, *more)


def stock_says(org, ruleset, caplog):
    """Whether the stock package checker finds no errors."""
    from mlperf_logging.compliance_checker import mlp_compliance
    from mlperf_logging.package_checker import package_checker

    caplog.clear()
    caplog.set_level(logging.INFO)
    mlp_compliance.enqueued_configs.clear()
    arguments = (str(org), "training", ruleset, False, False, False, False, False, "log")
    package_checker.check_training_package(*arguments)
    assert "Skipping" not in caplog.text
    return "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !" in caplog.text


@pytest.mark.parametrize("failed", [(), (3,)], ids=["all converged", "one did not"])
@pytest.mark.parametrize("ruleset", ["0.7.0", "4.0.0", "5.0.0", "5.1.0"])
def test_the_tree_passes_ours_and_the_stock_checker(lab, tmp_path, caplog, capsys, ruleset, failed):
    assert call(lab(ruleset, failed), tmp_path / "out") == 0, capsys.readouterr()
    org = tmp_path / "out" / "Other_Lab"
    outcome = check([org], ruleset)
    assert outcome.verdict.answer == "go" and len(outcome.submissions[0].folders) == 1
    assert ("does not count" in capsys.readouterr().out) == bool(failed)
    assert stock_says(shutil.copytree(org, tmp_path / "copy" / "Other_Lab"), ruleset, caplog)


def test_the_files_of_the_tree(lab, tmp_path):
    assert call(lab("5.0.0"), tmp_path / "out") == 0
    org = tmp_path / "out" / "Other_Lab"
    code = "benchmarks/llama2_70b_lora/implementations/torch"
    box = "benchmarks/llama2_70b_lora/box"
    scripts = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")
    assert {path.relative_to(org).as_posix() for path in org.rglob("*") if path.is_file()} == {
        "systems/box.json",
        *(f"results/box/llama2_70b_lora/result_{index}.txt" for index in range(10)),
        *(f"{code}/{name}" for name in (*scripts, "src/train.py")),
        *(f"{box}/{name}" for name in (*scripts, "box_torch.json")),
    }
    log = tmp_path / "runs/box/attempt/9.log"
    assert (org / "results/box/llama2_70b_lora/result_9.txt").read_bytes() == log.read_bytes()
    done = subprocess.run([org / box / "run_and_time.sh", "--x"], capture_output=True, text=True, check=True)
    assert done.stdout == "here: torch --x\n"


@pytest.mark.parametrize("name", ["result_{}.txt", "run {}.out"])
def test_logs_of_any_name_in_the_folder_itself(lab, tmp_path, name):
    assert call(lab("5.1.0", nested=False, name=name), tmp_path / "out") == 0
    assert len(list((tmp_path / "out/Other_Lab/results/box/llama2_70b_lora").iterdir())) == 10


def refused(words, output, *more, match):
    with pytest.raises(UserError, match=match):
        call(words, output, *more)
    assert not output.exists()


def test_logs_of_hpc_are_refused(lab, tmp_path, capsys):
    words = lab("5.1.0", benchmark="cosmoflow")
    (tmp_path / "code/llama2_70b_lora").rename(tmp_path / "code/cosmoflow")
    assert call(words, tmp_path / "out") == 1
    assert "Refused: not checked: The logs are of MLPerf HPC" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", [{"failed": (1, 2)}, {"seed": 1}, {}], ids=["failed", "equal", "few"])
def test_two_failed_runs_equal_seeds_and_too_few_runs_are_refused(lab, tmp_path, capsys, how):
    words = lab("5.0.0", **how)
    if not how:
        (tmp_path / "runs/box/attempt/4.log").unlink()
    assert call(words, tmp_path / "out") == 1
    assert "Refused" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_runs_with_the_same_results_are_refused(lab, tmp_path, capsys):
    words = lab("5.1.0")
    for path in (tmp_path / "runs/box/attempt").iterdir():
        path.write_text(re.sub(r'1\.\d+(?=, "metadata")', "1.123456789", path.read_text()))
    assert call(words, tmp_path / "out") == 1
    assert "Several runs have the same results." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_smoke_runs_stay_refused(lab, tmp_path):
    words = lab("0.7.0", smoke=True)
    refused(words, tmp_path / "out", match="is a smoke run, which is not a result")
    assert call(words, tmp_path / "out", "--smoke") == 0
    assert (tmp_path / "out" / "SMOKE-Other_Lab").is_dir()


def test_an_unnamed_benchmark_is_refused(lab, tmp_path):
    refused(lab("5.0.0", benchmark="../up"), tmp_path / "out", match="has to name its benchmark")


def test_two_benchmarks_in_one_folder_are_refused(lab, tmp_path):
    words = lab("5.0.0")
    (tmp_path / "runs/box/attempt/3.log").write_text(llama_logs.log(3, benchmark="bert"))
    refused(words, tmp_path / "out", match="bert and llama2_70b_lora; one folder")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_a_description_that_is_none(lab, tmp_path, text):
    words = lab("5.0.0")
    (tmp_path / "box.json").write_text(text)
    refused(words, tmp_path / "out", match="no system description")


def test_missing_inputs_are_one_line(lab, tmp_path):
    words = lab("5.0.0")
    refused([str(tmp_path / "nothing"), *words[1:]], tmp_path / "out", match="no such folder")
    (tmp_path / "empty").mkdir()
    refused([str(tmp_path / "empty"), *words[1:]], tmp_path / "out", match="no file with :::MLL")
    refused([*words, "--description", str(tmp_path / "no")], tmp_path / "out", match="No such file")
    at = words.index("--code")
    refused([*words[:at], *words[at + 2 :]], tmp_path / "out", match="--code: names no folder for llama2")
    refused([*words, "--code", "llama2_70b_lora=/nowhere"], tmp_path / "out", match="no folder of code")
    at = words.index("--description")
    refused([*words[:at], *words[at + 2 :]], tmp_path / "out", match="--description: not given")


def test_links_and_pipes_are_refused(lab, tmp_path):
    words = lab("5.0.0", name="result_{}.txt")
    log = tmp_path / "runs/box/attempt/result_0.txt"
    log.rename(tmp_path / "aside")
    log.symlink_to(tmp_path / "aside")
    refused(words, tmp_path / "out", match="symbolic link")
    log.unlink()
    os.mkfifo(log)
    refused(words, tmp_path / "out", match="not a regular file")
    log.unlink()
    (tmp_path / "aside").rename(log)
    (tmp_path / "code/llama2_70b_lora/passwd").symlink_to("/etc/passwd")
    refused(words, tmp_path / "out", match="passwd: is a symbolic link")
    (tmp_path / "code/llama2_70b_lora/passwd").unlink()
    (tmp_path / "code/llama2_70b_lora/a b").write_text("x")
    refused(words, tmp_path / "out", match="no spaces in names")
    (tmp_path / "code/llama2_70b_lora/a b").unlink()
    (tmp_path / "box.json").unlink()
    os.mkfifo(tmp_path / "box.json")
    refused(words, tmp_path / "out", match=r"box\.json: is not a regular file")


@pytest.mark.parametrize(
    ("framework", "name"),
    [("PyTorch NVIDIA Release 25.04", "pytorch"), ("MyOwn 2", "myown"), ("", "implementation")],
)
def test_the_implementation_is_named_after_the_framework(tmp_path, framework, name):
    described = tmp_path / "box.json"
    described.write_text(json.dumps(llama_logs.description(framework=framework)))
    assert other_logs.implementation_name(described) == name


def test_a_longer_name_of_the_organization_is_the_same(lab, tmp_path):
    words = lab("5.1.0", org="Inventec Corporation")
    words[words.index("--org") + 1] = "Inventec"
    assert call(words, tmp_path / "out") == 0
    words[words.index("--org") + 1] = "Dell"
    with pytest.raises(UserError, match="not Dell; give --org as the folder"):
        call(words, tmp_path / "other")


def test_the_committees_factor_goes_along_and_a_broken_one_is_refused(lab, tmp_path, capsys):
    words = lab("5.1.0")
    place = tmp_path / "runs" / "box" / "attempt" / "scaling.json"
    place.write_text('{"scaling_factor": 1.25}')
    assert call(words, tmp_path / "out") == 0
    copied = tmp_path / "out" / "Other_Lab" / "results" / "box" / "llama2_70b_lora" / "scaling.json"
    assert json.loads(copied.read_text()) == {"scaling_factor": 1.25}
    place.write_text('{"scaling_factor": 0.5}')
    with pytest.raises(UserError, match="less than 1"):
        call(words, tmp_path / "other")
