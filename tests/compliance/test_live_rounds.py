"""Tests that ours and the stock checkers accept the logs and packages of rounds 5.1 to 6.1, full-size and practice.

The logs are what a run's recorder writes, without training.
"""

import dataclasses
import json
import time

import pytest

from common.config import overrides
from common.errors import UserError
from compliance.api import check
from compliance.log import find_round
from compliance.log.engine import StreamChecker
from compliance.verdict import GO
from llama31_8b.config import Config
from llama31_8b.presets import PRESETS, hyperparameters
from tests.benchmarks import scripted_log, stock_findings, values
from tests.compliance.preset_runs import packages_to_a_go, write_runs
from tests.compliance.test_package import call_for, head
from tests.compliance.test_package_any import stock_says
from timetotrain.cli import main
from timetotrain.run import closed_division

CLOSED = [name for name, config in PRESETS.items() if config.division == "closed"]
NODE = "h200-8"
FACTS = {"config_overrides": {}, "initial_weights": "random"}
pytestmark = pytest.mark.usefixtures("fast_stock_checker")


def write_ten(folder, config, commit, monkeypatch, last=13):
    """Writes ten runs that meet their target as the reference's do; returns their folder."""
    target = config.quality_target
    runs = [
        # 13 or 14 evaluations of 12,288 sequences, as 20 runs of the reference (mlperf_logging rcp_checker).
        {"reached": 0.97 * target + index / 1000, "missed": 1.5 * target + index / 1000,
         "stop_at": min(12 + index % 2, last), "step_seconds": 3 + index / 100}
        for index in range(10)
    ]  # fmt: skip
    return write_runs(folder, config, commit, monkeypatch, runs, FACTS)


@pytest.mark.parametrize("ruleset", Config.rulesets)
@pytest.mark.parametrize("name", CLOSED)
def test_the_log_of_a_full_size_run_passes_both_checkers(name, ruleset, tmp_path):
    config = dataclasses.replace(PRESETS[name], ruleset=ruleset)
    config.validate()
    closed_division.check(config, PRESETS[name], hyperparameters)
    path = tmp_path / "result_0.txt"
    checker = StreamChecker(ruleset, config.benchmark, config.division)
    scripted_log(config, path, stop_at=12, start=time.time() + 60, checker=checker)
    assert find_round.find(path).ruleset == ruleset
    outcome = check([path])
    assert (outcome.findings, outcome.verdict.answer) == ([], GO)
    assert stock_findings(path, ruleset) == []
    assert values(path, "seed") == [config.seed] and values(path, "max_steps") == [1_200_000]


@pytest.mark.parametrize("ruleset", Config.rulesets)
def test_ten_runs_of_a_node_are_packaged_and_accepted(ruleset, tmp_path, source, caplog, capsys, monkeypatch):
    config = dataclasses.replace(PRESETS[NODE], ruleset=ruleset)
    place = write_ten(tmp_path / "results", config, head(source), monkeypatch)
    assert "retired" not in packages_to_a_go(place, NODE, ruleset, source, caplog, capsys)


def test_ten_practice_runs_are_packaged_and_the_stock_checker_finds_nothing(
    tmp_path, source, caplog, capsys, monkeypatch
):
    config = PRESETS["cpu-tiny"]
    place = write_ten(tmp_path / "results", config, head(source), monkeypatch, last=3)
    assert call_for("cpu-tiny", tmp_path / "results", tmp_path / "out", source, "--smoke") == 0
    assert "practice tree" in capsys.readouterr().out
    tree = tmp_path / "out" / "SMOKE-Example"
    assert stock_says(tree, "6.1.0", caplog)
    assert main(["accept", str(tree)]) == 2
    text = capsys.readouterr().out
    assert "llama31_8b: open, 10 of 10 runs, probability 1.00" in text and "smoke runs are practice" in text
    assert main(["plan", config.benchmark, f"--system={NODE}", f"--log={place / 'result_0.txt'}"]) == 2
    assert "max_sequence_length=64, but the rules ask for 8,192" in capsys.readouterr().err


def test_accept_report_forecast_and_plan_read_a_node_s_logs(tmp_path, source, capsys, monkeypatch):
    """The mean is that of the runs' last evaluations, without the first and the last of ten."""
    config = PRESETS[NODE]
    place = write_ten(tmp_path / "results", config, head(source), monkeypatch)
    assert call_for(NODE, tmp_path / "results", tmp_path / "out", source) == 0
    tree = tmp_path / "out" / "Example"
    assert main(["accept", str(tree)]) == 0
    assert "the mean to converge, 165,888, is at least 157,920" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", str(tree), "-o", str(page)]) == 0
    assert "10 runs" in capsys.readouterr().out and "llama31_8b" in page.read_text()
    words = [config.benchmark, f"--system={NODE}", "--json"]
    assert main(["plan", *words, f"--log={place / 'result_0.txt'}"]) == 0
    row = next(row for row in json.loads(capsys.readouterr().out)["batches"] if row["size"] == 16)
    # A step takes 3 s; `scripted_log` gives an evaluation no time beside that.
    assert row["time"]["minutes"] == pytest.approx(161_109 / 16 * 3 / 60, rel=0.03)
    assert main(["forecast", *words]) == 0
    assert 30 < json.loads(capsys.readouterr().out)["minutes"] < row["time"]["minutes"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("optimizer.base_learning_rate", "0.0003"), ("global_batch_size", "32"), ("accumulation_steps", "1"),
        ("schedule.warmup_steps", "33"), ("precision", "fp32"), ("order", "one_epoch"), ("ruleset", "6.0.0"),
        ("recompute", "false"), ("seed", "9"),
    ],
)  # fmt: skip
def test_a_closed_run_may_change_what_the_rules_free(path, value):
    config = overrides.override(PRESETS[NODE], path, value)
    closed_division.check(config, PRESETS[NODE], hyperparameters)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("layers", "16"), ("width", "2048"), ("init_std", "0.01"), ("quality_target", "4"),
        ("num_eval_examples", "512"), ("vocab_size", "128000"), ("hidden", "7168"),
        ("schedule.kind", "constant"), ("data.train_prefix", "mine"),
    ],
)  # fmt: skip
def test_a_closed_run_may_not_change_the_rest(path, value, tmp_path):
    config = overrides.override(PRESETS[NODE], path, value)
    log = tmp_path / "result_0.txt"
    with pytest.raises(UserError, match=r"the closed rules|rule .*opt_|rule .*eval_samples"):
        closed_division.check(config, PRESETS[NODE], hyperparameters)
        scripted_log(config, log, stop_at=0, checker=StreamChecker("6.1.0", config.benchmark, "closed"))


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("optimizer.beta_2", "0.98", "opt_adamw_beta_2"), ("optimizer.epsilon", "1e-8", "opt_adamw_epsilon"),
        ("optimizer.weight_decay", "0", "opt_adamw_weight_decay"), ("sequence_length", "4096", "max_sequence_length"),
        ("optimizer.clip_norm", "2", "opt_gradient_clip_norm"), ("train_steps", "9000", "max_steps"),
    ],
)  # fmt: skip
def test_the_header_refuses_other_values_than_the_rules_in_its_first_second(path, value, key, tmp_path):
    config = overrides.override(PRESETS[NODE], path, value)
    closed_division.check(config, PRESETS[NODE], hyperparameters)
    checker = StreamChecker("6.1.0", config.benchmark, "closed")
    with pytest.raises(UserError, match=key):
        scripted_log(config, tmp_path / "result_0.txt", stop_at=0, checker=checker)
