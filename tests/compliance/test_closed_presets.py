"""Tests that `check`, `package` and the stock package checker accept runs of every closed preset.

The logs are what RunLog writes of a run's events, without training: the runs of a set meet their target in different
evaluations, one of them in the last that the preset allows.
"""

import dataclasses
import hashlib
import time

import pytest

import systems
from common.config.clock import Clock
from compliance.api import check
from compliance.log import rules
from compliance.log.engine import StreamChecker
from compliance.verdict import GO
from lab.bench.harness import stock_checker
from tests.benchmarks import scripted_log
from tests.compliance.test_package import call_for, head
from tests.compliance.test_package_any import stock_says
from tests.test_presets import MLPERF, preset
from timetotrain.run import results as records

CLOSED = [(benchmark, name) for benchmark, name in MLPERF if preset(benchmark, name).division == "closed"]


@pytest.fixture(autouse=True, scope="module")
def fast_stock_checker():
    with pytest.MonkeyPatch.context() as patch:
        stock_checker.make_fast(patch.setattr)
        yield


def stops(config, runs):
    """The evaluation in which each run meets its target: the last, the first, and some between."""
    last = sum(1 for _ in Clock.of(config).blocks()) - 1
    return [last, 0, *(last * n // runs for n in range(1, runs - 1))]


def write_runs(folder, config, runs, commit, monkeypatch):
    """Writes the logs and run.json of several runs, as timetotrain/run/recorder.py does."""
    monkeypatch.setattr(records, "git_state", lambda: {"commit": commit, "dirty": False})
    place = folder / config.system / config.benchmark
    weights = (
        {"file": "weights", "sha256": hashlib.sha256(b"").hexdigest()} if config.starts_from else "random"
    )
    facts = {"config_overrides": {}, "initial_weights": weights}
    start = time.time()
    for index, stop in enumerate(stops(config, runs)):
        run = dataclasses.replace(config, seed=index, submission_org="Example")
        log = place / f"result_{index}.txt"
        checker = StreamChecker(run.ruleset, run.benchmark, run.division)
        scripted_log(run, log, stop_at=stop, start=start + 60 + index, checker=checker, facts=facts)
        described = {**systems.load(config.hardware), "submitter": ""}
        record = records.describe_run(run, ["python", "-m", run.benchmark], described, facts)
        records.update_run_json(place, log, record | {"hardware": config.hardware})
    return place


@pytest.mark.parametrize(("benchmark", "name"), CLOSED)
def test_runs_of_a_closed_preset_are_accepted(benchmark, name, tmp_path, source, caplog, capsys, monkeypatch):
    config = preset(benchmark, name)
    runs = rules.load(config.ruleset, rules.benchmark_section(config.ruleset, "closed", benchmark))["runs"]
    place = write_runs(tmp_path / "results", config, runs, head(source), monkeypatch)
    outcome = check(sorted(place.glob("result_*.txt")))
    assert (outcome.findings, outcome.verdict.answer) == ([], GO)

    assert call_for(name, tmp_path / "results", tmp_path / "out", source) == 0, capsys.readouterr().err
    org = tmp_path / "out" / "Example"
    outcome = check([org], packaging=True)
    assert (outcome.findings, outcome.verdict.answer) == ([], GO)

    assert stock_says(org, config.ruleset, caplog) and "does not comply" not in caplog.text
